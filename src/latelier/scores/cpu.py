"""The engines on the CPU: ``"packed"`` (kernels, with gradients), ``"int8"`` (kernels), ``"torch"`` (any device)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from latelier.embeddings import TokenEmbeddings
from latelier.kernels.float_maxsim import Packed, add_document_gradients, add_query_gradients
from latelier.kernels.threads import for_ranges
from latelier.scores.inputs import Engine, Side, needs_gradient, outside_graphs
from latelier.scores.maxsim import AddressedDocuments, maxsim, maxsim_int8, maxsim_into
from latelier.utils.batching import lengths_to_offsets, split_by_rows

# One addition in the backward pass, whose rows are fetched from memory, takes the time of this many multiplications.
_ADDITION = 8
# Tokens copied together at a time: 8 MiB of 128 float32 each, in the last-level cache.
_COPIED_TOKENS = 1 << 14
# Similarities of one block of plain torch; 16M float32 = 64 MiB.
_BLOCK_ELEMENTS = 1 << 24


class PackedEngine(Engine):
    """The CPU: any dtype, with gradients, no padding computed.

    With gradients, the forward pass stores the position of the best token, never a similarity, and the backward pass
    adds the rows at those positions: memory is inputs + scores + one number per query token and document.
    """

    name = "packed"

    def unfit(self, queries: Side, documents: Side) -> str | None:
        """Accept inputs on the CPU."""
        return _off_cpu(queries, documents)

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


class Int8Engine(Engine):
    """The CPU: int8, and other dtypes quantised on the way; no gradients."""

    name = "int8"

    def unfit(self, queries: Side, documents: Side) -> str | None:
        """Accept inputs on the CPU that need no gradients."""
        if _off_cpu(queries, documents) is None and needs_gradient(queries, documents):
            return "has no gradients, but they are needed here"
        return _off_cpu(queries, documents)

    def all_pairs(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score by `maxsim_int8`."""
        return torch.from_numpy(maxsim_int8(queries.packed, documents.packed))

    def grouped(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score one query after the other."""
        left = queries.packed
        right = documents.packed
        n = len(right) // max(len(left), 1)
        rows = [maxsim_int8(left[i : i + 1], right[i * n : (i + 1) * n]) for i in range(len(left))]
        return torch.from_numpy(np.concatenate([np.empty((0, n), dtype=np.float32), *rows]))


class TorchEngine(Engine):
    """Plain torch on padded tensors: any device, any floating dtype, with gradients, in blocks of bounded memory.

    The backward pass does not need the similarities: a maximum saves only its positions.
    """

    name = "torch"

    def unfit(self, queries: Side, documents: Side) -> str | None:
        """Accept all inputs."""
        return None

    def all_pairs(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score blocks of documents, each by one matrix product."""
        query_vectors, document_vectors, queries_mask, documents_mask = _prepare(queries, documents)
        if not len(query_vectors):  # of any dim
            return document_vectors.new_zeros(0, len(document_vectors), dtype=torch.float32)
        per_document = max(1, query_vectors.shape[0] * query_vectors.shape[1] * document_vectors.shape[1])
        step = max(1, _BLOCK_ELEMENTS // per_document)
        blocks = []
        for start in range(0, len(document_vectors), step):
            block = document_vectors[start : start + step]
            mask = documents_mask[start : start + step]
            # (q * query_tokens, dim) x (dim, d * document_tokens)
            flat = query_vectors.flatten(0, 1) @ block.flatten(0, 1).T
            similarities = flat.view(*query_vectors.shape[:2], *block.shape[:2])
            blocks.append(_reduce(similarities, queries_mask, mask[None]))
        if blocks:
            return torch.cat(blocks, dim=1)
        return query_vectors.new_zeros(len(queries), 0, dtype=torch.float32)

    def grouped(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score blocks of queries, each against its own documents."""
        query_vectors, document_vectors, queries_mask, documents_mask = _prepare(queries, documents)
        if not len(document_vectors):  # the dim of no documents is unknown
            return query_vectors.new_zeros(len(query_vectors), 0, dtype=torch.float32)
        n = len(document_vectors) // max(len(query_vectors), 1)
        width = document_vectors.shape[1]
        groups, masks = (side.unflatten(0, (-1, n)) for side in (document_vectors, documents_mask))
        step = max(1, _BLOCK_ELEMENTS // max(1, query_vectors.shape[1] * n * width))
        blocks = []
        for start in range(0, len(query_vectors), step):
            rows = slice(start, start + step)
            # (b, query_tokens, dim) x (b, dim, n * document_tokens)
            flat = torch.bmm(query_vectors[rows], groups[rows].flatten(1, 2).transpose(1, 2))
            similarities = flat.view(*flat.shape[:2], n, width)
            blocks.append(_reduce(similarities, queries_mask[rows], masks[rows]))
        return torch.cat(blocks)


def _off_cpu(queries: Side, documents: Side) -> str | None:
    if queries.vectors.device.type != "cpu" or documents.vectors.device.type != "cpu":
        return f"is for the CPU, but the documents are on {documents.vectors.device}"
    return None


def _prepare(queries: Side, documents: Side) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bring both sides to one dtype and the documents' device: vectors of both, masks of both."""
    (query_vectors, queries_mask) = queries.padded
    (document_vectors, documents_mask) = documents.padded
    device = document_vectors.device
    dtype = torch.promote_types(query_vectors.dtype, document_vectors.dtype)
    if device.type == "cpu" and dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32  # half precision is emulated, slower and less exact on most CPUs
    return query_vectors.to(device, dtype), document_vectors.to(dtype), queries_mask.to(device), documents_mask


def _reduce(similarities: torch.Tensor, queries_mask: torch.Tensor, documents_mask: torch.Tensor) -> torch.Tensor:
    """``(q, query_tokens, d, document_tokens)`` to ``(q, d)``; `documents_mask` is ``(q or 1, d, document_tokens)``."""
    if similarities.shape[3] == 0:
        best = similarities.new_full(similarities.shape[:3], -torch.inf)
    else:
        # Minus infinity before the maximum: a masked token must lose even against negative similarities.
        best = similarities.masked_fill(~documents_mask[:, None], -torch.inf).max(dim=3).values
    best = best.float().masked_fill(~queries_mask[:, :, None], 0.0)
    # A query without tokens sums to 0, but an empty document must score minus infinity there too.
    return best.sum(dim=1).masked_fill(~documents_mask.any(dim=2), -torch.inf)


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


@outside_graphs  # a compiled graph cannot contain kernels
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
        left = query_vectors.detach().contiguous()
        right = document_vectors.detach().contiguous()
        queries = TokenEmbeddings(left, query_offsets)
        documents = TokenEmbeddings(right, document_offsets)
        blocks = list(_blocks(query_offsets, document_offsets, size))
        share = len(documents) // max(len(blocks), 1)
        scores = np.empty((len(queries), share), dtype=np.float32)
        positions = np.empty((queries.num_tokens, share), dtype=np.int32)
        for block in blocks:
            q = block.queries
            maxsim_into(scores[q], queries[q], documents[block.documents], positions[block.query_tokens])
        if any(ctx.needs_input_grad):
            scores[_texts_with_nan(left, query_offsets)] = np.nan
            for document in _texts_with_nan(right, document_offsets):
                number, column = divmod(int(document), share)
                scores[number * size : (number + 1) * size, column] = np.nan
        ctx.save_for_backward(left, right)
        ctx.layout = (query_offsets, document_offsets, blocks, positions)
        return torch.from_numpy(scores)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        left, right = (tensor.numpy() for tensor in ctx.saved_tensors)
        query_offsets, document_offsets, blocks, positions = ctx.layout
        gradients = gradient.float().contiguous().numpy()
        for_queries = np.zeros_like(left)
        for_documents = np.zeros_like(right)
        for block in blocks:
            q_tokens = block.query_tokens
            d_tokens = block.document_tokens
            _add_gradients(
                Packed(left[q_tokens], _own_offsets(query_offsets, block.queries)),
                Packed(right[d_tokens], _own_offsets(document_offsets, block.documents)),
                gradients=gradients[block.queries],
                positions=positions[q_tokens],
                for_queries=for_queries[q_tokens],
                for_documents=for_documents[d_tokens],
            )
        return torch.from_numpy(for_queries), torch.from_numpy(for_documents), None, None, None


def _texts_with_nan(vectors: torch.Tensor, offsets: np.ndarray) -> np.ndarray:
    """Return the numbers of the texts with a NaN, which the kernels do not show."""
    if bool(vectors.sum().isfinite()):  # one pass, which allocates nothing
        return np.zeros(0, dtype=np.int64)
    tokens = vectors.isnan().any(dim=1).numpy().nonzero()[0]
    return np.unique(np.searchsorted(offsets, tokens, side="right") - 1)


class _Block(NamedTuple):
    """Queries and the documents that they are scored against: slices of the texts and of their tokens."""

    queries: slice
    query_tokens: slice
    documents: slice
    document_tokens: slice


def _blocks(query_offsets: np.ndarray, document_offsets: np.ndarray, size: int) -> Iterator[_Block]:
    """Yield blocks of `size` queries, each with its share of the documents."""
    queries = len(query_offsets) - 1
    documents = len(document_offsets) - 1
    share = documents * size // max(queries, 1)
    for number, first in enumerate(range(0, queries, size)):
        q = slice(first, first + size)
        d = slice(number * share, (number + 1) * share)
        yield _Block(q, _tokens(query_offsets, q), d, _tokens(document_offsets, d))


def _tokens(offsets: np.ndarray, texts: slice) -> slice:
    return slice(int(offsets[texts.start]), int(offsets[texts.stop]))


def _own_offsets(offsets: np.ndarray, texts: slice) -> np.ndarray:
    return offsets[texts.start : texts.stop + 1] - offsets[texts.start]


def _add_gradients(
    queries: Packed,
    documents: Packed,
    *,
    gradients: np.ndarray,
    positions: np.ndarray,
    for_queries: np.ndarray,
    for_documents: np.ndarray,
) -> None:
    """Add the gradients of one block's tokens to both outputs, in threads."""
    dim = queries.vectors.shape[1]

    def add_to_queries(first: int, last: int) -> None:
        add_query_gradients(gradients, positions, documents, queries.offsets, for_queries, first, last)

    def add_to_documents(first: int, last: int) -> None:
        add_document_gradients(gradients, positions, queries, documents.offsets, for_documents, first, last)

    for_ranges(add_to_queries, queries.offsets, gradients.shape[1] * dim * _ADDITION)
    per_token = positions.size * dim // max(len(documents.vectors), 1)
    for_ranges(add_to_documents, documents.offsets, per_token * _ADDITION)
