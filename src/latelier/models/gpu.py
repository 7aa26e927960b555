"""Batches without padding on a GPU, where the attention has a kernel for them.

A function registered with transformers calls torch's kernels for variable lengths (flash attention, torch 2.11 and
later) while texts are packed in the running thread; other threads attend as before.

A batch of a GPU has tens of thousands of tokens, so its texts differ in length, and padded attention needs a mask, with
which torch's flash attention does not run. Batches are texts in their order, and all that depends on token ids alone
(positions, which tokens are scored) is computed on the CPU: the GPU is never waited for.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from inspect import signature
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import Tensor, nn
from transformers import BertModel, ModernBertModel, RobertaModel, XLMRobertaModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from latelier.models.onnx_export import Unfit
from latelier.models.pooling import switched_attention
from latelier.utils.batching import lengths_to_offsets

_NAME = "latelier_packed"
_Result = TypeVar("_Result")


class Packing(NamedTuple):
    """Where the texts of a packed row begin and end: ``(n + 1,)`` int32 on the device, and their greatest length."""

    offsets: Tensor
    longest: int


_packing: ContextVar[Packing | None] = ContextVar("packing", default=None)


@cache
def varlen_kernel() -> Callable[..., Any] | None:
    """Return torch's attention over variable lengths; None if this torch has none, or none with windows."""
    try:
        from torch.nn.attention.varlen import varlen_attn  # slow to import
    except ImportError:
        return None
    if {"scale", "window_size"} <= signature(varlen_attn).parameters.keys():
        return varlen_attn
    return None


