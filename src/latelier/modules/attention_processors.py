"""The ways to compute attention: explicitly, by torch's fused function, in slices, or with fused projections.

A processor is called with the `Attention` module that owns the weights. Where the queries, keys and values come from
follows from that module's arguments (see `Attention`, *Notes*); a processor only decides how ``softmax(QK^T)V`` is
computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from latelier.arrays import at_least_float32
from latelier.errors import InvalidArgumentError
from latelier.modules.layers import (
    check_mask,
    empty_rows,
    fit_mask,
    is_across_heads,
    pad_mask,
    rotate,
    to_additive,
)
from latelier.utils.checks import check_count

Projected = tuple[Tensor | None, Tensor | None, Tensor | None]


class Heads(NamedTuple):
    """Queries ``(b, heads, lq, d)``, keys and values ``(b, heads, lk, d)``, and which keys a query attends to."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    """As given, ``(b, 1 or heads, 1 or lq, lk)``."""
    causal: bool
    """Query ``i`` attends to keys ``0 .. i`` at most, besides what `mask` says."""

    def full_mask(self) -> Tensor | None:
        """Return the mask with the causal one in it."""
        if not self.causal:
            return self.mask
        queries = self.query.shape[2]
        keys = self.key.shape[2]
        allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=self.query.device).tril()
        if self.mask is None or self.mask.dtype == torch.bool:
            if self.mask is None:
                return allowed
            return self.mask & allowed
        return self.mask.masked_fill(~allowed, -torch.inf)


class Processor(ABC):
    """Base class of the processors: a subclass says how the heads attend.

    Any callable with the signature of `__call__` is accepted as well, so the processors of diffusers run on a module of
    this library.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import Attention, Processor
    >>> class Uniform(Processor):
    ...     def attend(self, attn, heads):
    ...         mean = heads.value.mean(dim=2, keepdim=True)
    ...         return mean.expand_as(heads.query)
    >>> attention = Attention(4, heads=2, dim_head=2, processor=Uniform())
    >>> out = attention(torch.randn(1, 3, 4))
    >>> torch.allclose(out, out[:, :1].expand(1, 3, 4))
    True
    """

    @abstractmethod
    def attend(self, attn: Any, heads: Heads) -> Tensor:
        """Return ``softmax(Q K^T * scale + mask) V`` of each head, ``(b, heads, lq, d)``, for an `Attention` module."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Compute what `Attention.forward` returns.

        `temb`: second image of a spatial norm, ``(b, spatial_norm_dim, h, w)``. `image_rotary_emb`: cosines and sines,
        ``(l, dim_head)`` or ``(b, 1 or heads, l, dim_head)`` each, where queries and keys are one sequence: without a
        context, or in joint attention, with rows for ``[h, c]``.
        """
        heads = self.split(attn, hidden_states, encoder_hidden_states, attention_mask, temb, image_rotary_emb)
        return self.merge(attn, self.attend(attn, heads), hidden_states)

    def project(self, attn: Any, sequence: Tensor, source: Tensor) -> Projected:
        """Return queries of a sequence, and keys and values of a source, ``(b, l, inner)``."""
        if attn.to_k is None:  # only_cross_attention
            return attn.to_q(sequence), None, None
        return attn.to_q(sequence), attn.to_k(source), attn.to_v(source)

    def project_added(self, attn: Any, context: Tensor) -> Projected:
        """Return queries, keys and values that the added projections make of the context."""
        if attn.add_q_proj is None:
            query = None
        else:
            query = attn.add_q_proj(context)
        return query, attn.add_k_proj(context), attn.add_v_proj(context)

    def split(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None,
        attention_mask: Tensor | None,
        temb: Tensor | None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Heads:
        """Normalise and project the inputs, and split the projections into heads."""
        sequence = _to_sequence(attn, hidden_states, temb)
        context = encoder_hidden_states
        if context is not None:
            context = attn.norm_encoder_hidden_states(context)
        if attn.group_norm is not None:
            sequence = attn.group_norm(sequence.transpose(1, 2)).transpose(1, 2)
        added = attn.uses_added
        joint = attn.uses_added and attn.add_q_proj is not None
        if added and context is None and not joint:
            context = _own_context(attn, hidden_states, temb)

        if added or context is None:
            source = sequence
        else:
            source = context
        query, key, value = _to_heads(attn, self.project(attn, sequence, source), attn.norm_q, attn.norm_k)
        following = 0  # keys of the sequence, after those of the context
        if added and context is not None:
            more = _to_heads(attn, self.project_added(attn, context), attn.norm_added_q, attn.norm_added_k)
            if not joint:
                if key is None:
                    following = 0
                else:
                    following = key.shape[2]
                key = _join(more[1], key)
                value = _join(more[2], value)
            else:
                query = _join(query, more[0])
                key = _join(key, more[1])
                value = _join(value, more[2])
        if query is None or key is None or value is None:
            raise InvalidArgumentError("received no encoder_hidden_states; only_cross_attention=True needs them.")
        if image_rotary_emb is not None:
            if context is not None and not joint:
                raise InvalidArgumentError(
                    "received image_rotary_emb with keys of a context, whose positions it does not hold; expected "
                    "queries and keys of one sequence: no context and no added_kv_proj_dim, or joint attention."
                )
            query = rotate(query, image_rotary_emb)
            key = rotate(key, image_rotary_emb)
        if attention_mask is None:
            mask = None
        else:
            mask = _fit(attention_mask, query, key, following)
        groups = query.shape[1] // key.shape[1]  # query heads per key head
        if groups > 1:
            key = key.repeat_interleave(groups, dim=1)
            value = value.repeat_interleave(groups, dim=1)
        return Heads(query, key, value, mask, attn.is_causal and not added)

    def merge(self, attn: Any, attended: Tensor, hidden_states: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Join the heads and apply the output projections, the residual connection and the rescaling."""
        merged = attended.transpose(1, 2).flatten(2)
        if hidden_states.ndim == 3:
            length = hidden_states.shape[1]
        else:
            length = hidden_states.shape[2] * hidden_states.shape[3]
        if attn.add_q_proj is not None and merged.shape[1] > length:
            context = merged[:, length:]
        else:
            context = None
        out = merged[:, :length]
        if attn.to_out is not None:
            for layer in attn.to_out:
                out = layer(out)
        if hidden_states.ndim == 4:
            out = out.transpose(1, 2).unflatten(2, hidden_states.shape[2:])
        if attn.residual_connection:
            out = out + hidden_states
        out = out / attn.rescale_output_factor
        if context is None:
            return out
        return out, context if attn.to_add_out is None else attn.to_add_out(context)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"


