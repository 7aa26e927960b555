"""Patched forwards of a model's modules on a CPU, for as long as texts are encoded.

Linear layers multiply by prepacked weights. The layers of BERT (BERT, MiniLM, BGE, E5 and ColBERTv2 have them) run as
four matrix products each, with nothing in between but attention and norms: for one short query, the Python calls
between transformers' modules take as long as the arithmetic. ``LATELIER_CPU_FORWARD=0`` in the environment turns all
of it off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.bert.modeling_bert import BertModel

from latelier.errors import InvalidArgumentError
from latelier.models.cpu.bert import PrepackedBert, has_standard_forward, has_standard_modules
from latelier.models.cpu.fingerprint import Fingerprint
from latelier.models.cpu.pace import Pace
from latelier.models.cpu.patching import PatchedForward, replaced_forwards
from latelier.models.cpu.prepacked import PrepackedLinear, can_prepack, is_plain_linear

__all__ = ["patched_forwards"]

_SWITCH = "LATELIER_CPU_FORWARD"
# Prepacked weights are a copy: models with more than 1 GiB of linear weights are not patched.
_MAX_BYTES = 1 << 30

_linears: WeakKeyDictionary[nn.Module, tuple[Fingerprint, PrepackedLinear]] = WeakKeyDictionary()
_berts: WeakKeyDictionary[nn.Module, PrepackedBert] = WeakKeyDictionary()
_paces: WeakKeyDictionary[nn.Module, dict[torch.dtype, Pace]] = WeakKeyDictionary()


@contextmanager
def patched_forwards(model: nn.Module) -> Iterator[None]:
    """Patch the forwards of a model's modules inside the block.

    They are patched for the calling thread. Results are those of the modules, up to rounding; under autocast, in its
    dtype. Changed weights are prepacked again. Where gradients are enabled, a patched forward calls the module's own.
    `model`: the model. Modules on other devices, of other dtypes or of other classes (quantised layers, adapters) keep
    their forwards, and so do compiled models and those with more than 1 GiB of linear weights.
    """
    with replaced_forwards(_patches(model) if _is_on() else {}):
        yield


def _is_on() -> bool:
    value = os.environ.get(_SWITCH, "1")
    if value not in ("0", "1"):
        raise InvalidArgumentError(f"{_SWITCH}={value!r}; expected 0 (off) or 1 (on), or unset, which is on.")
    return value == "1"


def _patches(model: nn.Module) -> dict[nn.Module, Any]:
    """Return the modules that can be patched, and their patched forwards."""
    found: dict[nn.Module, Any] = {}
    encoder = None
    remaining = [model] if can_prepack(torch.float32) else []
    size = 0
    while remaining:
        module = remaining.pop()
        if module._compiled_call_impl is not None:
            return {}
        if encoder is None and isinstance(module, PreTrainedModel):
            encoder = module
        if is_plain_linear(module):
            linear = _prepacked_linear(module)
            found[module] = _LinearForward(module, linear)  # type: ignore[arg-type]
            size += linear.nbytes
        elif type(module) is BertModel and (bert := _prepacked_bert(module)) is not None:
            found[module] = _BertForward(module, bert)
            size += bert.nbytes
        else:
            remaining += [child for child in module._modules.values() if child is not None]
    found = found if size <= _MAX_BYTES else {}
    if encoder is not None and isinstance(encoder.__dict__.get("forward"), PatchedForward | None):
        found[encoder] = _PacedForward(encoder, found.get(encoder))
    return found


def _prepacked_linear(linear: Any) -> PrepackedLinear:
    known = _linears.get(linear)
    if known is None or not known[0].matches():
        known = _linears[linear] = Fingerprint([linear]), PrepackedLinear(linear)
    return known[1]


def _prepacked_bert(bert: BertModel) -> PrepackedBert | None:
    if not has_standard_forward(bert):
        return None
    known = _berts.get(bert)
    if known is None or not known.matches():
        if not has_standard_modules(bert):
            return None
        known = _berts[bert] = PrepackedBert(bert)
    return None if known.is_overridden() else known


class _PacedForward:
    """Replaces the forward of a transformer: short inputs are computed with as many threads as is fastest."""

    __slots__ = ("_encoder", "_forward", "_paces")

    def __init__(self, encoder: nn.Module, forward: Callable[..., Any] | None) -> None:
        self._encoder = encoder
        self._forward = forward or partial(type(encoder).forward, encoder)
        self._paces = _paces.setdefault(encoder, {})

    def __call__(self, *args: Any, **options: Any) -> Any:
        ids, dtype = options.get("input_ids"), _dtype_to_compute_in()
        if not isinstance(ids, Tensor) or dtype is None:
            return self._forward(*args, **options)
        pace = self._paces.get(dtype) or self._paces.setdefault(dtype, Pace())
        return pace.run(ids.numel(), partial(self._forward, *args, **options))


class _LinearForward:
    """Replaces `torch.nn.Linear.forward`."""

    __slots__ = ("_layer", "_weights")

    def __init__(self, layer: nn.Linear, weights: PrepackedLinear) -> None:
        self._layer = layer
        self._weights = weights

    def __call__(self, input: Tensor) -> Tensor:
        dtype = _dtype_to_compute_in()
        if dtype is None or input.ndim < 2 or not input.numel():
            return nn.Linear.forward(self._layer, input)
        return self._weights.multiply(input, dtype, (self._layer,), "none")


class _BertForward:
    """Replaces `BertModel.forward`."""

    __slots__ = ("_bert", "_weights")

    def __init__(self, bert: BertModel, weights: PrepackedBert) -> None:
        self._bert = bert
        self._weights = weights

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Any:
        dtype = _dtype_to_compute_in()
        if dtype is None or not self._weights.accepts(input_ids, attention_mask, options):
            return BertModel.forward(self._bert, input_ids, attention_mask, **options)
        return self._weights.run(self._bert, input_ids, attention_mask, options.get("token_type_ids"), dtype)


def _dtype_to_compute_in() -> torch.dtype | None:
    """Return the dtype of the products, or None where the module's own forward is needed."""
    if torch.is_grad_enabled():
        return None
    if not torch.is_autocast_enabled("cpu"):
        return torch.float32
    dtype = torch.get_autocast_dtype("cpu")
    return dtype if can_prepack(dtype) else None
