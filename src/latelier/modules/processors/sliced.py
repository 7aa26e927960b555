"""The formula for a few heads at a time: less memory, more time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from latelier.modules.processors.base import Heads, Processor
from latelier.utils import check_count

__all__ = ["SlicedProcessor"]


class SlicedProcessor(Processor):
    """Attention that holds the probabilities of `slice_size` heads at a time.

    Parameters
    ----------
    slice_size
        Heads of the whole batch (``batch * heads`` in all) to compute at a time.

    Raises
    ------
    InvalidArgumentError
        If the size is not a positive integer.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import Attention, SlicedProcessor
    >>> attention = Attention(8, heads=4, dim_head=2)
    >>> hidden_states = torch.randn(2, 3, 8)
    >>> expected = attention(hidden_states)
    >>> attention.set_processor(SlicedProcessor(slice_size=3))
    >>> torch.allclose(attention(hidden_states), expected, atol=1e-6)
    True
    """

    def __init__(self, slice_size: int) -> None:
        self.slice_size = check_count("slice_size", slice_size)

    def attend(self, attn: Any, heads: Heads) -> Tensor:
        """Compute the heads slice by slice."""
        batch = heads.query.shape[:2]
        query, key, value = (tensor.flatten(0, 1) for tensor in heads[:3])
        mask = heads.full_mask()
        if mask is not None:
            mask = mask.expand(*batch, -1, -1).flatten(0, 1)
        parts = []
        for start in range(0, query.shape[0], self.slice_size):
            part = slice(start, start + self.slice_size)
            scores = attn.get_attention_scores(query[part], key[part], None if mask is None else mask[part])
            parts.append(scores @ value[part])
        return torch.cat(parts).unflatten(0, batch)
