"""The best documents by BM25: block maxima and all instruction sets against a loop over every row."""

import numpy as np
import pytest

from latelier.kernels.postings import BLOCK, BestRows, rank_postings

NORM = (0.3, 0.02)


def made(rng, rows, words, most, lengths):
    """Return postings of some words, the first of them the rarest, and their ranges."""
    own = [
        np.sort(rng.choice(rows, max(1, int(rows * rng.random() ** (words - w))), replace=False)) for w in range(words)
    ]
    counts = [rng.integers(1, most, len(each)) for each in own]
    postings = np.stack([np.concatenate(own), np.concatenate(counts)]).astype("uint32")
    ends = np.append(0, np.cumsum(list(map(len, own))))
    blocks = np.arange(0, postings.shape[1], BLOCK)
    maxima = np.stack(
        [np.maximum.reduceat(postings[1], blocks), np.minimum.reduceat(lengths[postings[0]], blocks)]
    ).astype("uint32")
    return postings, maxima, np.stack([ends[:-1], ends[1:]])


def by_loop(postings, ranges, weights, lengths, allowed, row_ids, numbers):
    """Return (score, row id) of the best row of each document, best first."""
    best = {}
    for row in range(len(lengths)):
        score = 0.0
        for (begin, end), weight in zip(ranges.T, weights, strict=True):
            for place in range(begin, end):
                if postings[0, place] == row:
                    count = float(postings[1, place])
                    score += weight * count / (count + (NORM[0] + NORM[1] * float(lengths[row])))
        if score and (allowed is None or allowed[row]) and score > best.get(numbers[row], (0,))[0]:
            best[numbers[row]] = (score, row_ids[row])
    return sorted(best.values(), key=lambda found: (-found[0], found[1]))


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("filtered", [False, True])
def test_the_best_documents_are_those_of_a_loop(kernel, group, filtered):
    rng = np.random.default_rng(group)
    for rows, words in [(1, 1), (200, 3), (900, 6)]:
        lengths = rng.integers(1, 40, rows).astype("uint32")
        postings, _, ranges = args = made(rng, rows, words, 4, lengths)
        weights = np.sort(rng.random(words))[::-1] * 3
        allowed = (rng.random(rows) < 0.3).astype("uint8") if filtered else None
        row_ids = 5 + 2 * np.arange(rows)
        numbers = row_ids - row_ids % group
        expected = by_loop(postings, ranges, weights, lengths, allowed, row_ids, numbers)
        for k in (1, 7, 2000):
            best = BestRows(k)
            rank_postings(*args, weights, lengths, allowed, row_ids, numbers, NORM, best)
            found = sorted(zip(-best.scores[: best.count], best.rows[: best.count], strict=True))
            assert [(-score, row) for score, row in found] == expected[:k]


def test_segments_and_windows_are_joined_and_of_equal_scores_the_first_row_wins(kernel):
    rng = np.random.default_rng(0)
    rows, words, k = 20_000, 5, 20
    lengths = rng.integers(5, 8, rows).astype("uint32")  # few distinct scores
    weights = np.linspace(2, 0.01, words)
    postings, maxima, ranges = made(rng, rows, words, 3, lengths)
    row_ids = np.arange(rows)
    sums = np.zeros(rows)
    for (begin, end), weight in zip(ranges.T, weights, strict=True):
        own, counts = postings[:, begin:end]
        sums[own] += weight * counts / (counts + (NORM[0] + NORM[1] * lengths[own]))
    expected = np.lexsort((np.append(row_ids, row_ids + rows), -np.append(sums, sums)))[:k]
    best = BestRows(k)
    for first in (0, rows):
        ids = row_ids + first
        rank_postings(postings, maxima, ranges, weights, lengths, None, ids, ids, NORM, best)
    order = np.lexsort((best.rows, -best.scores))
    assert best.rows[order].tolist() == expected.tolist()
    assert best.scores[order].tolist() == np.append(sums, sums)[expected].tolist()


def test_rows_of_a_damaged_file_are_left_out(kernel):
    """Out of range and out of order: no memory of others is read, and the call ends."""
    lengths = np.ones(10, dtype="uint32")
    postings = np.array([[3, 2**32 - 1, 4, 10, 2, 5, 0, 0], [1, 1, 1, 2**32 - 1, 0, 1, 1, 1]], dtype="uint32")
    maxima = np.array([[2**32 - 1], [0]], dtype="uint32")
    best = BestRows(5)
    ids = np.arange(10)
    rank_postings(postings, maxima, np.array([[0, 4], [4, 8]]), np.ones(2), lengths, None, ids, ids, NORM, best)
    assert 0 < best.count <= 5
    assert {*best.rows[: best.count]} <= {*range(10)}