@contextmanager
def packed_attention(config: Any, packing: Packing) -> Iterator[None]:
    """Let an encoder attend within the texts of a packed row inside the block, in this thread.

    `config`: the configuration of the encoder, whose attention is ``"sdpa"``.
    """
    token = _packing.set(packing)
    try:
        with switched_attention(config, _NAME, _attend, _mask):
            yield
    finally:
        _packing.reset(token)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend within packed texts; where none are packed, as transformers does by default.

    `query`, `key`, `value`: ``(1, heads, tokens, dim of a head)``. `attention_mask`: None for packed texts.
    `**options`: ``scaling``; ``sliding_window``, one more than the distance that a token sees to either side. Returns:
    ``(1, tokens, heads, dim of a head)``, and no weights.
    """
    packing = _packing.get()
    attend = varlen_kernel()
    if packing is None or attend is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    reach = (options.get("sliding_window") or 0) - 1
    offsets, longest = packing
    rows = [states.squeeze(0).transpose(0, 1) for states in (query, key, value)]  # (tokens, heads, dim of a head)
    attended = attend(
        *rows, offsets, offsets, longest, longest, scale=options.get("scaling"), window_size=(reach, reach)
    )
    return attended.unsqueeze(0), None


def _mask(*args: Any, **options: Any) -> Any:
    """Return no mask for packed texts: one of all pairs of tokens of a batch would not fit into memory."""
    if _packing.get() is not None:
        return None
    return ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](*args, **options)


# Modules after the encoder that treat each token alone; masks are computed on the CPU.
_TOKENWISE = (Dense, MultiVectorMask, Normalize)
# Encoders, and whether their positions start after the id of the padding token rather than at 0.
_ENCODERS: dict[type[nn.Module], bool] = {
    BertModel: False,
    ModernBertModel: False,
    RobertaModel: True,
    XLMRobertaModel: True,
}
_FEATURES = {"input_ids", "attention_mask", "token_type_ids"}
_HALF = (torch.bfloat16, torch.float16)
# Lengths of the random texts that are encoded both ways before a model is trusted to this module, and how close the
# vectors have to be: both are rounded to half precision. Vectors of other texts' tokens have cosines far below.
_CHECKED_LENGTHS = (5, 300, 17, 150)
_LEAST_COSINE = 0.99

_checked: WeakKeyDictionary[nn.Module, dict[Any, bool]] = WeakKeyDictionary()
logger = logging.getLogger(__name__)


def check_unpadded(
    model: MultiVectorEncoder,
    features: Mapping[str, Any],
    task: str,
    device: torch.device,
    dtype: str | None,
    encode_padded: Callable[[dict[str, Any]], tuple[Tensor, Tensor]],
) -> None:
    """Raise `Unfit` unless texts with these features are to be encoded by `encode_unpadded`.

    They are on a GPU with bfloat16, in half precision, by BERT, ModernBERT, RoBERTa or XLM-RoBERTa with their own
    attention, without pooling modules, and random texts have the same vectors both ways.
    """
    if not _has_kernel(model, device, dtype):
        raise Unfit("it needs a GPU with bfloat16, half precision, and torch's attention over variable lengths")
    if not _can_pack(model):
        raise Unfit("the model has another encoder, attention or modules than it knows")
    tensors = {name for name, value in features.items() if isinstance(value, Tensor) and value.ndim > 1}
    if not tensors <= _FEATURES or len(features["input_ids"]) == 1:
        raise Unfit("one text needs no padding, and texts with other features than token ids are not known")
    encoder: Any = model[0].model
    known = _checked.setdefault(encoder, {})
    key = (str(device), model.dtype, dtype)
    if key not in known:
        known[key] = _agrees(model, task, device, encode_padded)
    if not known[key]:
        raise Unfit("random texts have other vectors without padding")


def packed_batches(lengths: np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """Yield the positions of texts, in order, in batches of at most `max_tokens` tokens, or of one longer text."""
    ends = np.cumsum(lengths)
    start = 0
    before = 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, before + max_tokens, side="right")))
        yield np.arange(start, stop)
        start = stop
        before = int(ends[stop - 1])


def encode_unpadded(
    model: MultiVectorEncoder, features: Mapping[str, Any], rows: np.ndarray, task: str, device: torch.device
) -> tuple[Tensor, list[int]]:
    """Return the ``(tokens, dim)`` vectors of some texts of a window, and how many each has, still being computed.

    `model`: a model for which `is_unpadded` holds.
    """
    index = torch.from_numpy(rows)
    used = features["attention_mask"][index].bool()
    packed = {
        name: value[index][used][None]
        for name, value in features.items()
        if isinstance(value, Tensor) and name in _FEATURES
    }
    lengths = used.sum(dim=1).numpy()
    offsets = lengths_to_offsets(lengths)
    scored = _scored(model, packed, task)
    kept = np.diff(lengths_to_offsets(scored)[offsets])
    positions = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + _first_position(model)
    del packed["attention_mask"]
    packed["position_ids"] = torch.from_numpy(positions)[None]
    packing = Packing(_send(torch.from_numpy(offsets.astype("int32")), device), int(lengths.max()))
    out: dict[str, Any] = {name: _send(value, device) for name, value in packed.items()}
    encoder: Any = model[0]
    with packed_attention(encoder.model.config, packing):
        for module in model:
            if not isinstance(module, MultiVectorMask):
                out = module(out)
    vectors = out["token_embeddings"].squeeze(0)
    if not scored.all():
        vectors = vectors.index_select(0, _send(torch.from_numpy(scored.nonzero()[0]), device))
    return vectors, kept.tolist()


def _has_kernel(model: MultiVectorEncoder, device: torch.device, dtype: str | None) -> bool:
    if device.type != "cuda":
        return False
    if dtype in ("bfloat16", "float16"):
        computed = getattr(torch, dtype)
    else:
        computed = model.dtype
    if computed not in _HALF or varlen_kernel() is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _can_pack(model: MultiVectorEncoder) -> bool:
    """Whether the modules of a model treat the texts of a packed row as those of a batch."""
    transformer: Any = model[0]
    encoder: Any = getattr(transformer, "model", None)
    if type(transformer) is not Transformer or type(encoder) not in _ENCODERS:
        return False
    # ModernBERT of transformers 5.0 knows no other attention than its own.
    if not hasattr(sys.modules[type(encoder).__module__], "ALL_ATTENTION_FUNCTIONS"):
        return False
    config = encoder.config
    plain = config._attn_implementation in ("sdpa", "latelier_packed") and not getattr(config, "is_decoder", False)
    plain = plain and not (config.output_hidden_states or config.output_attentions)
    head_dim = config.hidden_size // config.num_attention_heads
    plain = plain and head_dim % 8 == 0 and head_dim <= 256  # what the kernel takes
    plain = plain and transformer.module_output_name == "token_embeddings"
    known = all(type(module) in _TOKENWISE for module in list(model)[1:])
    return plain and known and not any(map(_is_watched, [model, *model, encoder]))


def _is_watched(module: Any) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks) or module._compiled_call_impl is not None


def _first_position(model: MultiVectorEncoder) -> int:
    encoder: Any = model[0].model
    if _ENCODERS[type(encoder)]:
        return int(encoder.config.pad_token_id) + 1
    return 0


def _scored(model: MultiVectorEncoder, packed: dict[str, Any], task: str) -> np.ndarray:
    """Return which tokens of a packed row have a vector, ``(tokens,)`` bool."""
    features = {name: packed[name] for name in ("input_ids", "attention_mask")}
    for module in model:
        if isinstance(module, MultiVectorMask):
            features = module(features, task=task)
    scored: np.ndarray = features["attention_mask"][0].bool().numpy()
    return scored


def _send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; to a GPU from pinned memory, without waiting."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _agrees(
    model: MultiVectorEncoder,
    task: str,
    device: torch.device,
    encode_padded: Callable[[dict[str, Any]], tuple[Tensor, Tensor]],
) -> bool:
    """Whether random texts have the same vectors packed as padded."""
    encoder: Any = model[0].model
    longest = int(encoder.config.max_position_embeddings) - _first_position(model)
    lengths = torch.tensor([min(length, longest) for length in _CHECKED_LENGTHS])
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(encoder.config.vocab_size, (len(lengths), int(lengths.max())), generator=generator)
    # The padding id stands for padding in RoBERTa's positions.
    ids = ids.masked_fill(ids == encoder.config.pad_token_id, (encoder.config.pad_token_id or 0) + 1)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    ids = ids.masked_fill(mask == 0, encoder.config.pad_token_id or 0)
    features = {"input_ids": ids, "attention_mask": mask}
    expected, _ = encode_padded(dict(features))
    found, _ = encode_unpadded(model, features, np.arange(len(lengths)), task, device)
    cosines = torch.cosine_similarity(found.float(), expected.float(), dim=-1)
    least = cosines.min().item() if len(cosines) else 1.0
    if least >= _LEAST_COSINE:
        return True
    logger.warning(
        "a token vector of this model has a cosine of %.4f without padding, so its batches are padded.", least
    )
    return False


def start_copy(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Start to copy tensors to host memory.

    `tensors`: tensors on one device. Those of a CUDA device are copied in the order of its work, without waiting for
    it.
    """
    if not tensors or tensors[0].device.type != "cuda":
        return lambda: [tensor.cpu() for tensor in tensors]
    pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    with torch.cuda.device(tensors[0].device):
        for host, tensor in zip(pinned, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        done = torch.cuda.Event()
        done.record()

    def wait() -> list[Tensor]:
        done.synchronize()
        # Pinned memory is scarce and goes back to torch's pool: the next window is copied through it.
        return [host.clone() for host in pinned]

    return wait


def one_behind(started: Iterable[Callable[[], _Result]]) -> Iterator[_Result]:
    """Yield the results of what was started, each after the next one has been started."""
    finish: Callable[[], _Result] | None = None
    for following in started:
        if finish is not None:
            yield finish()
        finish = following
    if finish is not None:
        yield finish()
