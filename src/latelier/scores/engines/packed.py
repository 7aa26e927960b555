"""The engine ``"packed"``: MaxSim on packed embeddings on the CPU, with gradients where they are needed.

`latelier.scores.engines.one_pass` computes the scores.

For gradients, the forward pass stores the position of the best token, never a similarity, and the backward pass adds
the rows at those positions: memory is inputs + scores + one number per query token and document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from latelier.embeddings import TokenEmbeddings
from latelier.kernels.float_maxsim import Packed, add_document_gradients, add_query_gradients
from latelier.kernels.threads import for_ranges
from latelier.scores.engine import Engine, needs_gradient, off_cpu, outside_graphs
from latelier.scores.engines.addressed import AddressedDocuments
from latelier.scores.engines.one_pass import maxsim, score_into
from latelier.scores.inputs import Side
from latelier.utils.ragged import lengths_to_offsets, split_by_rows

__all__ = ["PackedEngine", "maxsim_list"]

# One addition in the backward pass, whose rows are fetched from memory, takes the time of this many multiplications.
_ADDITION = 8
# Tokens copied together at a time: 8 MiB of 128 float32 each, in the last-level cache.
_COPIED_TOKENS = 1 << 14


class PackedEngine(Engine):
    """The CPU: any dtype, with gradients."""

    name = "packed"

    def unfit(self, queries: Side, documents: Side) -> str | None:
        """Accept inputs on the CPU."""
        return off_cpu(queries, documents)

    def all_pairs(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score by `maxsim`, documents of a list at their addresses."""
        if needs_gradient(queries, documents):
            return _with_gradients(queries.packed, documents.packed, len(queries))
        if documents.listed is None:
            return torch.from_numpy(maxsim(queries.packed, documents.packed))
        return torch.from_numpy(maxsim_list(queries.packed, documents.listed))

    def grouped(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score blocks of one query each."""
        return _with_gradients(queries.packed, documents.packed, 1)


def maxsim_list(queries: TokenEmbeddings, documents: Sequence[torch.Tensor]) -> np.ndarray:
    """Score every query against every document of a list of at least one, all of one dtype, dim and device.

    Documents that the kernel cannot read at their addresses are copied together in blocks, which are still in cache
    when they are scored.
    """
    addressed = AddressedDocuments.of_list(documents)
    if addressed is not None:
        return maxsim(queries, addressed)
    offsets = lengths_to_offsets([len(document) for document in documents])
    blocks = (documents[first:last] for first, last in split_by_rows(offsets, _COPIED_TOKENS))
    return np.concatenate([maxsim(queries, TokenEmbeddings.from_list(block)) for block in blocks], axis=1)


@outside_graphs  # a compiled graph cannot contain numba kernels
def _with_gradients(queries: TokenEmbeddings, documents: TokenEmbeddings, size: int) -> torch.Tensor:
    """Score blocks of `size` queries, each against its share of the documents: all of them if there is one block."""
    left, right = (texts.to("float32") if texts.scales is not None else texts for texts in (queries, documents))
    return _MaxSim.apply(left.vectors.float(), right.vectors.float(), left.offsets, right.offsets, max(size, 1))


class _MaxSim(torch.autograd.Function):
    """Blocks of `size` queries, each scored against its share of the documents."""

    @staticmethod
    def forward(
        ctx: Any,
        query_vectors: torch.Tensor,
        document_vectors: torch.Tensor,
        query_offsets: np.ndarray,
        document_offsets: np.ndarray,
        size: int,
    ) -> torch.Tensor:
        left, right = query_vectors.detach().contiguous(), document_vectors.detach().contiguous()
        queries, documents = TokenEmbeddings(left, query_offsets), TokenEmbeddings(right, document_offsets)
        blocks = list(_blocks(query_offsets, document_offsets, size))
        share = len(documents) // max(len(blocks), 1)
        scores = np.empty((len(queries), share), dtype=np.float32)
        positions = np.empty((queries.num_tokens, share), dtype=np.int32)
        for block in blocks:
            q = block.queries
            score_into(scores[q], queries[q], documents[block.documents], positions[block.query_tokens])
        if any(ctx.needs_input_grad):
            _show_nan(scores, _texts_with_nan(left, query_offsets), _texts_with_nan(right, document_offsets), size)
        ctx.save_for_backward(left, right)
        ctx.layout = (query_offsets, document_offsets, blocks, positions)
        return torch.from_numpy(scores)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        left, right = (tensor.numpy() for tensor in ctx.saved_tensors)
        query_offsets, document_offsets, blocks, positions = ctx.layout
        gradients = gradient.float().contiguous().numpy()
        out = np.zeros_like(left), np.zeros_like(right)
        for block in blocks:
            q_tokens, d_tokens = block.query_tokens, block.document_tokens
            queries = _packed(left, query_offsets, block.queries, q_tokens)
            documents = _packed(right, document_offsets, block.documents, d_tokens)
            sides = out[0][q_tokens], out[1][d_tokens]
            _add_gradients(queries, documents, gradients[block.queries], positions[q_tokens], sides)
        return torch.from_numpy(out[0]), torch.from_numpy(out[1]), None, None, None


def _texts_with_nan(vectors: torch.Tensor, offsets: np.ndarray) -> np.ndarray:
    """Return the numbers of the texts with a NaN, which the kernels do not show."""
    if bool(vectors.sum().isfinite()):  # one pass, which allocates nothing
        return np.zeros(0, dtype=np.int64)
    tokens = vectors.isnan().any(dim=1).numpy().nonzero()[0]
    return np.unique(np.searchsorted(offsets, tokens, side="right") - 1)


def _show_nan(scores: np.ndarray, queries: np.ndarray, documents: np.ndarray, size: int) -> None:
    """Make the scores of queries and documents NaN, in blocks of `size` queries."""
    scores[queries] = np.nan
    for document in documents:
        number, column = divmod(int(document), scores.shape[1])
        scores[number * size : (number + 1) * size, column] = np.nan


class _Block(NamedTuple):
    """Queries and the documents that they are scored against: slices of the texts and of their tokens."""

    queries: slice
    query_tokens: slice
    documents: slice
    document_tokens: slice


def _blocks(query_offsets: np.ndarray, document_offsets: np.ndarray, size: int) -> Iterator[_Block]:
    """Yield blocks of `size` queries, each with its share of the documents."""
    queries, documents = len(query_offsets) - 1, len(document_offsets) - 1
    share = documents * size // max(queries, 1)
    for number, first in enumerate(range(0, queries, size)):
        q, d = slice(first, first + size), slice(number * share, (number + 1) * share)
        yield _Block(q, _tokens(query_offsets, q), d, _tokens(document_offsets, d))


def _tokens(offsets: np.ndarray, texts: slice) -> slice:
    return slice(int(offsets[texts.start]), int(offsets[texts.stop]))


def _packed(vectors: np.ndarray, offsets: np.ndarray, texts: slice, tokens: slice) -> Packed:
    return Packed(vectors[tokens], offsets[texts.start : texts.stop + 1] - offsets[texts.start])


def _add_gradients(
    queries: Packed, documents: Packed, gradients: np.ndarray, positions: np.ndarray, out: tuple[np.ndarray, np.ndarray]
) -> None:
    """Add the gradients of one block's query tokens and document tokens to both arrays of ``out``."""
    dim = queries.vectors.shape[1]

    def for_queries(first: int, last: int) -> None:
        add_query_gradients(gradients, positions, tuple(documents), queries.offsets, out[0], first, last)

    def for_documents(first: int, last: int) -> None:
        add_document_gradients(gradients, positions, tuple(queries), documents.offsets, out[1], first, last)

    for_ranges(for_queries, queries.offsets, gradients.shape[1] * dim * _ADDITION)
    per_token = positions.size * dim // max(len(documents.vectors), 1)
    for_ranges(for_documents, documents.offsets, per_token * _ADDITION)
