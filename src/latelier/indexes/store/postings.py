"""The words of the texts of a segment, and search for them: which rows hold each word, how often, and BM25.

They belong to the index as vectors do: they are written with a segment in its commit, never change, and removed rows
are left out by the tombstones of the segment. They are in a folder of their own, so that damage of them leaves vectors
readable; and they can be made again from the texts, see `Transaction.compact_keywords`.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from latelier.errors import CorruptedIndexError
from latelier.indexes.ranking import Ranking
from latelier.kernels.postings import BLOCK, BestRows, rank_postings
from latelier.utils.batching import consecutive, lengths_to_offsets

_TEXT = "words"
_TABLE = "table"
_POSTINGS = "postings"
_MAXIMA = "maxima"
_LENGTHS = "lengths"
# The length of a row without a text, which is not counted among those with one.
_NO_TEXT = np.iinfo("uint32").max
# BM25's parameters, and the idf of words of more than half of the texts.
_K1 = 1.2
_B = 0.75
_MIN_IDF = 1e-6


def word_hash(word: str) -> int:
    """Return the number by which a word is looked up; two words of one index with the same number are not expected."""
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little", signed=True)


class Postings:
    """The words of the rows of one segment.

    `arrays`: ``"words"``, uint8: the distinct words in UTF-8. ``"table"``, int64 ``(3, words + 1)``: of each word its
    `word_hash`, ascending, where it begins in ``"words"``, and where its postings begin. ``"postings"``, uint32 ``(2,
    n)``: positions of rows, ascending within each word, and how often each holds it. ``"maxima"``, uint32 ``(2,
    blocks)``: of each `BLOCK` postings, the highest count and the least length. ``"lengths"``, uint32 ``(rows,)``: how
    many words each row has.
    """

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.lengths = arrays[_LENGTHS]
        self.postings = arrays[_POSTINGS]
        self.maxima = arrays[_MAXIMA]
        self._hashes = arrays[_TABLE][0, :-1]
        self._offsets = arrays[_TABLE][1]
        self._ends = arrays[_TABLE][2]

    @classmethod
    def build(cls, words: Iterable[Sequence[str] | None]) -> Postings:
        """Return those of rows with these words, in any order and with repetitions; None for a row without a text."""
        known: defaultdict[str, int] = defaultdict()
        known.default_factory = known.__len__
        lengths = array("L")
        distinct_of_row = array("q")
        numbers = array("q")
        counts = array("q")
        for own in words:
            held = Counter(own or ())  # at once: a long text has few distinct words
            lengths.append(_NO_TEXT if own is None else len(own))
            distinct_of_row.append(len(held))
            numbers.extend(map(known.__getitem__, held))
            counts.extend(held.values())
        hashes, firsts, places = np.unique(
            np.array(list(map(word_hash, known)), dtype="int64"), return_index=True, return_inverse=True
        )
        spelled = list(known)
        texts = [spelled[i].encode() for i in firsts]
        owners = places[np.array(numbers, dtype="int64")]
        order = np.argsort(owners, kind="stable")
        rows = np.repeat(np.arange(len(lengths)), distinct_of_row)
        return cls._joined(
            hashes,
            b"".join(texts),
            list(map(len, texts)),
            np.bincount(owners, minlength=len(hashes)),
            rows[order],
            np.array(counts, dtype="int64")[order],
            np.array(lengths, dtype="uint32"),
        )

    @classmethod
    def merge(cls, parts: Sequence[tuple[Postings, np.ndarray]]) -> Postings:
        """Return those of some rows of several segments, given by ascending positions, in their order."""
        hashes = np.concatenate([own._hashes for own, _ in parts])
        offsets = np.concatenate([[0], *(own._offsets[1:] - own._offsets[:-1] for own, _ in parts)]).cumsum()
        texts = np.concatenate([own.arrays[_TEXT] for own, _ in parts])
        distinct, firsts, places = np.unique(hashes, return_index=True, return_inverse=True)
        lengths = []
        every = []
        begin = base = 0
        for own, positions in parts:
            target = np.full(len(own.lengths), -1, dtype="int64")
            target[positions] = base + np.arange(len(positions))
            owners = np.repeat(places[begin : begin + len(own._hashes)], np.diff(own._ends))
            rows = target[own.postings[0]]
            kept = rows >= 0
            every.append((owners[kept], rows[kept], own.postings[1][kept]))
            lengths.append(own.lengths[positions])
            begin += len(own._hashes)
            base += len(positions)
        owners, rows, counts = map(np.concatenate, zip(*every, strict=True))
        order = np.argsort(owners, kind="stable")
        held = np.bincount(owners, minlength=len(distinct))
        used = np.flatnonzero(held)
        sizes = np.diff(offsets)[firsts[used]]
        own_texts = texts[consecutive(offsets[firsts[used]], sizes)].tobytes()
        return cls._joined(
            distinct[used], own_texts, sizes, held[used], rows[order], counts[order], np.concatenate(lengths)
        )

    @classmethod
    def _joined(
        cls,
        hashes: np.ndarray,
        texts: bytes,
        sizes: Sequence[int] | np.ndarray,
        held: np.ndarray,
        rows: np.ndarray,
        counts: np.ndarray,
        lengths: np.ndarray,
    ) -> Postings:
        """Return the postings of words: their hashes, texts and sizes, and how many of the `rows` hold each."""
        table = np.stack([np.append(hashes, 0), lengths_to_offsets(sizes), lengths_to_offsets(held)])
        postings = np.stack([rows, counts]).astype("uint32")
        maxima = np.zeros((2, 0), dtype="uint32")
        if len(rows):
            blocks = np.arange(0, len(rows), BLOCK)
            highest = np.maximum.reduceat(postings[1], blocks)
            maxima = np.stack([highest, np.minimum.reduceat(lengths[rows], blocks)])
        text = np.frombuffer(texts, dtype="uint8")
        return cls(
            {_TEXT: text, _TABLE: table.astype("int64"), _POSTINGS: postings, _MAXIMA: maxima, _LENGTHS: lengths}
        )

    @classmethod
    def opened(cls, arrays: dict[str, np.ndarray], rows: int) -> Postings:
        """Return those that were stored for a segment of so many rows, checked as far as a search relies on them."""
        found = {name: (array.dtype.str, array.ndim) for name, array in arrays.items()}
        expected = {_TEXT: ("|u1", 1), _TABLE: ("<i8", 2), _POSTINGS: ("<u4", 2), _MAXIMA: ("<u4", 2)}
        if found != {**expected, _LENGTHS: ("<u4", 1)}:
            raise CorruptedIndexError(f"it has the arrays {found}")
        postings = arrays[_POSTINGS].shape[1]
        shapes = [arrays[name].shape for name in (_POSTINGS, _MAXIMA, _LENGTHS)]
        if shapes != [(2, postings), (2, -(-postings // BLOCK)), (rows,)]:
            raise CorruptedIndexError(f"it has arrays of the shapes {shapes} for {rows} rows")
        table = arrays[_TABLE]
        if len(table) != 3 or not table.shape[1]:
            raise CorruptedIndexError(f"its table has the shape {table.shape}")
        for ends, size in ((table[1], len(arrays[_TEXT])), (table[2], postings)):
            if ends[0] != 0 or ends[-1] != size or (ends[1:] < ends[:-1]).any():
                raise CorruptedIndexError(f"the offsets of its words do not divide {size} bytes or rows")
        return cls(arrays)

    @property
    def has_texts(self) -> bool:
        """Whether a row has a text."""
        return bool((self.lengths != _NO_TEXT).any())

    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Return where the postings of words begin and end, ``(2, words)`` int64; both are 0 for a word without any."""
        places = np.searchsorted(self._hashes, hashes)
        places[places == len(self._hashes)] = 0
        if not len(self._hashes):
            return np.zeros((2, len(hashes)), dtype="int64")
        ranges = np.stack([self._ends[places], self._ends[places + 1]])
        ranges[:, self._hashes[places] != hashes] = 0
        return np.clip(ranges, 0, self.postings.shape[1])  # a map may change with its file

    def words(self) -> list[str]:
        """Return the distinct words, in the order of the table."""
        text = self.arrays[_TEXT].tobytes()
        offsets = self._offsets.tolist()
        return [text[a:b].decode(errors="replace") for a, b in pairwise(offsets)]

    def counts(self, alive: np.ndarray | None) -> np.ndarray:
        """Return how many rows hold each word; `alive`: ``(rows,)`` uint8, those that count, None for all."""
        if alive is None:
            return np.diff(self._ends)
        held = np.append(0, np.cumsum(alive[self.rows_of(0, self.postings.shape[1])], dtype="int64"))
        return np.diff(held[self._ends])

    def rows_of(self, begin: int, end: int) -> np.ndarray:
        """Return the positions of the rows in a range of postings; a damaged file may hold any."""
        return np.minimum(self.postings[0, begin:end], np.uint32(len(self.lengths) - 1))


