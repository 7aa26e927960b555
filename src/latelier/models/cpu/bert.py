"""The layers of transformers' `BertModel` in few operations, with the same numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer, BertModel, BertSelfAttention

from latelier.models.cpu.fingerprint import Fingerprint
from latelier.models.cpu.module_tree import ModuleTree
from latelier.models.cpu.patching import PatchedForward
from latelier.models.cpu.prepacked import PrepackedLinear, is_plain_linear

__all__ = ["PrepackedBert", "has_standard_forward", "has_standard_modules"]

_KNOWN_OPTIONS = {"token_type_ids", "return_dict"}


class _Layer(NamedTuple):
    """The modules of one layer that hold weights."""

    qkv: tuple[nn.Linear, nn.Linear, nn.Linear]
    attention_output: nn.Linear
    attention_norm: nn.LayerNorm
    intermediate: nn.Linear
    output: nn.Linear
    output_norm: nn.LayerNorm

    @classmethod
    def of(cls, layer: Any) -> _Layer:
        attention = layer.attention
        qkv = (attention.self.query, attention.self.key, attention.self.value)
        after = attention.output
        return cls(
            qkv,
            after.dense,
            after.LayerNorm,
            layer.intermediate.dense,
            layer.output.dense,
            layer.output.LayerNorm,
        )

    @property
    def linears(self) -> tuple[tuple[nn.Linear, ...], ...]:
        """The linear layers, in the order in which they are applied; those with the same input in one group."""
        return self.qkv, (self.attention_output,), (self.intermediate,), (self.output,)


class PrepackedBert:
    """Prepacked weights of a `BertModel`, and its forward pass with them.

    `bert`: a model for which `has_standard_modules` holds.
    """

    def __init__(self, bert: BertModel) -> None:
        self._heads = bert.config.num_attention_heads
        self._tree = ModuleTree(bert)
        self._layers = [_Layer.of(layer) for layer in bert.encoder.layer]
        self._fingerprint = Fingerprint(linear for layer in self._layers for group in layer.linears for linear in group)
        self._weights = [tuple(PrepackedLinear(*group) for group in layer.linears) for layer in self._layers]
        self.nbytes = sum(group.nbytes for groups in self._weights for group in groups)

    def matches(self) -> bool:
        """Whether the model still has the modules, with the weights, that were prepacked."""
        return self._tree.is_unchanged() and self._fingerprint.matches()

    def is_overridden(self) -> bool:
        """Whether a hook or another forward inside the model computes, or sees, what this does not."""
        return self._tree.is_overridden()

    def accepts(self, input_ids: Tensor, attention_mask: Tensor, options: dict[str, Any]) -> bool:
        """Whether a call is for a padded batch, with no option that `run` does not know."""
        padded = isinstance(attention_mask, Tensor) and attention_mask.ndim == 2 and input_ids.numel() > 0
        return padded and all(name in _KNOWN_OPTIONS or value is None for name, value in options.items())

    def run(
        self, bert: BertModel, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None, dtype: Any
    ) -> BaseModelOutput:
        """Return the model's last hidden state, without its pooled output.

        `input_ids`, `attention_mask`, `token_type_ids`: ``(n, length)``. `dtype`: the dtype of matrix products; sums of
        residuals and norms keep the dtype of the embeddings.
        """
        # A fiftieth of the time of a short query is saved where tensors do not count their changes.
        with torch.inference_mode():
            hidden = _embed(bert.embeddings, input_ids, token_type_ids)  # (n, length, dim)
            keys = attention_mask.bool()
            mask = None if bool(keys.all()) else keys[:, None, None, :]
            for layer, (qkv, attention_output, intermediate, output) in zip(self._layers, self._weights, strict=True):
                attended = self._attend(qkv.multiply(hidden, dtype, layer.qkv, "none"), mask)
                update = attention_output.multiply(attended, dtype, (layer.attention_output,), "none")
                hidden = _normalize(layer.attention_norm, hidden + update)
                wide = intermediate.multiply(hidden, dtype, (layer.intermediate,), "gelu")
                update = output.multiply(wide, dtype, (layer.output,), "none")
                hidden = _normalize(layer.output_norm, hidden + update)
        return BaseModelOutput(last_hidden_state=hidden.clone())  # an ordinary tensor, which may be trained on

    def _attend(self, qkv: Tensor, mask: Tensor | None) -> Tensor:
        n, length, width = qkv.shape
        # (3, n, heads, length, dim of a head)
        parts = qkv.view(n, length, 3, self._heads, width // 3 // self._heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
        attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return attended.transpose(1, 2).reshape(n, length, width // 3)


def _embed(embeddings: BertEmbeddings, input_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
    types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
    hidden = _look_up(embeddings.word_embeddings, input_ids) + _look_up(embeddings.token_type_embeddings, types)
    hidden = hidden + _look_up(embeddings.position_embeddings, embeddings.position_ids[:, : input_ids.shape[1]])
    return _normalize(embeddings.LayerNorm, hidden)


def _look_up(embedding: nn.Embedding, ids: Tensor) -> Tensor:
    weight: Any = embedding._parameters["weight"]
    return torch.embedding(weight, ids)


def _normalize(norm: nn.LayerNorm, input: Tensor) -> Tensor:
    # Without the call of the module and its attributes, which take as long as the arithmetic for one short query.
    parameters = norm._parameters
    return torch.layer_norm(input, norm.normalized_shape, parameters["weight"], parameters["bias"], norm.eps)


def has_standard_forward(bert: BertModel) -> bool:
    """Whether `PrepackedBert` computes all that the model is configured to."""
    config = bert.config
    known = config.hidden_act == "gelu" and not config.is_decoder and not config.add_cross_attention
    # "eager" returns attention weights; other names stand for other kernels.
    known = known and config._attn_implementation == "sdpa"
    known = known and isinstance(bert.__dict__.get("forward"), PatchedForward | None)
    return known and not (config.output_hidden_states or config.output_attentions)


def has_standard_modules(bert: BertModel) -> bool:
    """Whether embeddings and layers are of transformers' own classes: no adapters, nothing quantised."""
    embeddings = bert.embeddings
    if type(embeddings) is not BertEmbeddings or type(embeddings.LayerNorm) is not nn.LayerNorm:
        return False
    tables = (embeddings.word_embeddings, embeddings.token_type_embeddings, embeddings.position_embeddings)
    plain = all(type(table) is nn.Embedding and table.max_norm is None for table in tables)
    return plain and all(map(_is_standard, bert.encoder.layer))


def _is_standard(layer: nn.Module) -> bool:
    if type(layer) is not BertLayer or type(layer.attention.self) is not BertSelfAttention:
        return False
    known = _Layer.of(layer)
    norms = (known.attention_norm, known.output_norm)
    plain = all(is_plain_linear(linear) for group in known.linears for linear in group)
    return plain and all(type(norm) is nn.LayerNorm for norm in norms)
