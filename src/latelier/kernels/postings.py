"""The best documents by BM25, from the postings of the words of a query.

`csrc/postings.c` leaves out the rows that cannot be among the best, by the highest count and the least length of each
block of postings; numpy scores every row. Both add up a score in the order of the words, so they give equal ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from latelier.kernels.library import NUMPY, Kernel, instruction_set

_rank_postings = Kernel(
    "rank_postings",
    *("uint32*", "uint32*", "uint32*", "uint32*", "int64*", "int64*", "float64*", "int64", "uint32*", "int64"),
    *("uint8*", "int64*", "int64*", "float64", "float64", "float64*", "float64*", "int64*", "int64*", "int64", "int64"),
)
BLOCK = 128  # postings of which the highest count and the least length are known


@dataclass
class BestRows:
    """The `most` best documents so far, each with its best row, in any order: the first `count` of each array."""

    most: int
    count: int = 0
    scores: np.ndarray = field(init=False)
    rows: np.ndarray = field(init=False)
    numbers: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.scores = np.empty(self.most)
        self.rows = np.empty(self.most, dtype="int64")
        self.numbers = np.empty(self.most, dtype="int64")


def rank_postings(
    postings: np.ndarray,
    maxima: np.ndarray,
    ranges: np.ndarray,
    weights: np.ndarray,
    lengths: np.ndarray,
    allowed: np.ndarray | None,
    row_ids: np.ndarray,
    numbers: np.ndarray,
    norm: tuple[float, float],
    best: BestRows,
) -> None:
    """Add to `best` the documents of one segment with a word of a query: more segments follow in their order.

    `postings`: ``(2, postings)`` uint32: rows, ascending within each word, and how often each holds the word;
    `maxima`: ``(2, blocks)`` uint32: the highest count and the least length of each `BLOCK` of them. `ranges`: ``(2,
    words)`` int64: where the postings of each word begin and end. `weights`: ``(words,)`` float64, falling. `lengths`:
    ``(rows,)`` uint32. `allowed`: ``(rows,)`` uint8, None for all. `row_ids`, `numbers`: ``(rows,)`` int64: the row
    ids, and the numbers of their documents. A row scores the sum of ``weight * count / (count + norm[0] + norm[1] *
    length)``. Of equal scores, the first row is the better one.
    """
    if instruction_set() != NUMPY:
        words = len(weights)
        best.count = _rank_postings(
            *(postings[0], postings[1], maxima[0], maxima[1], ranges[0].copy(), ranges[1], weights, words),
            *(lengths, len(lengths), allowed, row_ids, numbers, *norm, np.empty(words)),
            *(best.scores, best.rows, best.numbers, best.most, best.count),
        )
        return
    sums = np.zeros(len(lengths))
    norms = norm[0] + norm[1] * lengths
    for begin, end, weight in zip(*ranges.tolist(), weights.tolist(), strict=True):
        rows, counts = postings[:, begin:end]
        inside = rows < len(lengths)
        rows = rows[inside]
        counts = counts[inside]
        sums[rows] += weight * counts / (counts + norms[rows])
    if allowed is not None:
        sums[allowed == 0] = 0
    found = np.flatnonzero(sums > 0)
    found = found[np.lexsort((found, -sums[found]))]
    _, firsts = np.unique(numbers[found], return_index=True)
    found = found[np.sort(firsts)][: best.most]
    scores = np.concatenate([best.scores[: best.count], sums[found]])
    rows = np.concatenate([best.rows[: best.count], row_ids[found]])
    owners = np.concatenate([best.numbers[: best.count], numbers[found]])
    kept = np.lexsort((rows, -scores))[: best.most]
    best.count = len(kept)
    best.scores[: best.count] = scores[kept]
    best.rows[: best.count] = rows[kept]
    best.numbers[: best.count] = owners[kept]