def _to_sequence(attn: Any, hidden_states: Tensor, temb: Tensor | None) -> Tensor:
    """Return ``(b, l, channels)``: images are flattened, after the spatial norm."""
    if attn.spatial_norm is not None:
        hidden_states = attn.spatial_norm(hidden_states, temb)
    if hidden_states.ndim == 4:
        return hidden_states.flatten(2).transpose(1, 2)
    return hidden_states


def _own_context(attn: Any, hidden_states: Tensor, temb: Tensor | None) -> Tensor:
    """Return the sequence as its own context; without the group norm, as in diffusers."""
    if attn.added_kv_proj_dim != attn.query_dim:
        raise InvalidArgumentError(
            f"received no encoder_hidden_states; added_kv_proj_dim={attn.added_kv_proj_dim} needs them: "
            f"(batch, length, {attn.added_kv_proj_dim})."
        )
    return _to_sequence(attn, hidden_states, temb)


def _to_heads(attn: Any, projected: Projected, norm_q: Any, norm_k: Any) -> Projected:
    """Split ``(b, l, inner)`` into ``(b, heads, l, dim_head)``, normalising queries and keys before or after."""
    across_heads = is_across_heads(attn.qk_norm)

    def split(tensor: Tensor | None, norm: Any) -> Tensor | None:
        if tensor is None:
            return None
        if norm is not None and across_heads:
            tensor = norm(tensor)
        heads = tensor.unflatten(-1, (-1, attn.head_width)).transpose(1, 2)
        if norm is None or across_heads:
            return heads
        return norm(heads)

    query, key, value = projected
    return split(query, norm_q), split(key, norm_k), split(value, None)


