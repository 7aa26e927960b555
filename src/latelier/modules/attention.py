"""`Attention`: multi-head attention over a sequence, a context or both, with the parameter names of diffusers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from latelier.arrays import at_least_float32
from latelier.errors import InvalidArgumentError
from latelier.modules.attention_processors import SDPAProcessor, SlicedProcessor
from latelier.modules.layers import (
    CrossAttentionNorm,
    QKNorm,
    SpatialNorm,
    check_mask,
    empty_rows,
    make_added_qk_norms,
    make_cross_norm,
    make_qk_norms,
    pad_mask,
    show_arguments,
    to_additive,
)
from latelier.utils.checks import check_count

_OLDER_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}


def concatenate_layers(layers: list[nn.Linear]) -> nn.Linear:
    """Return a linear layer whose outputs are those of several layers, one after the other."""
    weight = torch.cat([layer.weight for layer in layers])
    if layers[0].bias is None:
        bias = None
    else:
        bias = torch.cat([layer.bias for layer in layers])
    outputs, inputs = weight.shape
    fused = skip_init(  # draws no random numbers
        nn.Linear, inputs, outputs, bias=bias is not None, device=weight.device, dtype=weight.dtype
    )
    fused.weight.copy_(weight)
    if bias is not None:
        fused.bias.copy_(bias)
    return fused


def split_layer(fused: nn.Linear, layers: list[nn.Linear]) -> None:
    """Copy the weights of a layer made by `concatenate_layers` into the layers that it was made of."""
    sizes = [layer.weight.shape[0] for layer in layers]
    for layer, weight in zip(layers, fused.weight.split(sizes), strict=True):
        layer.weight.copy_(weight)
    if fused.bias is not None:
        for layer, bias in zip(layers, fused.bias.split(sizes), strict=True):
            layer.bias.copy_(bias)


class Attention(nn.Module):
    """Multi-head attention over a sequence, a context or both: ``softmax(Q K^T / sqrt(dim_head)) V W_O``.

    A `state_dict` of ``diffusers.models.attention_processor.Attention`` with the same arguments loads as it is.

    Parameters
    ----------
    query_dim
        Channels of `hidden_states`.
    cross_attention_dim
        Channels of `encoder_hidden_states`; None: `query_dim`.
    heads, dim_head
        Number of heads, and channels of each.
    kv_heads
        Heads of the keys and values, a divisor of `heads`: query head ``i`` uses key head ``i // (heads / kv_heads)``.
        1: multi-query attention; None: `heads`.
    dropout
        Probability of dropout on the output, between 0 and 1.
    bias, out_bias, added_proj_bias
        Whether the projections to queries, keys and values, the output projections and the added projections have a
        bias.
    upcast_attention, upcast_softmax
        Compute the scores, or the softmax alone, in float32 at least.
    cross_attention_norm
        Norm of the context: ``"layer_norm"`` or ``"group_norm"``; None: no norm.
    cross_attention_norm_num_groups
        Groups of that group norm.
    qk_norm
        Norm of queries and keys: ``"layer_norm"``, ``"fp32_layer_norm"``, ``"rms_norm"`` or ``"l2"`` of each head;
        ``"layer_norm_across_heads"`` or ``"rms_norm_across_heads"`` of all heads together. None: no norm.
    added_kv_proj_dim
        Channels of a context with key and value projections of its own; see *Notes*. With `cross_attention_dim` and
        without a processor, they only add weights, as in diffusers.
    norm_num_groups
        Groups of a group norm of `hidden_states`; None: no norm.
    spatial_norm_dim
        Channels of the condition of a spatial norm, which is passed as ``temb``; None: no norm.
    scale_qk
        Divide the scores by ``sqrt(dim_head)``.
    only_cross_attention
        Attend to the added keys and values only.
    eps
        Added to the variances in the norms of `hidden_states`, queries and keys.
    rescale_output_factor
        Divisor of the output, the residual included.
    residual_connection
        Add `hidden_states` to the output.
    _from_deprecated_attn_block
        Load the older parameter names ``query``, ``key``, ``value`` and ``proj_attn`` too.
    processor
        How the attention is computed; None: `SDPAProcessor`.
    out_dim
        Channels of the output and of all heads together: ``out_dim // dim_head`` heads, with more than `dim_head`
        channels each if it is no multiple of it. None: `query_dim`.
    out_context_dim
        Channels of the context's output in joint attention; None: `query_dim`.
    context_pre_only
        None: the added projections make keys and values alone. Otherwise joint attention, and the context's output is
        projected (False) or not (True). Without `added_kv_proj_dim`, False only adds the weights ``to_add_out``.
    pre_only
        No output projection.
    elementwise_affine
        Whether the norms of queries and keys per head have weights.
    is_causal
        Query ``i`` attends to keys ``0 .. i``; without effect with `added_kv_proj_dim`, as a context has no order.

    Raises
    ------
    InvalidArgumentError
        If a norm has a name that is not listed here, `only_cross_attention` comes without `added_kv_proj_dim`, or
        `out_dim` cannot be divided among heads.

    Notes
    -----
    Where queries (Q), keys and values (KV) come from, with ``h`` for `hidden_states`, ``c`` for `encoder_hidden_states`
    and ``[ , ]`` for concatenation along the sequence:

    ====================================  ============  ==================  =================
    arguments                             Q             KV                  returns
    ====================================  ============  ==================  =================
    no context given                      h             h                   output of h
    context given                         h             c                   output of h
    ``added_kv_proj_dim``                 h             [c, h]              output of h
    and ``only_cross_attention``          h             c                   output of h
    and ``context_pre_only`` not None     [h, c]        [h, c]              outputs of h and c
    ====================================  ============  ==================  =================

    A query whose keys are all masked gets zeros before the output projection.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import Attention
    >>> _ = torch.manual_seed(0)
    >>> attention = Attention(16, heads=2, dim_head=8).eval()
    >>> tokens = torch.randn(1, 3, 16)
    >>> out = attention(tokens)
    >>> out.shape, round(out.mean().item(), 2)
    (torch.Size([1, 3, 16]), -0.13)

    With a mask of the first two tokens, the third has no influence:

    >>> mask = torch.tensor([[True, True, False]])
    >>> changed = tokens.clone()
    >>> changed[:, 2] = 100.0
    >>> out = attention(tokens, attention_mask=mask)
    >>> other = attention(changed, attention_mask=mask)
    >>> torch.equal(out[:, :2], other[:, :2])
    True
    """

    def __init__(
        self,
        query_dim: int,
        cross_attention_dim: int | None = None,
        heads: int = 8,
        kv_heads: int | None = None,
        dim_head: int = 64,
        dropout: float = 0.0,
        bias: bool = False,
        upcast_attention: bool = False,
        upcast_softmax: bool = False,
        cross_attention_norm: CrossAttentionNorm | None = None,
        cross_attention_norm_num_groups: int = 32,
        qk_norm: QKNorm | None = None,
        added_kv_proj_dim: int | None = None,
        added_proj_bias: bool | None = True,
        norm_num_groups: int | None = None,
        spatial_norm_dim: int | None = None,
        out_bias: bool = True,
        scale_qk: bool = True,
        only_cross_attention: bool = False,
        eps: float = 1e-5,
        rescale_output_factor: float = 1.0,
        residual_connection: bool = False,
        _from_deprecated_attn_block: bool = False,
        processor: Callable[..., Any] | None = None,
        out_dim: int | None = None,
        out_context_dim: int | None = None,
        context_pre_only: bool | None = None,
        pre_only: bool = False,
        elementwise_affine: bool = True,
        is_causal: bool = False,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__", "processor")}
        super().__init__()
        if only_cross_attention and added_kv_proj_dim is None:
            raise InvalidArgumentError("received only_cross_attention=True without added_kv_proj_dim; give both.")
        self._arguments = arguments
        self.dropout = dropout
        self.eps = eps
        self.qk_norm = qk_norm
        self._set_sizes(query_dim, cross_attention_dim, heads, kv_heads, dim_head, out_dim, out_context_dim)
        self.use_bias = bias
        self.added_proj_bias = bool(added_proj_bias)
        self.upcast_attention = upcast_attention
        self.upcast_softmax = upcast_softmax
        self.scale_qk = scale_qk
        self.scale = self.head_width**-0.5 if scale_qk else 1.0
        self.added_kv_proj_dim = added_kv_proj_dim
        self.only_cross_attention = only_cross_attention
        self.context_pre_only = context_pre_only
        self.pre_only = pre_only
        self.is_causal = bool(is_causal)
        self.residual_connection = residual_connection
        self.rescale_output_factor = rescale_output_factor
        self._from_deprecated_attn_block = _from_deprecated_attn_block
        self.fused_projections = False
        self._make_norms(
            norm_num_groups,
            spatial_norm_dim,
            cross_attention_norm,
            cross_attention_norm_num_groups,
            affine=elementwise_affine,
        )
        self._make_projections(out_bias)
        self.norm_added_q, self.norm_added_k = make_added_qk_norms(
            None if added_kv_proj_dim is None else qk_norm, dim_head, self.kv_heads, eps, affine=elementwise_affine
        )
        self.set_processor(SDPAProcessor() if processor is None else processor)
        if processor is None and self.is_cross_attention and not only_cross_attention:
            self.uses_added = False

    def _set_sizes(
        self,
        query_dim: int,
        cross_attention_dim: int | None,
        heads: int,
        kv_heads: int | None,
        dim_head: int,
        out_dim: int | None,
        out_context_dim: int | None,
    ) -> None:
        """Keep the numbers of channels and heads, under the names that they have in diffusers."""
        self.query_dim = query_dim
        self.dim_head = dim_head
        self.heads = heads if out_dim is None else out_dim // dim_head
        self.kv_heads = self.heads if kv_heads is None else kv_heads
        self.inner_dim = dim_head * self.heads if out_dim is None else out_dim
        if self.heads < 1 or self.inner_dim % self.heads:
            raise InvalidArgumentError(
                f"received out_dim={out_dim} and dim_head={dim_head}; expected an out_dim that its out_dim // dim_head "
                "heads divide, such as a multiple of dim_head."
            )
        self.head_width = self.inner_dim // self.heads
        if self.head_width != dim_head and (kv_heads is not None or self.qk_norm is not None):
            raise InvalidArgumentError(
                f"received out_dim={out_dim} and dim_head={dim_head}, which make heads of {self.head_width} channels, "
                "with kv_heads or qk_norm, which need heads of dim_head channels; give a multiple of dim_head."
            )
        self.inner_kv_dim = self.head_width * self.kv_heads
        self.sliceable_head_dim = self.heads
        self.is_cross_attention = cross_attention_dim is not None
        self.cross_attention_dim = query_dim if cross_attention_dim is None else cross_attention_dim
        self.out_dim = query_dim if out_dim is None else out_dim
        self.out_context_dim = query_dim if out_context_dim is None else out_context_dim

    def _make_norms(
        self,
        groups: int | None,
        spatial_dim: int | None,
        cross_norm: CrossAttentionNorm | None,
        cross_groups: int,
        *,
        affine: bool,
    ) -> None:
        """Create all norms but the added ones; before the projections, as a seed gives both their weights."""
        if groups is None:
            self.group_norm = None
        else:
            self.group_norm = nn.GroupNorm(groups, self.query_dim, self.eps)
        if spatial_dim is None:
            self.spatial_norm = None
        else:
            self.spatial_norm = SpatialNorm(self.query_dim, spatial_dim)
        self.norm_q, self.norm_k = make_qk_norms(
            self.qk_norm, self.dim_head, self.heads, self.kv_heads, self.eps, affine=affine
        )
        self.norm_cross = make_cross_norm(cross_norm, self.cross_attention_dim, self.added_kv_proj_dim, cross_groups)

    def _make_projections(self, out_bias: bool) -> None:
        """Create the linear layers, in the order in which a seed gives them the weights of diffusers."""
        inner = self.inner_dim
        inner_kv = self.inner_kv_dim
        context = self.cross_attention_dim
        added = self.added_kv_proj_dim
        joint = added is not None and self.context_pre_only is not None
        self.to_q = nn.Linear(self.query_dim, inner, bias=self.use_bias)
        if self.only_cross_attention:
            self.to_k = None
            self.to_v = None
        else:
            self.to_k = nn.Linear(context, inner_kv, bias=self.use_bias)
            self.to_v = nn.Linear(context, inner_kv, bias=self.use_bias)
        bias = self.added_proj_bias
        if added is None:
            self.add_k_proj = None
            self.add_v_proj = None
        else:
            self.add_k_proj = nn.Linear(added, inner_kv, bias=bias)
            self.add_v_proj = nn.Linear(added, inner_kv, bias=bias)
        self.add_q_proj = nn.Linear(added, inner, bias=bias) if joint and added is not None else None
        if self.pre_only:
            self.to_out = None
        else:
            self.to_out = nn.ModuleList([nn.Linear(inner, self.out_dim, bias=out_bias), nn.Dropout(self.dropout)])
        projected = self.context_pre_only is not None and not self.context_pre_only
        self.to_add_out = nn.Linear(inner, self.out_context_dim, bias=out_bias) if projected else None

    def extra_repr(self) -> str:
        """Return the constructor's arguments that differ from their defaults, and a processor that does."""
        shown = show_arguments(self, self._arguments)
        if type(self.processor) is SDPAProcessor:
            return shown
        return f"{shown}, processor={self.processor!r}"

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **cross_attention_kwargs: Any,
    ) -> Any:
        """Attend.

        Parameters
        ----------
        hidden_states
            Sequences ``(b, l, query_dim)``, or images ``(b, query_dim, h, w)``: sequences of ``h * w``.
        encoder_hidden_states
            Context ``(b, l', cross_attention_dim)``, or ``(b, l', added_kv_proj_dim)`` for the added projections;
            None: self-attention.
        attention_mask
            Boolean (True: attend) or added to the scores: ``(b, keys)``, ``(b, 1 or queries, keys)``,
            ``(b * heads, 1 or queries, keys)`` or ``(b, 1 or heads, 1 or queries, keys)``. The keys are those of the
            table in *Notes*, in that order; a mask of ``c`` alone leaves ``h`` unmasked in ``[c, h]``. None: no
            mask.
        **cross_attention_kwargs
            Passed to the processor: ``temb``, the condition of a spatial norm, ``(b, spatial_norm_dim, h, w)``;
            ``image_rotary_emb``, rotary positions, see `RotaryPositions.table`; or ``return_probabilities`` of
            `ExplicitProcessor`.

        Returns
        -------
        Tensor or tuple of Tensor
            ``(b, l, out_dim)`` or ``(b, out_dim, h, w)``; in joint attention with a context also the context's output,
            ``(b, l', out_context_dim)``.

        Raises
        ------
        InvalidArgumentError
            If a shape or a mask does not fit.
        """
        shape = tuple(hidden_states.shape)
        if len(shape) not in (3, 4) or shape[-1 if len(shape) == 3 else 1] != self.query_dim:
            raise InvalidArgumentError(
                f"received hidden_states of shape {shape}; expected (batch, length, {self.query_dim}) or "
                f"(batch, {self.query_dim}, height, width)."
            )
        return self.processor(
            self,
            hidden_states,
            encoder_hidden_states=encoder_hidden_states,
            attention_mask=attention_mask,
            **cross_attention_kwargs,
        )

    def get_attention_scores(self, query: Tensor, key: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return ``softmax(Q K^T * scale + mask)``; a row of masked keys is 0.

        Parameters
        ----------
        query
            ``(n, lq, dim_head)``, `n` usually being ``batch * heads``.
        key
            ``(n, lk, dim_head)``.
        attention_mask
            Boolean or additive, broadcast to ``(n, lq, lk)``; None: no key is masked.

        Returns
        -------
        torch.Tensor
            ``(n, lq, lk)`` in the dtype of `query`.
        """
        dtype = query.dtype
        if self.upcast_attention:
            query = at_least_float32(query)
            key = at_least_float32(key)
        scores = query @ key.transpose(-1, -2) * self.scale
        if attention_mask is not None:
            scores = scores + to_additive(attention_mask, scores.dtype)
        if self.upcast_softmax:
            scores = at_least_float32(scores)
        if attention_mask is None:
            return scores.softmax(dim=-1).to(dtype)
        empty = empty_rows(scores)
        return scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0).to(dtype)

    def prepare_attention_mask(
        self, attention_mask: Tensor | None, target_length: int, batch_size: int, out_dim: int = 3
    ) -> Tensor | None:
        """Repeat a mask ``(b, 1 or queries, keys)`` for every head, for a processor of ``batch * heads`` sequences.

        A mask of another length is padded **by** `target_length` keys that are not masked, as in diffusers: one of the
        context alone then fits the keys ``[c, h]``. `out_dim` 4 returns ``(b, heads, 1 or queries, keys)``.
        """
        if attention_mask is None:
            return None
        check_mask(attention_mask)
        if attention_mask.shape[-1] != target_length:
            attention_mask = pad_mask(attention_mask, target_length)
        if out_dim == 4:
            return attention_mask.unsqueeze(1).repeat_interleave(self.heads, dim=1)
        if attention_mask.shape[0] < batch_size * self.heads:
            attention_mask = attention_mask.repeat_interleave(self.heads, dim=0)
        return attention_mask

    def head_to_batch_dim(self, tensor: Tensor, out_dim: int = 3) -> Tensor:
        """Split channels into heads: ``(b, l, heads * d)`` to ``(b * heads, l, d)``, or ``(b, heads, l, d)``.

        ``(b, n, l, heads * d)`` is read as ``n * l`` positions.
        """
        if tensor.ndim == 4:
            tensor = tensor.flatten(1, 2)
        heads = tensor.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if out_dim == 3:
            return heads.flatten(0, 1)
        return heads

    def batch_to_head_dim(self, tensor: Tensor) -> Tensor:
        """Undo `head_to_batch_dim`: ``(b * heads, l, d)`` to ``(b, l, heads * d)``."""
        return tensor.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2)

    def norm_encoder_hidden_states(self, encoder_hidden_states: Tensor) -> Tensor:
        """Apply the norm of the context, ``(b, l, channels)``, if `cross_attention_norm` chose one."""
        if self.norm_cross is None:
            return encoder_hidden_states
        if isinstance(self.norm_cross, nn.GroupNorm):  # reads channels first
            return self.norm_cross(encoder_hidden_states.transpose(1, 2)).transpose(1, 2)
        normed: Tensor = self.norm_cross(encoder_hidden_states)
        return normed

    @torch.no_grad()
    def fuse_projections(self, fuse: bool = True) -> None:
        """Concatenate the projections for `FusedProcessor`: ``to_qkv`` or ``to_kv``, and ``to_added_qkv``.

        The fused weights are copies with gradients of their own, and part of the `state_dict`; ``fuse=False`` copies
        them back and removes them.
        """
        if self.is_cross_attention:
            groups = {"to_kv": ["to_k", "to_v"]}
        else:
            groups = {"to_qkv": ["to_q", "to_k", "to_v"]}
        groups["to_added_qkv"] = ["add_q_proj", "add_k_proj", "add_v_proj"]
        for fused, names in groups.items():
            layers = [getattr(self, name) for name in names]
            if any(layer is None for layer in layers):
                continue
            if fuse:
                setattr(self, fused, concatenate_layers(layers))
            elif self.fused_projections:
                split_layer(getattr(self, fused), layers)
                delattr(self, fused)
        self.fused_projections = fuse

    def set_processor(self, processor: Callable[..., Any]) -> None:
        """Choose how the attention is computed: a `Processor`, or a callable or module with its signature."""
        self.uses_added = self.add_k_proj is not None
        self._modules.pop("processor", None)  # a registered module can be replaced by another module only
        self.processor = processor

    def get_processor(self, return_deprecated_lora: bool = False) -> Callable[..., Any]:
        """Return the processor in use; `return_deprecated_lora` is not supported."""
        if return_deprecated_lora:
            raise InvalidArgumentError("received return_deprecated_lora=True; no processor has LoRA layers, use PEFT.")
        return self.processor

    def set_attention_slice(self, slice_size: int | None) -> None:
        """Compute `slice_size` heads at a time, from 1 to `heads`; None: all at once, by the default processor."""
        size = check_count("slice_size", slice_size, most=self.sliceable_head_dim, optional=True)
        self.set_processor(SDPAProcessor() if size is None else SlicedProcessor(size))

    def set_use_memory_efficient_attention_xformers(
        self, use_memory_efficient_attention_xformers: bool, attention_op: Callable[..., Any] | None = None
    ) -> None:
        """Choose the default processor for False; True is an error, as there is no processor for xformers here."""
        self._use_kernel("xformers", is_used=use_memory_efficient_attention_xformers)

    def set_use_npu_flash_attention(self, use_npu_flash_attention: bool) -> None:
        """Choose the default processor for False; True is an error, as there is no processor for torch_npu here."""
        self._use_kernel("torch_npu", is_used=use_npu_flash_attention)

    def set_use_xla_flash_attention(
        self,
        use_xla_flash_attention: bool,
        partition_spec: tuple[str | None, ...] | None = None,
        is_flux: bool = False,
    ) -> None:
        """Choose the default processor for False; True is an error, as there is no processor for torch_xla here."""
        self._use_kernel("torch_xla", is_used=use_xla_flash_attention)

    def _use_kernel(self, package: str, *, is_used: bool) -> None:
        if is_used:
            raise InvalidArgumentError(
                f"latelier has no processor for the attention kernels of {package}. The default one, SDPAProcessor, "
                f"uses torch's own memory-efficient and flash kernels; a processor that calls {package}, such as that "
                "of diffusers, can be given to set_processor."
            )
        self.set_processor(SDPAProcessor())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Rename the parameters of older checkpoints, if the constructor was told to."""
        for old, new in _OLDER_NAMES.items() if self._from_deprecated_attn_block else ():
            for kind in ("weight", "bias"):
                if f"{prefix}{old}.{kind}" in state_dict:
                    state_dict[f"{prefix}{new}.{kind}"] = state_dict.pop(f"{prefix}{old}.{kind}")
        super()._load_from_state_dict(state_dict, prefix, *args)
