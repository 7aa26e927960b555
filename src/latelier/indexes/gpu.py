"""Exact search on a GPU, which holds a copy of all vectors of an index and scores every document for every query.

Many queries are scored together, so that the vectors are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from latelier.arrays import as_tensor, torch_dtype
from latelier.embeddings import TokenEmbeddings
from latelier.errors import LatelierError
from latelier.indexes.ranking import BlockSize, score_blocks, split_positions
from latelier.indexes.store import forks
from latelier.indexes.store.segments import Part, Segment
from latelier.scores.colbert import choose_engine
from latelier.scores.inputs import Side
from latelier.scores.maxsim import TopK
from latelier.utils.batching import lengths_to_offsets, split_by_rows

# If all norms are at most 128, inner products are at most 128 ** 2 = 16,384; half precision ends at 65,504.
_HALF_NORM = 128.0
_BLOCK = BlockSize(tokens=1 << 23, scores=1 << 25)


class _Copy(NamedTuple):
    """The documents of one or more segments on the device."""

    vectors: TokenEmbeddings
    row_ids: np.ndarray  # (documents,)
    numbers: np.ndarray  # (documents,): those of the documents that they are passages of; or the row ids
    positions: np.ndarray  # (documents,): 0, 1, ...


class _Place(NamedTuple):
    """Where the documents of a segment are: in a copy, from the position `first` on."""

    copy: _Copy
    first: int


class GpuSearch:
    """Searches the vectors of an index on a device.

    Segments with norms too large for half precision are held in float32. `block`: documents scored together at most.
    `upload_numbers`, `copy_numbers`: vector components decoded at a time, and per copy; small segments share a copy, as
    launching kernels for each would take longer than computing.
    """

    def __init__(
        self,
        device: torch.device,
        decode: Callable[[Part], TokenEmbeddings],
        dtype: str,
        *,
        queries_at_once: int = 256,
        block: BlockSize = _BLOCK,
        upload_numbers: int = 1 << 24,
        copy_numbers: int = 1 << 30,
    ) -> None:
        self.device = device
        self._decode = decode
        self._dtype = dtype
        self._queries_at_once = queries_at_once
        self._block = block
        self._upload_numbers = upload_numbers
        self._copy_numbers = copy_numbers
        # All snapshots that contain a segment share it; a copy is freed with the last snapshot of all its segments.
        self._places: WeakKeyDictionary[Segment, _Place] = WeakKeyDictionary()
        self._lock = forks.Lock()

    def search(self, parts: Sequence[Part], queries: TokenEmbeddings, best: TopK) -> None:
        """Score all documents of `parts`, and write the best of each query to `best`."""
        try:
            chosen = list(_by_copy(parts, self._find([part.segment for part in parts], queries.dim)))
            for first in range(0, len(queries), self._queries_at_once):
                self._search_some(chosen, queries[first : first + self._queries_at_once], best, first)
        except torch.cuda.OutOfMemoryError as error:
            numbers = sum(part.segment.tokens for part in parts) * queries.dim
            size = numbers * torch_dtype(self._dtype).itemsize / 2**30
            raise LatelierError(
                f"{self.device} has no room for this index, whose vectors take {size:,.1f} GiB there; leave out device="
                " to search on the CPU."
            ) from error

    def clear(self) -> None:
        """Free the memory of the device; a later search copies the vectors again."""
        with self._lock.current:
            self._places.clear()

    def _search_some(
        self, chosen: Sequence[tuple[_Copy, np.ndarray]], queries: TokenEmbeddings, best: TopK, first: int
    ) -> None:
        """Search some positions of copies for some queries, which have the numbers from `first` on in `best`."""
        fit_half = _largest_norm(queries) <= _HALF_NORM
        converted: dict[str, TokenEmbeddings] = {}
        merged = _Merged(len(queries), best.k, self._block.scores, self.device)
        for copy, positions in chosen:
            if fit_half:
                dtype = copy.vectors.dtype
            else:
                dtype = "float32"
            if dtype not in converted:
                converted[dtype] = queries.to(dtype).to(str(self.device))
            numbers = copy.numbers[positions] if copy.numbers is not copy.row_ids else None
            blocks = score_blocks(copy.vectors, positions, converted[dtype], score_vectors, self._block, numbers)
            for block, scores in blocks:
                merged.add(scores, copy.row_ids[block], copy.numbers[block])
        for query, (scores, row_ids) in enumerate(zip(*merged.best(), strict=True), start=first):
            best.scores[query] = scores
            best.row_ids[query] = row_ids

    def _find(self, segments: Sequence[Segment], dim: int) -> list[_Place]:
        """Return the places of segments; those that have none are copied to the device first."""
        with self._lock.current:
            missing = [segment for segment in segments if segment not in self._places]
            tokens = lengths_to_offsets([segment.tokens for segment in missing])
            for first, last in split_by_rows(tokens, self._copy_numbers // dim):
                self._upload(missing[first:last], dim)
            return [self._places[segment] for segment in segments]

    def _upload(self, segments: Sequence[Segment], dim: int) -> None:
        """Copy segments to the device piece by piece, in float32 if some norms are too large for half precision."""
        tokens = lengths_to_offsets([segment.tokens for segment in segments])
        vectors = torch.empty(int(tokens[-1]), dim, dtype=torch_dtype(self._dtype), device=self.device)
        for begin, segment in zip(tokens, segments, strict=False):
            everything = np.arange(len(segment))
            for positions in split_positions(segment.offsets, everything, self._upload_numbers // dim, len(segment)):
                piece = self._decode(Part(segment, positions))
                if _largest_norm(piece) > _HALF_NORM:
                    vectors = vectors.float()
                first, last = begin + segment.offsets[[positions[0], positions[-1] + 1]]
                vectors[first:last] = as_tensor(piece.vectors).to(self.device)
        offsets = lengths_to_offsets(np.concatenate([np.diff(segment.offsets) for segment in segments]))
        row_ids = np.concatenate([segment.row_ids for segment in segments])
        numbers = row_ids
        if any(segment.ranges is not None for segment in segments):
            numbers = np.concatenate([segment.numbers for segment in segments])
        copy = _Copy(TokenEmbeddings(vectors, offsets), row_ids, numbers, np.arange(len(row_ids)))
        firsts = lengths_to_offsets([len(segment) for segment in segments])
        self._places.update(
            (segment, _Place(copy, int(first))) for segment, first in zip(segments, firsts, strict=False)
        )


class _Merged:
    """The best documents of queries, of blocks of scores that are added in the order of the documents."""

    def __init__(self, queries: int, k: int, most: int, device: torch.device) -> None:
        self._k = k
        self._most = most
        self._scores = torch.zeros(queries, 0, device=device)
        self._row_ids = torch.zeros(queries, 0, dtype=torch.int64, device=device)
        self._waiting: list[tuple[torch.Tensor, np.ndarray, np.ndarray]] = []
        self._are_grouped = False

    def add(self, scores: torch.Tensor, row_ids: np.ndarray, numbers: np.ndarray) -> None:
        """Add scores ``(queries, rows)`` of rows of documents with these numbers, all rows of each."""
        self._are_grouped = self._are_grouped or bool((np.diff(numbers) == 0).any())
        self._waiting.append((scores, row_ids, numbers))
        if sum(each[0].numel() for each in self._waiting) >= self._most:
            self._merge()

    def best(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the scores and the row ids of the best documents of each query, at most `k`."""
        self._merge()
        scores = list(self._scores.cpu().numpy())
        row_ids = list(self._row_ids.cpu().numpy())
        if not self._are_grouped:
            return scores, row_ids
        kept = [own > -np.inf for own in scores]
        return [own[each] for own, each in zip(scores, kept, strict=True)], [
            own[each] for own, each in zip(row_ids, kept, strict=True)
        ]

    def _merge(self) -> None:
        if not self._waiting:
            return
        scores, row_ids, numbers = zip(*self._waiting, strict=True)
        joined = torch.cat(scores, dim=1)
        if self._are_grouped:
            own_best, which = highest_of_groups(joined, torch.from_numpy(np.concatenate(numbers)), self._k)
        else:
            own_best, which = highest(joined, self._k)
        own = torch.from_numpy(np.concatenate(row_ids)).to(which.device)[which]
        self._scores, order = highest(torch.cat([self._scores, own_best], dim=1), self._k)
        self._row_ids = torch.cat([self._row_ids, own], dim=1).gather(1, order)
        self._waiting = []