def _join(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Concatenate heads along the sequence."""
    if first is None or second is None:
        if first is None:
            return second
        return first
    return torch.cat([first, second], dim=2)


def _fit(mask: Tensor, query: Tensor, key: Tensor, following: int) -> Tensor:
    """Bring a mask to four dimensions; one of the context alone is padded by the keys that follow."""
    check_mask(mask)
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    if following and mask.shape[-1] == keys - following:
        mask = pad_mask(mask, following)
    return fit_mask(mask, batch, heads, queries, keys)


class ExplicitProcessor(Processor):
    """Attention that computes all probabilities, and returns them on request.

    Memory grows with the square of the sequence's length.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import Attention, ExplicitProcessor
    >>> attention = Attention(
    ...     4, heads=2, dim_head=2, processor=ExplicitProcessor()
    ... )
    >>> mask = torch.tensor([[True, True, False]])
    >>> _, probabilities = attention(
    ...     torch.zeros(1, 3, 4), None, mask, return_probabilities=True
    ... )
    >>> probabilities.shape  # batch, heads, queries, keys
    torch.Size([1, 2, 3, 3])
    >>> probabilities[0, 0, 0].tolist()
    [0.5, 0.5, 0.0]
    """

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
        return_probabilities: bool = False,
    ) -> Any:
        """Compute what `Attention.forward` returns; on request with the probabilities ``(b, heads, queries, keys)``."""
        heads = self.split(attn, hidden_states, encoder_hidden_states, attention_mask, temb, image_rotary_emb)
        probabilities = self._probabilities(attn, heads)
        out = self.merge(attn, probabilities @ heads.value, hidden_states)
        if return_probabilities:
            return (out, probabilities)
        return out

    def attend(self, attn: Any, heads: Heads) -> Tensor:
        """Multiply the probabilities by the values."""
        return self._probabilities(attn, heads) @ heads.value

    def _probabilities(self, attn: Any, heads: Heads) -> Tensor:
        """Return ``(b, heads, queries, keys)``, made by `Attention.get_attention_scores`."""
        batch = heads.query.shape[:2]
        mask = heads.full_mask()
        if mask is not None:
            mask = mask.expand(*batch, -1, -1).flatten(0, 1)
        scores = attn.get_attention_scores(heads.query.flatten(0, 1), heads.key.flatten(0, 1), mask)
        return scores.unflatten(0, batch)


class SDPAProcessor(Processor):
    """Attention by torch's fused kernels (flash or memory-efficient, where the device has them).

    Memory grows with the length of the sequence rather than with its square. `upcast_attention` and `upcast_softmax`
    compute in float32 at least as a whole, because the kernels do not separate the softmax from the products.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import Attention, SDPAProcessor
    >>> attention = Attention(8, heads=2, processor=SDPAProcessor())
    >>> attention(torch.ones(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def attend(self, attn: Any, heads: Heads) -> Tensor:
        """Call the fused kernel."""
        query = heads.query
        key = heads.key
        value = heads.value
        dtype = query.dtype
        if attn.upcast_attention or attn.upcast_softmax:
            query = at_least_float32(query)
            key = at_least_float32(key)
            value = at_least_float32(value)
        mask = None if heads.mask is None else heads.full_mask()
        if mask is None:
            out = F.scaled_dot_product_attention(query, key, value, is_causal=heads.causal, scale=attn.scale)
            return out.to(dtype)
        mask = to_additive(mask, query.dtype)
        empty = empty_rows(mask)
        mask = mask.masked_fill(empty, 0.0)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=attn.scale)
        return out.masked_fill(empty, 0.0).to(dtype)


class FusedProcessor(SDPAProcessor):
    """As `SDPAProcessor`, with fused projections: fewer and larger matrix products.

    Call `Attention.fuse_projections` first.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import Attention, FusedProcessor
    >>> attention, inputs = Attention(8, heads=4, dim_head=2), torch.randn(2, 3, 8)
    >>> expected = attention(inputs)
    >>> attention.fuse_projections()
    >>> attention.set_processor(FusedProcessor())
    >>> torch.allclose(attention(inputs), expected, atol=1e-6)
    True
    """

    def project(self, attn: Any, sequence: Tensor, source: Tensor) -> Projected:
        """Multiply by the fused weights."""
        if attn.to_k is None:  # only_cross_attention: nothing to fuse
            return super().project(attn, sequence, source)
        if attn.is_cross_attention:
            key, value = attn.to_kv(source).chunk(2, dim=-1)
            return attn.to_q(sequence), key, value
        sizes = [attn.inner_dim, attn.inner_kv_dim, attn.inner_kv_dim]
        if source is sequence:
            return attn.to_qkv(sequence).split(sizes, dim=-1)
        # keys and values of another source: their rows alone
        weight = attn.to_qkv.weight
        bias = attn.to_qkv.bias
        first = attn.inner_dim
        query = F.linear(sequence, weight[:first], None if bias is None else bias[:first])
        key, value = F.linear(source, weight[first:], None if bias is None else bias[first:]).chunk(2, dim=-1)
        return query, key, value

    def project_added(self, attn: Any, context: Tensor) -> Projected:
        """Multiply by the fused weights of joint attention; other added projections are not fused."""
        if attn.add_q_proj is None:
            return super().project_added(attn, context)
        return attn.to_added_qkv(context).split([attn.inner_dim, attn.inner_kv_dim, attn.inner_kv_dim], dim=-1)


class SlicedProcessor(Processor):
    """Attention that holds the probabilities of `slice_size` heads at a time.

    Parameters
    ----------
    slice_size
        Heads of the whole batch (``batch * heads`` in all) to compute at a time.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import Attention, SlicedProcessor
    >>> attention, inputs = Attention(8, heads=4, dim_head=2), torch.randn(2, 3, 8)
    >>> expected = attention(inputs)
    >>> attention.set_processor(SlicedProcessor(slice_size=3))
    >>> torch.allclose(attention(inputs), expected, atol=1e-6)
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
