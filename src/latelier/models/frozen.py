"""Frozen copies of a model, with which `encode` computes on a CPU.

A copy shares the model's tensors and settings. Its linear layers multiply by weights in the layout of oneDNN (torch
reorders a weight in every call, half of the work for one query), the layers of BERT (BERT, MiniLM, BGE, E5, ColBERTv2)
run as four products each (for one query, the Python calls between transformers' modules take as long as the
arithmetic); or ONNX Runtime computes the transformer. The model itself is never changed, and trains as it is.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import cache
from itertools import takewhile
from operator import is_
from typing import Any, NamedTuple

import torch
from sentence_transformers.base.modules import Dense
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.bert.modeling_bert import BertModel

from latelier.errors import LatelierError
from latelier.models.exported_encoder import OnnxEncoder
from latelier.models.onnx_export import (
    OnnxTransformer,
    Unfit,
    encoder_fingerprint,
    fold,
    stored_export,
)

# Laid-out weights take memory of their own: models with more than 1 GiB of linear weights have none.
_MAX_BYTES = 1 << 30
_ROWS_HINT = 32  # rows of a typical short input; a laid-out weight serves any number of rows
# Modules of other packages, such as code that comes with a checkpoint, may keep what they compute for the next call.
_PACKAGES = ("latelier.", "sentence_transformers.", "torch.nn.", "transformers.")
# Rotary position embeddings that are computed anew, and kept, when a longer text comes.
_CHANGING_ROPE = ("dynamic", "longrope")

# Of what transformers makes a BERT.
_BERT_MODULES = ("transformers.models.bert.modeling_bert", "transformers.activations")
_BERT_PARTS = (nn.Dropout, nn.Embedding, nn.LayerNorm, nn.Linear, nn.ModuleList, nn.Tanh)

logger = logging.getLogger(__name__)


class _State(NamedTuple):
    """What a copy was made of: it is made again when any of it is another object, or has counted a change."""

    modules: list[nn.Module]
    tensors: list[Tensor]
    versions: list[int]
    addresses: list[int]

    @classmethod
    def of(cls, model: nn.Module) -> _State | None:
        """Return the state of a model; None if other code computes, or looks on, inside it: it has no copies then."""
        tensors: list[Any] = []
        modules: list[Any] = [model]
        for module in modules:  # grows while it is read; `model.modules()` takes ten times as long
            own = module.__dict__
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or "_compiled_call_impl" in own:
                return None
            # A trainer of mixed precision leaves accelerate's autocast around the model's own forward.
            if "forward" in own and not (module is model and "_original_forward" in own):
                return None
            if children := own["_modules"]:
                modules += [child for child in children.values() if child is not None]
            if held := own["_parameters"]:
                tensors += held.values()
            if held := own["_buffers"]:
                tensors += held.values()
        tensors = [tensor for tensor in tensors if tensor is not None]
        try:
            versions = [tensor._version for tensor in tensors]
        except RuntimeError:  # tensors made in inference mode count no changes
            return None
        # Without the model, which holds its copies: both are freed together.
        return cls(modules[1:], tensors, versions, [*map(Tensor.data_ptr, tensors)])

    def is_that_of(self, other: _State) -> bool:
        return (
            self.versions == other.versions
            and self.addresses == other.addresses
            and self.modules == other.modules
            and all(map(is_, self.tensors, other.tensors))
        )


class FrozenCopies:
    """The frozen copies of one model, by what they compute in; a copy or a pickle of the model starts with none.

    Changes of weights that torch does not count, through ``.data`` or memory shared with numpy, are not seen until
    `drop`, which ``model.train()``, ``model.eval()`` and a forward pass with gradients call.
    """

    def __init__(self) -> None:
        self._held: tuple[_State, dict[str, Any]] | None = None
        self._fingerprint: str | None = None  # of the weights that ONNX Runtime has
        self._sessions: dict[str, OnnxEncoder] = {}

    def __reduce__(self) -> Any:
        return FrozenCopies, ()

    def drop(self) -> None:
        """Forget the copies, so that the next text is encoded with new ones."""
        self._held = None

    def with_torch(self, model: Any, compute_dtype: str) -> Any:
        """Return the copy of a model whose weights are laid out for torch; the model itself if it can have none.

        `compute_dtype`: ``"float32"``, which stands for the dtype of the weights, ``"bfloat16"`` or ``"float16"`` (by
        autocast). Several threads may compute with a copy at once.
        """
        copies = self._copies(model)
        if copies is None:
            return model
        if compute_dtype not in copies:
            copies[compute_dtype] = _freeze(model, compute_dtype)
        made = copies[compute_dtype]
        return model if made is None else made

    def with_onnx(self, model: Any, compute_dtype: str) -> Any:
        """Return the copy of a model whose transformer ONNX Runtime runs, in ``"float32"`` or ``"int8"``.

        Raises `Unfit` if there is none: weights that have changed since the first call are not exported again, as each
        step of a training changes them.
        """
        copies = self._copies(model)
        if copies is None:
            raise Unfit("the model has hooks, or other code inside; save it and load it again")
        name = f"onnx {compute_dtype}"
        if name not in copies:
            try:
                copies[name] = self._freeze_onnx(model, compute_dtype)
            except Unfit as unfit:
                logger.info("encoding with torch: %s", unfit)
                copies[name] = unfit
        if isinstance(copies[name], Unfit):
            raise Unfit(str(copies[name]))
        return copies[name]

    def _copies(self, model: Any) -> dict[str, Any] | None:
        """Return the copies of a model as it is; None if other code computes, or looks on, inside it."""
        state = _State.of(model)
        if state is None:
            return None
        held = self._held
        if held is None or not held[0].is_that_of(state):
            held = self._held = state, {}
        return held[1]

    def _freeze_onnx(self, model: Any, compute_dtype: str) -> Any:
        encoder = model[0].model
        fingerprint = encoder_fingerprint(encoder)
        self._fingerprint = self._fingerprint or fingerprint
        if fingerprint != self._fingerprint:
            raise Unfit("the weights have changed since the model was first used; save it and load it again")
        if compute_dtype not in self._sessions:
            try:
                self._sessions[compute_dtype] = OnnxEncoder(stored_export(encoder, compute_dtype, fingerprint))
            except LatelierError as error:
                if model.cpu_backend != "auto" or compute_dtype == "int8":
                    raise
                raise Unfit(str(error)) from error
        session = self._sessions[compute_dtype]

        def replace(module: nn.Module) -> nn.Module | None:
            if module is encoder:
                return OnnxTransformer(encoder, session)
            if type(module) is nn.Linear and module.weight.dtype != torch.float32:  # a session returns float32
                return copy.deepcopy(module).float()
            if is_plain_linear(module) and can_lay_out(torch.float32):
                return _LaidOutLinear(module)
            return None

        return _copy_model(model, replace)


def _freeze(model: Any, compute_dtype: str) -> Any:
    """Return a copy of a model with laid-out weights; None if parts of it keep something from call to call."""
    for module in list(model.modules())[1:]:
        rope = str(module.__dict__.get("rope_type", ""))
        if not type(module).__module__.startswith(_PACKAGES) or any(kind in rope for kind in _CHANGING_ROPE):
            return None
    dtype = getattr(torch, compute_dtype)
    size = sum(module.weight.nbytes for module in model.modules() if is_plain_linear(module))
    if size > _MAX_BYTES or not can_lay_out(dtype):
        return _copy_model(model, lambda module: None)

    def replace(module: nn.Module) -> nn.Module | None:
        if is_plain_linear(module):
            return _LaidOutLinear(module, dtype=dtype)
        if type(module) is BertModel and _is_standard(module):
            return _FrozenBert(module, dtype)
        return None

    return _copy_model(model, replace)


def _copy_model(model: Any, replace: Callable[[nn.Module], nn.Module | None]) -> Any:
    """Return a model with replaced parts inside, which shares all else; parts for which `replace` returns None stay."""
    own = dict(model.__dict__)
    for name in ("forward", "_original_forward", "_frozen", "model_card_data"):  # the last refers to the model
        own.pop(name, None)
    _, *others = own["_modules"].items()
    heads = dict(takewhile(lambda each: type(each[1]) is Dense and is_plain_linear(each[1].linear), others))
    folded = dict(zip(heads, fold(heads.values()), strict=False))
    own["_modules"] = {name: each for name, each in own["_modules"].items() if name in folded or name not in heads}
    own["_modules"].update(folded)
    return _with_children(type(model), own, replace)


def _with_children(kind: type, own: dict[str, Any], replace: Callable[[nn.Module], nn.Module | None]) -> Any:
    children: dict[str, Any] = {}
    for name, child in own["_modules"].items():
        new = None if child is None else replace(child)
        if new is None and child is not None and child._modules:
            new = _with_children(type(child), dict(child.__dict__), replace)
        children[name] = child if new is None else new
    copied: Any = object.__new__(kind)
    copied.__dict__.update({**own, "_modules": children})
    return copied


class _LaidOutLinear(nn.Module):
    """Linear layers that read the same input, all with a bias or all without, with their outputs side by side."""

    def __init__(self, *linears: Any, dtype: torch.dtype = torch.float32, gelu: bool = False) -> None:
        super().__init__()
        self._dtype = dtype
        self.weight = linears[0].weight  # for its dtype, which encoders of pictures ask for
        with torch.no_grad():
            weight = torch.cat([linear.weight for linear in linears]).to(dtype)
            biases = [linear.bias for linear in linears if linear.bias is not None]
            self._bias = torch.cat(biases).to(dtype) if biases else None
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
        self._activation = ("none", "")
        if gelu:
            self._activation = ("gelu", "none")  # exact, rather than approximated by tanh

    def forward(self, input: Tensor) -> Tensor:
        if input.dtype != self._dtype:
            input = input.to(self._dtype)
        name, algorithm = self._activation
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            input.contiguous(), self._weight, self._bias, name, [], algorithm
        )
        return product


class _FrozenLayer(NamedTuple):
    """The weights of one layer of BERT."""

    qkv: _LaidOutLinear
    attention_output: _LaidOutLinear
    attention_norm: nn.LayerNorm
    intermediate: _LaidOutLinear
    output: _LaidOutLinear
    output_norm: nn.LayerNorm


class _FrozenBert(BertModel):
    """A copy of a `BertModel` for which `_is_standard` holds, without its pooled output."""

    def __init__(self, bert: BertModel, dtype: torch.dtype) -> None:
        self.__dict__.update(bert.__dict__)
        self._layers = []
        for layer in bert.encoder.layer:
            attention, after, wide = layer.attention.self, layer.attention.output, layer.intermediate.dense
            self._layers.append(
                _FrozenLayer(
                    qkv=_LaidOutLinear(attention.query, attention.key, attention.value, dtype=dtype),
                    attention_output=_LaidOutLinear(after.dense, dtype=dtype),
                    attention_norm=after.LayerNorm,
                    intermediate=_LaidOutLinear(wide, dtype=dtype, gelu=True),
                    output=_LaidOutLinear(layer.output.dense, dtype=dtype),
                    output_norm=layer.output.LayerNorm,
                )
            )

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Any = None, **options: Any) -> Any:
        known = isinstance(attention_mask, Tensor) and attention_mask.ndim == 2 and input_ids.numel() > 0
        if not known or any(value is not None and name != "return_dict" for name, value in options.items()):
            return super().forward(input_ids, attention_mask, token_type_ids, **options)
        hidden = self._embed(input_ids, token_type_ids)  # (n, length, dim)
        keys = attention_mask.bool()
        mask = None if bool(keys.all()) else keys[:, None, None, :]
        # `forward` rather than the call of each module, which looks for hooks.
        for layer in self._layers:
            attended = self._attend(layer.qkv.forward(hidden), mask)
            hidden = _normalize(layer.attention_norm, hidden + layer.attention_output.forward(attended))
            update = layer.output.forward(layer.intermediate.forward(hidden))
            hidden = _normalize(layer.output_norm, hidden + update)
        return BaseModelOutput(last_hidden_state=hidden)

    def _embed(self, input_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        embeddings = self.embeddings
        if token_type_ids is None:
            types = torch.zeros_like(input_ids)
        else:
            types = token_type_ids
        positions = embeddings.position_ids[:, : input_ids.shape[1]]
        hidden = torch.embedding(embeddings.word_embeddings.weight, input_ids)
        hidden = hidden + torch.embedding(embeddings.token_type_embeddings.weight, types)
        hidden = hidden + torch.embedding(embeddings.position_embeddings.weight, positions)
        return _normalize(embeddings.LayerNorm, hidden)

    def _attend(self, qkv: Tensor, mask: Tensor | None) -> Tensor:
        n, length, width = qkv.shape
        parts = qkv.view(n, length, 3, self.config.num_attention_heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()  # each (n, heads, length, dim of a head)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return attended.transpose(1, 2).reshape(n, length, width // 3)


def _normalize(norm: nn.LayerNorm, input: Tensor) -> Tensor:
    # Without the call of the module and its attributes, which take as long as the arithmetic for one short query.
    parameters = norm._parameters
    return torch.layer_norm(input, norm.normalized_shape, parameters["weight"], parameters["bias"], norm.eps)


def _is_standard(bert: Any) -> bool:
    """Whether `_FrozenBert` computes all that a model is configured to, with layers of transformers' own classes."""
    config = bert.config
    # "eager" returns attention weights; other names stand for other kernels.
    if config.hidden_act != "gelu" or config._attn_implementation != "sdpa":
        return False
    if config.is_decoder or config.add_cross_attention or config.output_hidden_states or config.output_attentions:
        return False
    kinds = {type(module) for module in bert.modules()}
    plain = all(is_plain_linear(module) for module in bert.modules() if type(module) is nn.Linear)
    return plain and all(kind.__module__ in _BERT_MODULES or kind in _BERT_PARTS for kind in kinds)


def is_plain_linear(module: Any) -> bool:
    """Whether a module is torch's own linear layer in float32 on the CPU, not quantised."""
    weight = None
    if type(module) is nn.Linear:
        weight = module._parameters.get("weight")  # None if it is pruned or weight-normed
    return (
        type(weight) is nn.Parameter
        and type(weight.data) is Tensor
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.is_contiguous()
    )


@cache
def can_lay_out(dtype: torch.dtype) -> bool:
    """Whether this build of torch has oneDNN's operators, and they multiply correctly in this dtype."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    linear = nn.utils.skip_init(nn.Linear, 48, 24)  # draws no random numbers
    rows = torch.linspace(-1, 1, 3 * 48).reshape(1, 3, 48)
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for tensor in (linear.weight, linear.bias):
                tensor.copy_(torch.linspace(-1, 1, tensor.numel()).view_as(tensor).sin())
            expected = nn.functional.gelu(linear(rows.to(dtype).float()))
            product = _LaidOutLinear(linear, dtype=dtype, gelu=True).forward(rows).float()
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    return torch.allclose(product, expected, rtol=tolerance, atol=tolerance)