def _by_copy(parts: Sequence[Part], places: Sequence[_Place]) -> Iterator[tuple[_Copy, np.ndarray]]:
    """Yield copies with the positions in them of the documents to search; documents keep the order of `parts`."""
    for _, group in groupby(zip(parts, places, strict=True), key=lambda pair: id(pair[1].copy)):
        own = list(group)
        copy = own[0][1].copy
        if sum(len(part.positions) for part, _ in own) == len(copy.positions):
            yield copy, copy.positions
        else:
            yield copy, np.concatenate([part.positions + place.first for part, place in own])


def score_vectors(queries: TokenEmbeddings, documents: TokenEmbeddings) -> torch.Tensor:
    """Return MaxSim of every query with every document, both on the device, ``(queries, documents)`` float32."""
    left = Side("queries", packed=queries)
    right = Side("documents", packed=documents)
    with torch.no_grad():
        return choose_engine("auto", left, right).all_pairs(left, right).to(documents.device)


def highest(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `k` highest scores of each row, descending, and their columns; of equal scores the first come first.

    `torch.topk` keeps any of equal scores, and a stable sort of all takes as long as scoring them. So a key has the
    bits of a score, in an order as integers have it, above the column, counted from the end.
    """
    best = _keys(scores).topk(min(k, scores.shape[1]), dim=1).indices
    return scores.gather(1, best), best


def highest_of_groups(scores: torch.Tensor, groups: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `k` highest scores of each row, one of each group of columns, and their columns; see `highest`.

    `groups`: ``(columns,)``, equal for neighbours of one group. If there are fewer groups, scores end with -inf.
    """
    groups = groups.to(scores.device)
    slots = torch.zeros_like(groups)
    slots[1:] = (groups[1:] != groups[:-1]).long().cumsum(0)
    keys = _keys(scores)
    none = torch.iinfo(torch.int64).min
    best = torch.full_like(keys, none).scatter_reduce(1, slots.expand_as(keys), keys, "amax")
    top = best.topk(min(k, keys.shape[1]), dim=1).values
    columns = keys.shape[1] - 1 - (top & 0xFFFFFFFF)
    return scores.gather(1, columns).masked_fill(top == none, -torch.inf), columns


def _keys(scores: torch.Tensor) -> torch.Tensor:
    """Return integers in the order of scores, and of the columns of equal ones; see `highest`."""
    bits = torch.fmax(scores + 0.0, scores.new_full((), -torch.inf)).view(torch.int32)  # no -0.0, and no NaN
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    return ordered + torch.arange(scores.shape[1] - 1, -1, -1, device=scores.device)


def _largest_norm(embeddings: TokenEmbeddings) -> float:
    """Return the largest norm of a token vector."""
    vectors = np.asarray(embeddings.vectors, dtype="float32")
    return float(np.sqrt(np.einsum("td,td->t", vectors, vectors).max(initial=0.0)))
