"""How many texts a retriever encodes at a time, so that encoding stays within the memory budget of its index."""

from __future__ import annotations

from typing import Any

from latelier.indexes import Index
from latelier.indexes.stored import StoredIndex
from latelier.retrieve.query_model import QueryModel

__all__ = ["encoding_sizes"]

# Shares of the index's working memory: the vectors of the documents of a transaction, which the index packs and encodes
# while they are held; and the activations of a batch.
_VECTORS_SHARE, _BATCH_SHARE = 4, 2
# Assumed where a model does not say its sizes: those of BERT base.
_HIDDEN, _HEADS, _LENGTH = 768, 12, 512
_FLOAT_BYTES = 4


def encoding_sizes(index: Index, model: QueryModel, batch_size: int, chunk_size: int) -> tuple[int, int]:
    """Return the number of texts in a batch and in a transaction, lowered to the memory budget of the index.

    A text of maximum length, with L tokens, takes about ``4 * L * (8 * hidden + 2 * intermediate + heads * L)`` bytes
    while one layer computes, and ``4 * L * dim`` bytes as vectors. At least one text is encoded, whatever the budget.

    Parameters
    ----------
    index
        The index; without a memory budget, nothing is lowered.
    model
        Its model.
    batch_size, chunk_size
        As the user gives them.
    """
    if not isinstance(index, StoredIndex) or index.memory.budget is None:
        return batch_size, chunk_size
    working = index.memory.working
    length = model.document_limits[1] or _LENGTH
    hidden, intermediate, heads = _layer_sizes(model)
    activations = _FLOAT_BYTES * length * (8 * hidden + 2 * intermediate + heads * length)
    vectors = _FLOAT_BYTES * length * model.dim
    batch_size = min(batch_size, max(1, working // _BATCH_SHARE // activations))
    return batch_size, min(chunk_size, max(1, working // _VECTORS_SHARE // vectors))


def _layer_sizes(model: QueryModel) -> tuple[int, int, int]:
    """Return the hidden size, the intermediate size and the number of heads of a model's layers."""
    encoder: Any = getattr(model.loaded[0], "model", None) if model.can_load else None
    config: Any = getattr(encoder, "config", None)
    hidden = getattr(config, "hidden_size", _HIDDEN)
    return hidden, getattr(config, "intermediate_size", 4 * hidden), getattr(config, "num_attention_heads", _HEADS)
