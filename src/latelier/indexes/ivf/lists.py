"""Inverted lists, and the centroids that they belong to: training, assigning, storing.

A token is assigned to the coarse centroid with the highest dot product, and then to the centroid under it with the
highest dot product. For n inverted lists there are about sqrt(n) coarse centroids with sqrt(n) centroids each, so
finding the list of a token takes time O(sqrt(n)).

The entries of a list are positions in `numbers`, the row ids of the documents. A row id always stands for the same
vectors, so lists stay valid when segments are merged; documents added later are in no list until they are appended.

An index of n tokens gets about ``14 * sqrt(n)`` lists: with fewer, centroids are too coarse; with more, too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import CorruptedIndexError
from latelier.indexes.ivf.codec import DocumentTable, TokenRows
from latelier.indexes.ivf.kernels.candidates import ListEntries, append_lists, invert
from latelier.indexes.ivf.kernels.centroids import (
    NO_CENTROID,
    CentroidLevels,
    PackedCentroids,
    group_rows,
    nearest_centroids,
    nearest_in_two_levels,
    pack_centroids,
    spherical_kmeans,
)
from latelier.indexes.ivf.layout import GROUP, byte_width, coarse_count, list_count
from latelier.indexes.store.segments import Scratch, release_memory
from latelier.kernels.threads import allowed_threads, for_each, for_ranges
from latelier.utils.batching import lengths_to_offsets, rows_or_slice, split_by_rows


class TrainingStatistics(NamedTuple):
    """Statistics of the tokens that the centroids were trained on, and of tokens that were assigned to them later.

    `tokens`: number of tokens of the index when the centroids were trained; `trained_similarity`: mean dot product of
    those tokens with the centroids of their lists, in units of a centroid's code; `latest_similarity`: the same for the
    tokens of the documents that were appended last; `dim`: dimension of the token vectors.
    """

    tokens: float
    trained_similarity: float
    latest_similarity: float
    dim: float


@dataclass(frozen=True)
class Centroids:
    """Two levels of centroids, packed for SIMD in groups of 16: see `pack_centroids`.

    An inverted list has the number of its centroid, ``16 * group + lane``; lanes without a centroid have empty lists.
    `coarse`, `fine`: ``(groups, width / 4, 16, 4)`` int8, with starting sums ``(groups, 16)`` int32; coarse centroid
    ``c`` has the fine groups ``fine_offsets[c]`` to ``fine_offsets[c + 1] - 1``.
    """

    coarse: np.ndarray
    coarse_start: np.ndarray
    fine: np.ndarray
    fine_start: np.ndarray
    fine_offsets: np.ndarray
    statistics: TrainingStatistics

    @cached_property
    def levels(self) -> CentroidLevels:
        """The centroids as kernels take them."""
        coarse = PackedCentroids(self.coarse, self.coarse_start)
        return CentroidLevels(coarse, PackedCentroids(self.fine, self.fine_start), self.fine_offsets)

    @property
    def lists(self) -> int:
        """Number of inverted lists, including the empty ones of lanes without a centroid."""
        return self.fine_start.size


# Assumed number of multiplications per token when tokens are divided among threads. It is lower than the true number,
# so that a thread takes many tokens at a time, and most coarse centroids get the eight that are multiplied together.
_WORK = 1 << 11
# Lists are made of at least so many tokens by each thread, and by at most so many threads: each has its own counts.
_SHARE_TOKENS = 1 << 15
_MOST_SHARES = 4
# Bytes in memory per entry while lists are appended to.
_APPENDING_BYTES = 32
# Lists that are copied before their mapped memory is given back: up to 64 KiB around each, see `AROUND`.
_COPIED_LISTS = 32


@dataclass(frozen=True)
class InvertedLists:
    """Centroids, and the list of documents of each.

    `centroids`: see `Centroids`. `numbers`: ``(documents,)`` int64: row ids of the documents in the lists,
    ascending. `offsets`: ``(lists + 1,)`` int64: list `i` has the entries ``offsets[i]`` to ``offsets[i + 1] - 1``.
    `documents`: ``(entries,)``: positions in `numbers`, ascending in each list; uint16 for up to 65,536 documents, else
    int32. `is_released`: whether a search copies the entries of the probed lists, and gives the mapped memory back.
    """

    centroids: Centroids
    numbers: np.ndarray
    offsets: np.ndarray
    documents: np.ndarray
    is_released: bool = False

    @cached_property
    def entries(self) -> ListEntries:
        """Return the entries of all lists, which a kernel reads where they are mapped."""
        return ListEntries(self.offsets, self.documents)

    def read_entries(self, probed: np.ndarray) -> tuple[np.ndarray, ListEntries]:
        """Return a copy of the entries of probed lists (-1: none), and the numbers of the probed lists in it."""
        lists, numbers = np.unique(probed, return_inverse=True)
        missing = int(np.count_nonzero(lists < 0))
        lists = lists[missing:].astype("int64")
        copies = [self.documents[:0]]
        for first in range(0, len(lists), _COPIED_LISTS):
            copies.append(np.array(self.documents[rows_or_slice(self.offsets, lists[first : first + _COPIED_LISTS])]))
            release_memory(self.documents)
        renumbered = (numbers.reshape(probed.shape) - missing).astype("int32")
        offsets = lengths_to_offsets(np.diff(self.offsets)[lists])
        return renumbered, ListEntries(offsets, np.concatenate(copies))

    def has_dim(self, dim: int) -> bool:
        """Whether the lists were made from tokens of this dim."""
        return int(self.centroids.statistics.dim) == dim

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays to store, by name on disk."""
        fields: dict[str, Any] = {**vars(self.centroids), **vars(self)}
        fields["statistics"] = np.array(self.centroids.statistics, dtype="float64")
        return {name: fields[stored.field] for name, stored in _STORED.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> InvertedLists:
        """Return the inverted lists that were stored as `arrays`; raise `CorruptedIndexError` if they do not fit.

        Everything that kernels use as an address without a check, such as offsets, is checked here once. Centroids and
        entries may hold any numbers.
        """
        for name, stored in _STORED.items():
            array = arrays.get(name)
            if array is None or not stored.describes(array):
                if array is None:
                    found = "missing"
                else:
                    found = f"{array.dtype} {array.shape}"
                expected = f"{' or '.join(stored.dtypes)} of shape {stored.shape}"
                raise CorruptedIndexError(f"{name}.npy is {found}, not {expected}")
        fields: dict[str, Any] = {stored.field: arrays[name] for name, stored in _STORED.items()}
        # Copied into memory, since a memory-mapped file could change after the check.
        fields |= {field: np.array(fields[field]) for field in ("fine_offsets", "numbers", "offsets")}
        fields["statistics"] = TrainingStatistics(*fields["statistics"].tolist())
        centroids = Centroids(**{field.name: fields[field.name] for field in dataclass_fields(Centroids)})
        lists = cls(centroids, fields["numbers"], fields["offsets"], fields["documents"])
        wrong = next((name for name, holds in _conditions(lists) if not holds), None)
        if wrong:
            raise CorruptedIndexError(f"its {wrong} are invalid")
        return lists


class _Stored(NamedTuple):
    """An array on disk: its field in `InvertedLists` or `Centroids`, its allowed dtypes, and its shape (None: any)."""

    field: str
    dtypes: tuple[str, ...]
    shape: tuple[int | None, ...]

    def describes(self, array: np.ndarray) -> bool:
        """Whether an array has one of these dtypes and this shape, and its rows are contiguous."""
        fits = len(array.shape) == len(self.shape) and all(
            expected in (None, size) for size, expected in zip(array.shape, self.shape, strict=True)
        )
        return fits and array.dtype in map(np.dtype, self.dtypes) and array.flags.c_contiguous


# The arrays by name on disk; these names are part of the format.
_STORED = {
    "centroids_top": _Stored("coarse", ("int8",), (None, None, GROUP, 4)),
    "centroids_top_start": _Stored("coarse_start", ("int32",), (None, GROUP)),
    "centroids_cells": _Stored("fine", ("int8",), (None, None, GROUP, 4)),
    "centroids_cell_start": _Stored("fine_start", ("int32",), (None, GROUP)),
    "centroids_ranges": _Stored("fine_offsets", ("int64",), (None,)),
    "centroids_fit": _Stored("statistics", ("float64",), (len(TrainingStatistics._fields),)),
    "numbers": _Stored("numbers", ("int64",), (None,)),
    "offsets": _Stored("offsets", ("int64",), (None,)),
    "documents": _Stored("documents", ("uint16", "int32"), (None,)),
}


def _conditions(lists: InvertedLists) -> Iterator[tuple[str, bool]]:
    """Yield whether the lists meet each condition, with the name of what is invalid if they do not.

    Each condition relies on those before it.
    """
    (coarse, coarse_start), (fine, fine_start), fine_offsets = lists.centroids.levels
    statistics = lists.centroids.statistics
    yield "training statistics", bool(np.isfinite(statistics).all())
    width = byte_width(int(statistics.dim))
    yield "centroids", 4 * coarse.shape[1] == 4 * fine.shape[1] == width > 0
    yield "centroids", len(coarse) == len(coarse_start) and len(fine) == len(fine_start) and fine_start.size < 1 << 31
    yield "ranges of centroids", 2 <= len(fine_offsets) <= coarse_start.size + 1 and _divide(fine_offsets, len(fine))
    yield "ranges of centroids", bool((fine_offsets[1:] > fine_offsets[:-1]).all())  # no range is empty
    yield "offsets of inverted lists", len(lists.offsets) == fine_start.size + 1
    yield "offsets of inverted lists", _divide(lists.offsets, len(lists.documents))
    yield "numbers of documents", bool((lists.numbers[1:] > lists.numbers[:-1]).all())


def _divide(offsets: np.ndarray, end: int) -> bool:
    """Whether offsets ascend from 0 to `end`. Neighbours are compared, since differences could overflow."""
    return bool(offsets[0] == 0 and offsets[-1] == end and (offsets[1:] >= offsets[:-1]).all())


def build_lists(
    centroids: Centroids, table: DocumentTable, ordinals: np.ndarray, scratch: Scratch | None = None
) -> InvertedLists:
    """Return the inverted lists of some documents, given in ascending order of their row ids.

    `scratch`: where large arrays are made; None: in memory.
    """
    scratch = scratch or Scratch()
    offsets, documents, similarity = _invert(centroids, table, ordinals, 0, scratch)
    statistics = centroids.statistics._replace(trained_similarity=similarity, latest_similarity=similarity)
    numbers = table.numbers[ordinals]
    return InvertedLists(replace(centroids, statistics=statistics), numbers, offsets, documents)


def append_documents(
    lists: InvertedLists, table: DocumentTable, ordinals: np.ndarray, scratch: Scratch | None = None
) -> InvertedLists:
    """Return inverted lists with the same centroids and more documents, in ascending order of their row ids.

    The table was made with ``lists.numbers``, and all these row ids are above those in the lists. `scratch`: where
    large arrays are made; None: in memory.
    """
    scratch = scratch or Scratch()
    old = len(lists.numbers)
    offsets, documents, similarity = _invert(lists.centroids, table, ordinals, old, scratch)
    statistics = lists.centroids.statistics._replace(latest_similarity=similarity)
    numbers = np.concatenate([lists.numbers, table.numbers[ordinals]])
    merged = scratch.empty(len(lists.documents) + len(documents), _entry_dtype(len(numbers)))
    for begin, end in split_by_rows(lists.offsets + offsets, max(1, scratch.block // _APPENDING_BYTES)):
        before, new = (slice(part[begin], part[end]) for part in (lists.offsets, offsets))
        some = slice(before.start + new.start, before.stop + new.stop)
        own, more = (part[begin : end + 1] - part[begin] for part in (lists.offsets, offsets))
        merged[some] = append_lists(own, lists.documents[before], more, documents[new])
        for array in (lists.documents, documents, merged):
            release_memory(array)
    centroids = replace(lists.centroids, statistics=statistics)
    return InvertedLists(centroids, numbers, lists.offsets + offsets, merged)


def _entry_dtype(count: int) -> str:
    """Return the dtype of entries: 16 bits if that is enough for `count` documents."""
    if count <= 1 << 16:
        return "uint16"
    return "int32"


def _invert(
    centroids: Centroids, table: DocumentTable, ordinals: np.ndarray, first: int, scratch: Scratch
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return offsets and entries of the lists of some documents, numbered from `first`, and their mean similarity.

    Each thread has a share of the documents, which are next to each other in every list. If the entries do not fit in
    memory, they are made for some lists after the others, from the lists of all tokens.
    """
    lengths = table.documents.lengths[ordinals]
    starts = lengths_to_offsets(lengths)
    lists, similarity = _assign(centroids, table, ordinals, starts, scratch)
    shares = max(1, min(allowed_threads(), _MOST_SHARES, len(lists) // _SHARE_TOKENS))
    cuts = np.searchsorted(starts, np.arange(shares + 1) * len(lists) // shares)

    def pass_over(begin: int, end: int, places: np.ndarray, documents: np.ndarray | None) -> None:
        """Count or write the documents of the lists `begin` to `end - 1`; `places` has a row for each share."""

        def pass_over_share(share: int) -> None:
            last = np.full(end - begin, -1, dtype="int32")
            own = slice(cuts[share], cuts[share + 1] + 1)
            for a, b in split_by_rows(starts[own], scratch.block // lists.itemsize):
                some = slice(own.start + a, own.start + b)
                tokens = lists[starts[some.start] : starts[some.stop]]
                invert(tokens, lengths[some], first + some.start, begin, last, places[share], documents)
                release_memory(lists)

        for_each(pass_over_share, range(shares))

    counts = np.zeros((shares, centroids.lists), dtype="int64")
    pass_over(0, centroids.lists, counts, None)
    offsets = lengths_to_offsets(counts.sum(axis=0))
    documents = scratch.empty(int(offsets[-1]), _entry_dtype(first + len(ordinals)))
    for begin, end in split_by_rows(offsets, scratch.block // 4):
        entries = documents[offsets[begin] : offsets[end]]
        if documents.dtype == "int32":
            block = entries
        else:
            block = np.empty(len(entries), dtype="int32")
        if len(block):
            some = counts[:, begin:end]
            places = offsets[begin:end] - offsets[begin] + np.cumsum(some, axis=0) - some
            pass_over(begin, end, places, block)
            entries[:] = block
            release_memory(documents)
    return offsets, documents, similarity


def _assign(
    centroids: Centroids, table: DocumentTable, ordinals: np.ndarray, starts: np.ndarray, scratch: Scratch
) -> tuple[np.ndarray, float]:
    """Return the list of each token, int32, and the mean dot product with its centroid, in units of centroid codes."""
    lists = scratch.empty(int(starts[-1]), "int32")
    totals: list[float] = []

    def assign(first: int, last: int) -> None:
        codes, scales = table.unpack(ordinals[first:last])
        nearest, dots = nearest_in_two_levels(codes, centroids.levels)
        lists[starts[first] : starts[last]] = nearest
        release_memory(lists)
        totals.append(float((dots * scales).sum(dtype="float64")))

    for_ranges(assign, starts, _WORK)
    return lists, sum(totals) / max(1, len(lists))


# Bytes per token besides its unpacked codes: its scale, its centroid, its dot product with it, and its place.
_EXTRA_BYTES = 20
# Tokens that are read from files are unpacked in blocks of 1 / _BLOCKS of those that fit in memory.
_BLOCKS = 8


class TrainingSample:
    """All tokens of every n-th document, with n such that there are about `most` tokens.

    Tokens are read where they are stored, as often as they are needed. Where they must be read from files, at most
    `at_once` tokens are in memory, which take `memory` bytes. `offsets`: the number of the first token of each document
    of the sample, ``(documents + 1,)`` int64.
    """

    def __init__(self, table: DocumentTable, ordinals: np.ndarray, most: int, memory: int | None = None) -> None:
        step = max(1.0, table.count_tokens(ordinals) / most)
        self._table = table
        self._documents = ordinals[np.unique(np.arange(0, len(ordinals), step).astype("int64"))]
        self.offsets = lengths_to_offsets(table.documents.lengths[self._documents])
        self.at_once = len(self)
        if memory is not None and not table.is_addressable:
            self.at_once = max(1, min(len(self), memory // (byte_width(table.codec.dim) + _EXTRA_BYTES)))

    def unpack(self, first: int, last: int) -> TokenRows:
        """Return the tokens of the documents `first` to ``last - 1`` of the sample."""
        return self._table.unpack(self._documents[first:last])

    def take(self, numbers: np.ndarray) -> TokenRows:
        """Return some tokens, by number: ascending, or in a few ascending runs."""
        if self._table.is_addressable:
            return self._table.unpack_tokens(self._documents, self.offsets, numbers)
        order = np.argsort(numbers, kind="stable")
        wanted = numbers[order]
        taken = TokenRows(
            np.empty((len(numbers), byte_width(self._table.codec.dim)), dtype="uint8"),
            np.empty(len(numbers), dtype="float32"),
        )
        for first, last in split_by_rows(self.offsets, max(1, self.at_once // _BLOCKS)):
            rows = self.unpack(first, last)
            begin, end = np.searchsorted(wanted, self.offsets[[first, last]])
            for target, source in zip(taken, rows, strict=True):
                target[order[begin:end]] = source[wanted[begin:end] - self.offsets[first]]
            del rows, source  # frees this block before the next one is unpacked
        return taken

    def load(self, numbers: np.ndarray) -> Callable[[slice], TokenRows]:
        """Return a function that returns a slice of these tokens."""
        if self._table.is_addressable:
            return lambda some: self.take(numbers[some])
        rows = self.take(numbers)
        return lambda some: TokenRows(rows.codes[some], rows.scales[some])

    def __len__(self) -> int:
        return int(self.offsets[-1])


# Tokens sampled per centroid, and iterations, for each level. Larger numbers take time and find no better centroids.
_COARSE_SAMPLE = 64
_FINE_SAMPLE = 32
_COARSE_ITERATIONS = 8
_FINE_ITERATIONS = 3
_MAX_SAMPLE = 1 << 21


def train_centroids(
    table: DocumentTable, ordinals: np.ndarray, memory: int | None = None, scratch: Scratch | None = None
) -> Centroids:
    """Train centroids on a sample of the tokens of some documents, at least one; the similarities are still 0.

    `memory`: maximum bytes of the sampled tokens that are read from files and in memory at once; None: all of them. It
    has no influence on the centroids: a sample that does not fit is read several times. `scratch`: where large arrays
    are made; None: in memory.
    """
    dim, tokens, width = table.codec.dim, table.count_tokens(ordinals), byte_width(table.codec.dim)
    lists = list_count(tokens)
    sample = TrainingSample(table, ordinals, min(_MAX_SAMPLE, _FINE_SAMPLE * lists), memory)
    coarse = _train_coarse(sample, coarse_count(lists), dim)
    packed_coarse = pack_centroids(coarse, width, _scale(coarse))
    offsets, order = group_rows(_nearest_coarse(sample, packed_coarse), len(coarse))
    # Number of groups of 16 centroids under each coarse centroid, in proportion to its share of the tokens. Rounding
    # adds at most one group per coarse centroid, on which the memory budget relies.
    shares = np.maximum(1, np.round(np.diff(offsets) * (lists / GROUP / len(sample)))).astype("int64")
    # Number of centroids under each coarse centroid: itself, where it has no tokens.
    counts = np.maximum(1, np.minimum(GROUP * shares, np.diff(offsets)))
    ends = lengths_to_offsets(counts)
    groups = lengths_to_offsets(-(-counts // GROUP))
    centroids = (scratch or Scratch()).empty((ends[-1], dim), "float32")
    scale = 0.0
    for begin, end in split_by_rows(offsets, sample.at_once):
        some = slice(ends[begin], ends[end])
        tokens_of = sample.load(order[offsets[begin] : offsets[end]])
        _train_fine(tokens_of, offsets[begin : end + 1], coarse[begin:end], ends[begin : end + 1], centroids[some])
        del tokens_of  # before the next ones are loaded
        scale = max(scale, _scale(centroids[some]))
        release_memory(centroids)
    fine = np.zeros((int(groups[-1]), width // 4, GROUP, 4), dtype="int8")
    fine_start = np.full((int(groups[-1]), GROUP), NO_CENTROID, dtype="int32")
    for c in range(len(coarse)):
        some = slice(groups[c], groups[c + 1])
        fine[some], fine_start[some] = pack_centroids(centroids[ends[c] : ends[c + 1]], width, scale)
    statistics = TrainingStatistics(tokens, trained_similarity=0, latest_similarity=0, dim=dim)
    return Centroids(*packed_coarse, fine, fine_start, groups, statistics)


def train_lists(table: DocumentTable, *, memory: int | None = None, scratch: Scratch | None = None) -> InvertedLists:
    """Return inverted lists of the live documents, for newly trained centroids; see `train_centroids`."""
    ordinals = table.live[np.argsort(table.numbers[table.live], kind="stable")]
    return build_lists(train_centroids(table, ordinals, memory, scratch), table, ordinals, scratch)


def _train_coarse(sample: TrainingSample, count: int, dim: int) -> np.ndarray:
    """Return the coarse centroids, ``(count, dim)``; fewer if there are fewer tokens."""
    chosen = np.random.default_rng(0).choice(len(sample), min(len(sample), _COARSE_SAMPLE * count), replace=False)
    centroids = np.empty((min(count, len(chosen)), dim), dtype="float32")
    spherical_kmeans(*sample.take(np.sort(chosen)), _COARSE_ITERATIONS, centroids)
    return centroids


def _nearest_coarse(sample: TrainingSample, coarse: PackedCentroids) -> np.ndarray:
    """Return the nearest coarse centroid of each token of the sample, ``(tokens,)`` int32."""
    nearest = np.empty(len(sample), dtype="int32")

    def assign(first: int, last: int) -> None:
        some = slice(sample.offsets[first], sample.offsets[last])
        nearest[some], _ = nearest_centroids(sample.unpack(first, last).codes, coarse)

    for_ranges(assign, sample.offsets, coarse.packed.size // 4)
    return nearest


def _train_fine(
    tokens_of: Callable[[slice], TokenRows],
    offsets: np.ndarray,
    coarse: np.ndarray,
    ends: np.ndarray,
    centroids: np.ndarray,
) -> None:
    """Train the centroids under some coarse centroids; one without tokens is the only centroid under itself.

    `tokens_of` returns a slice of the tokens, which are in the order of the coarse centroids; `offsets` and `ends` say
    where the tokens, and the centroids, under each coarse centroid begin, ``(n + 1,)``, from any number on.
    """
    firsts = offsets - offsets[0]
    starts = ends - ends[0]

    def train(c: int) -> None:
        own = centroids[starts[c] : starts[c + 1]]
        if firsts[c] < firsts[c + 1]:
            spherical_kmeans(*tokens_of(slice(firsts[c], firsts[c + 1])), _FINE_ITERATIONS, own)
        else:
            own[:] = coarse[c]

    for_each(train, np.argsort(-np.diff(firsts)).tolist())  # the largest first: the threads end at about the same time


def _scale(centroids: np.ndarray) -> float:
    """Return the scale for which the largest absolute number has the code 127."""
    return max(float(centroids.max(initial=0)), -float(centroids.min(initial=0)), 127e-30) / 127
