"""Faster stand-ins for the forward passes of layers on a CPU, for as long as texts are encoded.

Linear layers multiply by weights that were laid out beforehand. BERT's whole stack of layers (BERT, MiniLM, BGE, E5
and ColBERTv2 have it) runs as four products per layer with nothing in between but attention and norms: for one short
query, finding its way through transformers' many small modules takes as long as the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertModel

from latelier.models.cpu.bert import BertLayers, computes_as_published, has_published_layers
from latelier.models.cpu.prepacked import Layout, is_plain_linear, layouts_work

__all__ = ["faster_forwards"]

# Laid-out weights are a copy: a GiB of them is where that stops being a detail.
_MOST_BYTES = 1 << 30

_layouts: WeakKeyDictionary[nn.Module, Layout] = WeakKeyDictionary()
_stacks: WeakKeyDictionary[nn.Module, BertLayers] = WeakKeyDictionary()


@contextmanager
def faster_forwards(model: nn.Module) -> Iterator[None]:
    """Let stand-ins compute what the layers of a model would, inside the block and without gradients.

    The numbers are those of the layers, up to rounding; under autocast, in its dtype. The stand-ins follow changes of
    the weights, step aside where gradients are wanted (in another thread, say), and are right in any thread.

    Parameters
    ----------
    model
        The model. Layers on other devices, of other dtypes or of other classes (quantised ones, adapters) are left
        alone, and so are compiled models and those with more than 1 GiB of linear weights.
    """
    replaced = _stand_ins(model)
    for module, stand_in in replaced.items():
        # Not by setattr: torch walks through parameters and buffers there, at a cost that a short query feels.
        module.__dict__["forward"] = stand_in
    try:
        yield
    finally:
        for module in replaced:
            module.__dict__.pop("forward", None)


def _stand_ins(model: nn.Module) -> dict[nn.Module, Any]:
    """Return what can be replaced, and by what."""
    found: dict[nn.Module, Any] = {}
    remaining = [model] if layouts_work(torch.float32) else []
    size = 0
    while remaining:
        module = remaining.pop()
        if module._compiled_call_impl is not None:
            return {}
        if is_plain_linear(module):
            layout = _layout(module)
            found[module] = _Linear(module, layout)  # type: ignore[arg-type]
            size += layout.nbytes
        elif type(module) is BertModel and (stack := _stack(module)) is not None:
            found[module] = _Bert(module, stack)
            size += stack.nbytes
        else:
            remaining += [child for child in module._modules.values() if child is not None]
    return found if size <= _MOST_BYTES else {}


def _layout(linear: Any) -> Layout:
    known = _layouts.get(linear)
    if known is None or not known.describes(linear):
        known = _layouts[linear] = Layout(linear)
    return known


def _stack(bert: BertModel) -> BertLayers | None:
    if not computes_as_published(bert):
        return None
    known = _stacks.get(bert)
    if known is None or not known.describes(bert):
        if not has_published_layers(bert):
            return None
        known = _stacks[bert] = BertLayers(bert)
    return known


class _Linear:
    """Stands in for `torch.nn.Linear.forward`."""

    __slots__ = ("_layer", "_layout")

    def __init__(self, layer: nn.Linear, layout: Layout) -> None:
        self._layer = layer
        self._layout = layout

    def __call__(self, input: Tensor) -> Tensor:
        dtype = _wanted_dtype()
        if dtype is None or input.ndim < 2 or not input.numel():
            return nn.Linear.forward(self._layer, input)
        return self._layout.multiply(input, dtype, (self._layer,), "none")


class _Bert:
    """Stands in for `BertModel.forward`."""

    __slots__ = ("_bert", "_stack")

    def __init__(self, bert: BertModel, stack: BertLayers) -> None:
        self._bert = bert
        self._stack = stack

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Any:
        dtype = _wanted_dtype()
        if dtype is None or not self._stack.takes(input_ids, attention_mask, options):
            return BertModel.forward(self._bert, input_ids, attention_mask, **options)
        return self._stack.run(self._bert, input_ids, attention_mask, options.get("token_type_ids"), dtype)


def _wanted_dtype() -> torch.dtype | None:
    """Return the dtype to compute in, or None where the layer itself has to."""
    if torch.is_grad_enabled():
        return None
    if not torch.is_autocast_enabled("cpu"):
        return torch.float32
    dtype = torch.get_autocast_dtype("cpu")
    return dtype if layouts_work(dtype) else None
