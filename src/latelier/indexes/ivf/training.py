"""K-means, samples.

An index of n tokens gets about ``14 * sqrt(n)`` inverted lists. With fewer lists, centroids represent their tokens too
coarsely; with more, comparing the centroids takes more time than the shorter lists save.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from latelier.indexes.ivf.codec import DocumentTable, TokenRows
from latelier.indexes.ivf.kernels.centroids import nearest_centroids
from latelier.indexes.ivf.kernels.kmeans import empty_groups, group_rows, pack_rows, spherical_kmeans
from latelier.indexes.ivf.layout import byte_width, coarse_count, list_count
from latelier.indexes.ivf.lists import Centroids, InvertedLists, TrainingStatistics, build_lists, pack_centroids
from latelier.indexes.store.files import Scratch, release_memory
from latelier.kernels.instruction_sets import instruction_set
from latelier.kernels.simd import LANES
from latelier.kernels.threads import for_each, for_ranges
from latelier.utils.ragged import lengths_to_offsets, split_by_rows

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
        self._table, self._documents = table, ordinals[np.unique(np.arange(0, len(ordinals), step).astype("int64"))]
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
_COARSE_SAMPLE, _FINE_SAMPLE = 64, 32
_COARSE_ITERATIONS, _FINE_ITERATIONS = 8, 3
_MAX_SAMPLE = 1 << 21
# Multiplications that take the time in which a number of a centroid is packed.
_PACKING = 64


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
    packed_coarse, coarse_start = pack_centroids(coarse, width, _scale(coarse))
    offsets, order = np.zeros(len(coarse) + 1, dtype="int64"), np.empty(len(sample), dtype="int64")
    group_rows(_nearest_coarse(sample, packed_coarse, coarse_start), offsets, order)
    # Number of groups of 16 centroids under each coarse centroid, in proportion to its share of the tokens. Rounding
    # adds at most one group per coarse centroid, on which the memory budget relies.
    shares = np.maximum(1, np.round(np.diff(offsets) * (lists / LANES / len(sample)))).astype("int64")
    # Number of centroids under each coarse centroid: itself, where it has no tokens.
    counts = np.maximum(1, np.minimum(LANES * shares, np.diff(offsets)))
    ends, groups = lengths_to_offsets(counts), lengths_to_offsets(-(-counts // LANES))
    centroids = (scratch or Scratch()).empty((ends[-1], dim), "float32")
    scale = 0.0
    for begin, end in split_by_rows(offsets, sample.at_once):
        some = slice(ends[begin], ends[end])
        tokens_of = sample.load(order[offsets[begin] : offsets[end]])
        _train_fine(tokens_of, offsets[begin : end + 1], coarse[begin:end], ends[begin : end + 1], centroids[some])
        del tokens_of  # before the next ones are loaded
        scale = max(scale, _scale(centroids[some]))
        release_memory(centroids)
    fine, fine_start = empty_groups(LANES * int(groups[-1]), width)
    words = fine.view("int32")

    def pack(first: int, last: int) -> None:
        for c in range(first, last):
            some = slice(groups[c], groups[c + 1])
            pack_rows(centroids[ends[c] : ends[c + 1]], np.float32(scale), words[some], fine_start[some])

    for_ranges(pack, ends, _PACKING * dim)
    statistics = TrainingStatistics(tokens, trained_similarity=0, latest_similarity=0, dim=dim)
    return Centroids(packed_coarse, coarse_start, fine, fine_start, groups, statistics)


def train_lists(table: DocumentTable, *, memory: int | None = None, scratch: Scratch | None = None) -> InvertedLists:
    """Return inverted lists of the live documents, for newly trained centroids; see `train_centroids`."""
    ordinals = table.live[np.argsort(table.numbers[table.live], kind="stable")]
    return build_lists(train_centroids(table, ordinals, memory, scratch), table, ordinals, scratch)


def _train_coarse(sample: TrainingSample, count: int, dim: int) -> np.ndarray:
    """Return the coarse centroids, ``(count, dim)``; fewer if there are fewer tokens."""
    chosen = np.random.default_rng(0).choice(len(sample), min(len(sample), _COARSE_SAMPLE * count), replace=False)
    centroids = np.empty((min(count, len(chosen)), dim), dtype="float32")
    spherical_kmeans(instruction_set().argument, *sample.take(np.sort(chosen)), _COARSE_ITERATIONS, centroids)
    return centroids


def _nearest_coarse(sample: TrainingSample, packed: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the nearest coarse centroid of each token of the sample, ``(tokens,)`` int32."""
    isa, nearest = instruction_set().argument, np.empty(len(sample), dtype="int32")

    def assign(first: int, last: int) -> None:
        rows, some = sample.unpack(first, last).codes, slice(sample.offsets[first], sample.offsets[last])
        dots = np.empty(len(rows), dtype="int32")
        nearest_centroids(isa, rows, np.arange(len(rows)), packed, start, nearest[some], dots)

    for_ranges(assign, sample.offsets, packed.size // 4)
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
    isa, firsts, starts = instruction_set().argument, offsets - offsets[0], ends - ends[0]

    def train(c: int) -> None:
        own = centroids[starts[c] : starts[c + 1]]
        if firsts[c] < firsts[c + 1]:
            spherical_kmeans(isa, *tokens_of(slice(firsts[c], firsts[c + 1])), _FINE_ITERATIONS, own)
        else:
            own[:] = coarse[c]

    for_each(train, np.argsort(-np.diff(firsts)).tolist())  # the largest first: the threads end at about the same time


def _scale(centroids: np.ndarray) -> float:
    """Return the scale for which the largest absolute number has the code 127."""
    return max(float(centroids.max(initial=0)), -float(centroids.min(initial=0)), 127e-30) / 127
