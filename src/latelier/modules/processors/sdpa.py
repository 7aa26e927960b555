"""The default: `torch.nn.functional.scaled_dot_product_attention`, which never holds all scores where it can."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from latelier.arrays import at_least_float32
from latelier.modules.masks import empty_rows, to_additive
from latelier.modules.processors.base import Heads, Processor

__all__ = ["SDPAProcessor"]


class SDPAProcessor(Processor):
    """Attention by torch's fused kernels (flash or memory-efficient, where the device has them).

    Memory grows with the length of the sequence rather than with its square. `upcast_attention` and `upcast_softmax`
    compute in float32 at least as a whole, because the kernels do not separate the softmax from the products.

    Examples
    --------
    Queries of zeros attend to all keys alike: each output is the mean of the values.

    >>> import torch
    >>> from latelier.modules import Attention, SDPAProcessor
    >>> attention = Attention(
    ...     2, heads=1, dim_head=2, processor=SDPAProcessor()
    ... )
    >>> state = attention.state_dict()
    >>> _ = state["to_q.weight"].zero_(), state["to_out.0.bias"].zero_()
    >>> for name in ["to_v.weight", "to_out.0.weight"]:
    ...     _ = state[name].copy_(torch.eye(2))
    >>> attention(torch.tensor([[[1.0, 2.0], [3.0, 6.0]]])).tolist()
    [[[2.0, 4.0], [2.0, 4.0]]]
    """

    def attend(self, attn: Any, heads: Heads) -> Tensor:
        """Call the fused kernel."""
        query, key, value = heads.query, heads.key, heads.value
        dtype = query.dtype
        if attn.upcast_attention or attn.upcast_softmax:
            query, key, value = at_least_float32(query), at_least_float32(key), at_least_float32(value)
        mask = None if heads.mask is None else heads.full_mask()
        if mask is None:
            out = F.scaled_dot_product_attention(query, key, value, is_causal=heads.causal, scale=attn.scale)
            return out.to(dtype)
        mask = to_additive(mask, query.dtype)
        empty = empty_rows(mask)
        mask = mask.masked_fill(empty, 0.0)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=attn.scale)
        return out.masked_fill(empty, 0.0).to(dtype)
