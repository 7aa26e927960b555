"""Attention over packed texts: the tokens of many texts in one row, each attending to its own text alone.

A function registered with transformers calls torch's kernels for variable lengths (flash attention, torch 2.11 and
later) while texts are packed in the running thread; other threads attend as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from inspect import signature
from threading import Lock
from typing import Any, NamedTuple

from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

__all__ = ["Packing", "packed_attention", "varlen_kernel"]

_NAME = "latelier_packed"


class Packing(NamedTuple):
    """Where the texts of a packed row begin and end: ``(n + 1,)`` int32 on the device, and their greatest length."""

    offsets: Tensor
    longest: int


_packing: ContextVar[Packing | None] = ContextVar("packing", default=None)
# How many threads have switched the attention of a configuration, and what it was before.
_switched: dict[int, tuple[int, str]] = {}
_lock = Lock()


@cache
def varlen_kernel() -> Callable[..., Any] | None:
    """Return torch's attention over variable lengths; None if this torch has none, or none with windows."""
    try:
        from torch.nn.attention.varlen import varlen_attn  # slow to import
    except ImportError:
        return None
    return varlen_attn if {"scale", "window_size"} <= signature(varlen_attn).parameters.keys() else None


@contextmanager
def packed_attention(config: Any, packing: Packing) -> Iterator[None]:
    """Let an encoder attend within the texts of a packed row inside the block, in this thread.

    Parameters
    ----------
    config
        The configuration of the encoder, whose attention is ``"sdpa"``.
    packing
        The texts.
    """
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, _mask)
    token = _packing.set(packing)
    _switch(config)
    try:
        yield
    finally:
        _switch_back(config)
        _packing.reset(token)


def _switch(config: Any) -> None:
    with _lock:
        count, before = _switched.get(id(config), (0, config._attn_implementation))
        _switched[id(config)] = (count + 1, before)
        config._attn_implementation = _NAME


def _switch_back(config: Any) -> None:
    with _lock:
        count, before = _switched.pop(id(config))
        if count > 1:
            _switched[id(config)] = (count - 1, before)
        else:
            config._attn_implementation = before


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend within packed texts; where none are packed, as transformers does by default.

    Parameters
    ----------
    module
        The attention module.
    query, key, value
        ``(1, heads, tokens, dim of a head)``.
    attention_mask
        None for packed texts.
    **options
        ``scaling``; ``sliding_window``, one more than the distance that a token sees to either side.

    Returns
    -------
    tuple
        ``(1, tokens, heads, dim of a head)``, and no weights.
    """
    packing, attend = _packing.get(), varlen_kernel()
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
    return None if _packing.get() is not None else ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](*args, **options)
