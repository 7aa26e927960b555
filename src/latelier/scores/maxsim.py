"""MaxSim of packed embeddings on the CPU, without gradients, and its best hits; imports no torch.

`maxsim` multiplies and takes the maxima in one pass (`kernels.float_maxsim`), in several threads, each on its own
documents. Sums are float32 for every dtype, so a similarity is off by at most ``dim * 2**-24 * |q| |d|``.

`maxsim_int8` multiplies int8 codes with one scale per token: for unit vectors of dim ``n`` a similarity is off by at
most ``sqrt(n) / 254`` from each side (Cauchy-Schwarz; in practice a tenth). The dot products are exact integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from latelier.arrays import dtype_name, is_tensor, torch_dtype
from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError
from latelier.kernels import int8_maxsim
from latelier.kernels.float_maxsim import (
    BFLOAT16,
    FLOAT16,
    WORDS,
    Documents,
    multiplies_bfloat16,
    pack_queries,
    score_range,
)
from latelier.kernels.threads import for_ranges
from latelier.utils.batching import lengths_to_offsets, split_by_rows

if TYPE_CHECKING:
    import torch

# More query tokens than this are scored in several passes: 512 KiB of 128 float32 each, in the second-level cache.
_QUERY_TOKENS = 1024
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def maxsim(queries: TokenEmbeddings, documents: TokenEmbeddings | AddressedDocuments) -> np.ndarray:
    """Score every query against every document: ``(queries, documents)`` float32; both of one dim, in any dtype.

    A document without tokens scores minus infinity, a query without tokens 0 elsewhere.
    """
    scores = np.empty((len(queries), len(documents)), dtype=np.float32)
    maxsim_into(scores, queries, documents)
    return scores


def maxsim_into(
    scores: np.ndarray,
    queries: TokenEmbeddings,
    documents: TokenEmbeddings | AddressedDocuments,
    positions: np.ndarray | None = None,
) -> None:
    """Write the scores of `maxsim`, and the position of each best token.

    `positions` is ``(query tokens, documents)`` int32: of equal tokens the first, -1 for a document without tokens.
    """
    if not isinstance(documents, AddressedDocuments):
        documents = AddressedDocuments.of_packed(documents)
    for first, last in split_by_rows(queries.offsets, _QUERY_TOKENS):
        tokens = slice(queries.offsets[first], queries.offsets[last])
        if positions is not None:
            of_share = positions[tokens]
        else:
            of_share = None
        _score_share(scores[first:last], queries[first:last], documents, of_share)


def _score_share(
    scores: np.ndarray, queries: TokenEmbeddings, documents: AddressedDocuments, positions: np.ndarray | None
) -> None:
    pairs = queries.dtype == documents.dtype == "bfloat16" and documents.dim % 2 == 0 and multiplies_bfloat16()
    if pairs:  # the bits of the numbers, (tokens, dim) int16
        rows = queries.vectors.detach().contiguous().view(torch_dtype("int16")).numpy()
        kind = WORDS
        numbers = documents.dim // 2
    else:
        vectors = queries.to("float32").vectors
        rows = np.ascontiguousarray(vectors.detach().cpu().numpy() if is_tensor(vectors) else vectors)
        kind = {"float32": WORDS, "float16": FLOAT16, "bfloat16": BFLOAT16}[documents.dtype]
        numbers = documents.dim
    packed = pack_queries(rows, queries.offsets)

    def score(first: int, last: int) -> None:
        block = Documents(
            addresses=documents.addresses[first:last],
            lengths=documents.lengths[first:last],
            kind=kind,
            numbers=numbers,
            row_bytes=documents.dim * _BYTES[documents.dtype],
        )
        score_range(block, packed, scores, positions, first)

    for_ranges(score, documents.offsets, queries.num_tokens * queries.dim)


@dataclass(frozen=True)
class AddressedDocuments:
    """Documents at the addresses of their rows: to copy them together first would take as long as scoring them.

    `owner` keeps the memory alive. `addresses`, `lengths`: of each document's contiguous rows, ``(n,)`` int64.
    """

    owner: Any
    addresses: np.ndarray
    lengths: np.ndarray
    dim: int
    dtype: str

    @classmethod
    def of_list(cls, items: Sequence[torch.Tensor]) -> AddressedDocuments | None:
        """Return the addresses of one or more matrices of one dtype, dim and device; None if kernels cannot read them.

        That is: another dtype, no dimension, not contiguous, not on the CPU, or a view that negates what is read.
        """
        import torch

        dim = items[0].shape[1]
        dtype = dtype_name(items[0])
        # Not one Python statement per matrix: a thousand of them would take a tenth of the time of scoring them.
        in_place = all(map(torch.Tensor.is_contiguous, items)) and all(map(attrgetter("is_cpu"), items))
        if dtype not in _BYTES or not dim or not in_place or any(map(torch.Tensor.is_neg, items)):
            return None
        addresses = np.fromiter(map(torch.Tensor.data_ptr, items), dtype="int64", count=len(items))
        numbers = np.fromiter(map(torch.Tensor.numel, items), dtype="int64", count=len(items))
        return cls(items, addresses, numbers // dim, dim, dtype)

    @classmethod
    def of_packed(cls, embeddings: TokenEmbeddings) -> AddressedDocuments:
        """Return the addresses of packed embeddings on the CPU; copied if not contiguous or of another dtype."""
        dtype = embeddings.dtype
        if dtype not in _BYTES:
            embeddings = embeddings.to("float32")
            dtype = "float32"
        vectors = embeddings.vectors
        if is_tensor(vectors):
            vectors = vectors.contiguous()
            start = vectors.data_ptr()
        else:
            vectors = np.ascontiguousarray(vectors)
            start = vectors.ctypes.data
        addresses = start + embeddings.offsets[:-1] * (embeddings.dim * _BYTES[dtype])
        return cls(vectors, addresses, embeddings.lengths, embeddings.dim, dtype)

    @property
    def offsets(self) -> np.ndarray:
        """Offsets ``(n + 1,)`` int64, as if the documents were packed."""
        return lengths_to_offsets(self.lengths)

    def __len__(self) -> int:
        return len(self.addresses)


def maxsim_int8(queries: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Score every query against every document: ``(queries, documents)`` float32; what is not int8 is quantised."""
    left = queries.to("int8")
    right = documents.to("int8")
    scores = np.empty((len(left), len(right)), dtype=np.float32)
    if not left.num_tokens:
        scores[:] = np.where(right.lengths, 0, -np.inf)
        return scores
    query_codes, query_scales, codes, scales = (
        np.ascontiguousarray(part.detach() if is_tensor(part) else part)
        for side in (left, right)
        for part in (side.vectors, side.scales)
    )
    packed = int8_maxsim.pack_queries(query_codes, query_scales, left.offsets)
    offsets = right.offsets

    def score(first: int, last: int) -> None:
        block = int8_maxsim.Documents(codes, scales, offsets[first : last + 1])
        int8_maxsim.score_range(block, packed, scores, first)

    for_ranges(score, offsets, query_codes.size // 4)
    return scores


# The best scores: blocks are scored in the order of the documents and sorting is stable, so documents of equal score
# keep that order.


class TopK:
    """The k best documents of each query so far: the scores, and the row id of each, or of its best passage."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.scores = [np.zeros(0, dtype="float32")] * queries
        self.row_ids = [np.zeros(0, dtype="int64")] * queries
        self._numbers = self.row_ids.copy()
        self._last: int | None = None

    def add(self, scores: np.ndarray, row_ids: np.ndarray, numbers: np.ndarray | None = None) -> None:
        """Merge the scores ``(queries, rows)`` of a block; of equal scores, those added first stay first.

        `numbers`: the number of the document of each row, ascending over all blocks; None: each row is a document.
        """
        if not len(row_ids):
            return
        # NaN in the embeddings gives NaN scores, which cannot be sorted: they are replaced by minus infinity.
        scores = np.fmax(scores, np.float32(-np.inf))
        if numbers is None:
            numbers = row_ids
        firsts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
        are_grouped = len(firsts) < len(numbers)
        continues = self._last == int(numbers[0])  # the block before ended within a document
        self._last = int(numbers[-1])
        best = np.maximum.reduceat(scores, firsts, axis=1) if are_grouped else scores
        ends = np.append(firsts[1:], len(numbers))
        for query, row in enumerate(best):
            kept = self.scores[query]
            if len(kept) == self.k:
                # Only higher scores matter: of equal scores the earlier document stays.
                candidates = np.flatnonzero(row > kept[-1])
                if not len(candidates):
                    continue
            else:
                candidates = np.arange(len(row))
            candidates = candidates[_best(row[candidates], self.k)]
            places = candidates
            if are_grouped:
                ranges = zip(firsts[candidates].tolist(), ends[candidates].tolist(), strict=True)
                places = np.array([first + int(scores[query, first:end].argmax()) for first, end in ranges])
            merged = np.concatenate([kept, row[candidates]])
            own = np.concatenate([self._numbers[query], numbers[places]])
            order = np.argsort(-merged, kind="stable")
            if continues:
                _, places_of_first = np.unique(own[order], return_index=True)
                order = order[np.sort(places_of_first)]
            order = order[: self.k]
            self.scores[query] = merged[order]
            self._numbers[query] = own[order]
            self.row_ids[query] = np.concatenate([self.row_ids[query], row_ids[places]])[order]


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the positions of the k highest scores, ascending; among scores equal to the k-th, the first are taken."""
    if len(scores) <= k:
        return np.arange(len(scores))
    edge = np.partition(scores, -k)[-k]
    above = np.flatnonzero(scores > edge)
    return np.sort(np.concatenate([above, np.flatnonzero(scores == edge)[: k - len(above)]]))


class Alignment(NamedTuple):
    """Best document token of each query token.

    Its ``positions (q,)`` int64, their ``similarities (q,)`` float32, and the ``matrix (q, n)`` float32 of all.
    """

    positions: np.ndarray
    similarities: np.ndarray
    matrix: np.ndarray


def align(query: Any, document: Any) -> Alignment:
    """Find the document token with the highest similarity for each query token.

    `query`: ``(q, dim)``, numpy or torch, of any floating dtype. `document`: ``(n, dim)``, with at least one token.
    Returns: of equal similarities, the first token is taken. The similarities sum to the MaxSim score.
    """
    rows = _matrix(query)
    columns = _matrix(document)
    if not len(columns):
        raise EmbeddingsError("the document has no token, so there is nothing to align the query with.")
    matrix = rows @ columns.T
    return Alignment(matrix.argmax(axis=1), matrix.max(axis=1), matrix)


def _matrix(value: Any) -> np.ndarray:
    if is_tensor(value):
        array = value.detach().cpu().float().resolve_neg().numpy()
    else:
        array = np.asarray(value)
    return array.astype("float32", copy=False)
