"""Queries, keys and values by one matrix product, of the weights that `Attention.fuse_projections` concatenates."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from latelier.errors import InvalidArgumentError
from latelier.modules.processors.base import Projected
from latelier.modules.processors.sdpa import SDPAProcessor

__all__ = ["FusedProcessor"]


class FusedProcessor(SDPAProcessor):
    """As `SDPAProcessor`, with fused projections: fewer and larger matrix products.

    Call `Attention.fuse_projections` first.

    Raises
    ------
    InvalidArgumentError
        When called by a module whose projections are not fused.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import Attention, FusedProcessor
    >>> attention = Attention(8, heads=4, dim_head=2)
    >>> hidden_states = torch.randn(2, 3, 8)
    >>> expected = attention(hidden_states)
    >>> attention.fuse_projections()
    >>> attention.set_processor(FusedProcessor())
    >>> torch.allclose(attention(hidden_states), expected, atol=1e-6)
    True
    >>> attention.to_qkv.weight.shape
    torch.Size([24, 8])
    """

    def project(self, attn: Any, sequence: Tensor, source: Tensor) -> Projected:
        """Multiply by the fused weights."""
        if not attn.fused_projections:
            raise InvalidArgumentError(
                "received a FusedProcessor for an Attention without fused projections; call fuse_projections() first."
            )
        if attn.to_k is None:  # only_cross_attention: nothing to fuse
            return super().project(attn, sequence, source)
        if attn.is_cross_attention:
            key, value = attn.to_kv(source).chunk(2, dim=-1)
            return attn.to_q(sequence), key, value
        sizes = [attn.inner_dim, attn.inner_kv_dim, attn.inner_kv_dim]
        if source is sequence:
            return attn.to_qkv(sequence).split(sizes, dim=-1)
        weight, bias = attn.to_qkv.weight, attn.to_qkv.bias  # keys and values of another source: their rows alone
        first = attn.inner_dim
        query = F.linear(sequence, weight[:first], None if bias is None else bias[:first])
        key, value = F.linear(source, weight[first:], None if bias is None else bias[first:]).chunk(2, dim=-1)
        return query, key, value

    def project_added(self, attn: Any, context: Tensor) -> Projected:
        """Multiply by the fused weights of joint attention; other added projections are not fused."""
        if attn.add_q_proj is None:
            return super().project_added(attn, context)
        return attn.to_added_qkv(context).split([attn.inner_dim, attn.inner_kv_dim, attn.inner_kv_dim], dim=-1)