class _Searched(NamedTuple):
    """A segment and its words. `alive`: ``(rows,)`` uint8, None if no row was removed."""

    segment: Any
    postings: Postings
    alive: np.ndarray | None


class WordSearch:
    """Search for the words of the texts of one commit.

    `parts`: the live rows of each segment, and the postings of its words, None if none of its rows has a text.
    """

    def __init__(self, parts: Sequence[tuple[Any, Postings | None]]) -> None:
        self._segments: list[_Searched] = []
        self.texts = 0
        total = 0
        for part, postings in parts:
            if postings is None:
                continue
            segment, positions = part
            lengths = postings.lengths
            alive = None
            if len(positions) < len(segment):
                alive = np.zeros(len(segment), dtype="uint8")
                alive[positions] = 1
                lengths = lengths[positions]
            self._segments.append(_Searched(segment, postings, alive))
            lengths = lengths[lengths != _NO_TEXT]
            self.texts += len(lengths)
            total += int(lengths.sum(dtype="int64"))
        self.has_words = total > 0
        self._average = max(1e-9, total / max(1, self.texts))

    @cached_property
    def terms(self) -> dict[str, int]:
        """The distinct words of live rows, and how many of these hold each."""
        counts: dict[str, int] = {}
        for _, postings, alive in self._segments:
            held = postings.counts(alive)
            for word, count in zip(postings.words(), held.tolist(), strict=True):
                if count:
                    counts[word] = counts.get(word, 0) + count
        return counts

    def counts(self, words: Sequence[str]) -> list[int]:
        """Return how many live rows hold each of some words."""
        return self._counts(self._find(words)).tolist() if self._segments else [0] * len(words)

    def highest(self, words: Mapping[str, int]) -> float:
        """Return a score that no row exceeds for words as in `rank`; those that no row holds count as rare ones."""
        counts = np.array(self.counts(list(words)), dtype="int64")
        return max(_MIN_IDF, float(self._weights(words, counts).sum()))

    def _weights(self, words: Mapping[str, int], counts: np.ndarray) -> np.ndarray:
        """Return what each word of a query adds to a score at most, by the number of rows that hold it."""
        idf = np.log(np.maximum(self.texts - counts + 0.5, 1e-300) / (counts + 0.5))
        return np.maximum(_MIN_IDF, idf) * (_K1 + 1) * np.array(list(words.values()), dtype="float64")

    def row_of(self, word: str) -> int | None:
        """Return the row id of a live row that holds a word; None if there is none."""
        for (segment, postings, alive), ranges in self._find([word]):
            rows = postings.rows_of(*ranges[:, 0].tolist())
            rows = rows if alive is None else rows[alive[rows] > 0]
            if len(rows):
                return int(segment.row_ids[rows[0]])
        return None

    def _find(self, words: Sequence[str]) -> list[tuple[_Searched, np.ndarray]]:
        hashes = np.array(list(map(word_hash, words)), dtype="int64")
        return [(each, each.postings.find(hashes)) for each in self._segments]

    def _counts(self, found: Sequence[tuple[_Searched, np.ndarray]]) -> np.ndarray:
        counts = np.zeros(found[0][1].shape[1] if found else 0, dtype="int64")
        for each, ranges in found:
            if each.alive is None:
                counts += ranges[1] - ranges[0]
            else:
                rows = [each.postings.rows_of(begin, end) for begin, end in ranges.T.tolist()]
                counts += np.array([np.count_nonzero(each.alive[own]) for own in rows], dtype="int64")
        return counts

    def rank(self, words: Mapping[str, int], k: int, allowed: Sequence[Any] | None = None) -> Ranking:
        """Return the `k` best documents that hold at least one word of a query, by BM25 (k1 = 1.2, b = 0.75).

        `words`: the distinct words, and how often the query has each. `allowed`: the rows that may be found, as parts
        of segments; None for all live ones. Of a document, its best row counts. The score is the sum over its words of
        ``times * idf * (k1 + 1) * tf / (tf + k1 * (1 - b + b * length / average length))`` with ``idf = max(1e-6,
        log((N - n + 0.5) / (n + 0.5)))``, for ``N`` live rows with a text, of which ``n`` hold the word.
        """
        found = self._find(list(words))
        counts = self._counts(found)
        weights = self._weights(words, counts) if found else np.zeros(0)
        order = np.argsort(-weights, kind="stable")
        order = order[counts[order] > 0]
        weights = weights[order]
        best = BestRows(k)
        norm = (_K1 * (1 - _B), _K1 * _B / self._average)
        chosen = None if allowed is None else {id(part.segment): part.positions for part in allowed}
        for (segment, postings, alive), ranges in found if len(order) else ():
            mask = alive
            if chosen is not None:
                mask = np.zeros(len(segment), dtype="uint8")
                if id(segment) in chosen:
                    mask[chosen[id(segment)]] = 1
            own = np.ascontiguousarray(ranges[:, order])
            rows = segment.row_ids, segment.numbers
            rank_postings(postings.postings, postings.maxima, own, weights, postings.lengths, mask, *rows, norm, best)
        ranked = Ranking(*(column[: best.count] for column in (best.numbers, best.scores, best.rows)))
        return ranked.sorted(k)
