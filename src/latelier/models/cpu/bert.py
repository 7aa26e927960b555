"""BERT's stack of layers in as few operations as it takes: the same numbers as transformers' `BertModel`."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.models.bert.modeling_bert import BertLayer, BertModel, BertSelfAttention

from latelier.models.cpu.prepacked import Layout, is_plain_linear, walk

__all__ = ["BertLayers", "computes_as_published", "has_published_layers"]

_KNOWN_OPTIONS = {"token_type_ids", "return_dict"}


class _Layer(NamedTuple):
    """The modules of one layer that hold weights."""

    qkv: tuple[nn.Linear, nn.Linear, nn.Linear]
    mixing: nn.Linear
    mixing_norm: nn.LayerNorm
    widening: nn.Linear
    narrowing: nn.Linear
    narrowing_norm: nn.LayerNorm

    @classmethod
    def of(cls, layer: Any) -> _Layer:
        attention = layer.attention
        qkv = (attention.self.query, attention.self.key, attention.self.value)
        output = attention.output
        wide = layer.intermediate.dense
        return cls(qkv, output.dense, output.LayerNorm, wide, layer.output.dense, layer.output.LayerNorm)

    @property
    def linears(self) -> tuple[tuple[nn.Linear, ...], ...]:
        return self.qkv, (self.mixing,), (self.widening,), (self.narrowing,)


class BertLayers:
    """Laid-out weights of a `BertModel`, and its forward pass with them.

    Parameters
    ----------
    bert
        A model that `has_published_layers`.
    """

    def __init__(self, bert: BertModel) -> None:
        self._heads = bert.config.num_attention_heads
        self._modules = walk(bert.encoder)
        self._layers = [_Layer.of(layer) for layer in bert.encoder.layer]
        self._layouts = [tuple(Layout(*group) for group in layer.linears) for layer in self._layers]
        self.nbytes = sum(layout.nbytes for layouts in self._layouts for layout in layouts)

    def describes(self, bert: BertModel) -> bool:
        """Whether the model still has the modules and the weights that were laid out."""
        return walk(bert.encoder) == self._modules and all(
            layout.describes(*group)
            for layer, layouts in zip(self._layers, self._layouts, strict=True)
            for layout, group in zip(layouts, layer.linears, strict=True)
        )

    def takes(self, input_ids: Tensor, attention_mask: Tensor, options: dict[str, Any]) -> bool:
        """Whether a call is one for a plain padded batch."""
        plain = isinstance(attention_mask, Tensor) and attention_mask.ndim == 2 and input_ids.numel() > 0
        return plain and all(name in _KNOWN_OPTIONS or value is None for name, value in options.items())

    def run(
        self, bert: BertModel, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None, dtype: Any
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Return what the model would, without its pooled output.

        Parameters
        ----------
        bert
            The model.
        input_ids, attention_mask, token_type_ids
            ``(n, length)``.
        dtype
            What to multiply in; sums of residuals and norms keep the dtype of the embeddings.
        """
        hidden = bert.embeddings(input_ids=input_ids, token_type_ids=token_type_ids)  # (n, length, dim)
        keys = attention_mask.bool()
        mask = None if bool(keys.all()) else keys[:, None, None, :]
        for layer, (qkv, mixing, widening, narrowing) in zip(self._layers, self._layouts, strict=True):
            mixed = self._attend(qkv.multiply(hidden, dtype, layer.qkv, "none"), mask)
            hidden = layer.mixing_norm(hidden + mixing.multiply(mixed, dtype, (layer.mixing,), "none"))
            wide = widening.multiply(hidden, dtype, (layer.widening,), "gelu")
            hidden = layer.narrowing_norm(hidden + narrowing.multiply(wide, dtype, (layer.narrowing,), "none"))
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=hidden)

    def _attend(self, qkv: Tensor, mask: Tensor | None) -> Tensor:
        n, length, width = qkv.shape
        # (3, n, heads, length, dim of a head)
        query, key, value = qkv.view(n, length, 3, self._heads, width // 3 // self._heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return mixed.transpose(1, 2).reshape(n, length, width // 3)


def computes_as_published(bert: BertModel) -> bool:
    """Whether nothing is asked of a model but what `BertLayers` computes, and nothing listens inside it."""
    config = bert.config
    known = config.hidden_act == "gelu" and not config.is_decoder and not config.add_cross_attention
    # "eager" gives out attention weights, and others mean other kernels.
    known = known and config._attn_implementation == "sdpa" and "forward" not in bert.__dict__
    known = known and not (config.output_hidden_states or config.output_attentions)
    return known and not any(
        module._forward_hooks or module._forward_pre_hooks or module._compiled_call_impl is not None
        for module in walk(bert.encoder)
    )


def has_published_layers(bert: BertModel) -> bool:
    """Whether all layers are those of the published encoder: no adapters, nothing quantised."""
    return all(map(_is_as_published, bert.encoder.layer))


def _is_as_published(layer: nn.Module) -> bool:
    if type(layer) is not BertLayer or type(layer.attention.self) is not BertSelfAttention:
        return False
    known = _Layer.of(layer)
    norms = (known.mixing_norm, known.narrowing_norm)
    plain = all(is_plain_linear(linear) for group in known.linears for linear in group)
    return plain and all(type(norm) is nn.LayerNorm for norm in norms)
