"""Selection of the positions of the highest numbers in an array, and of all numbers close to the k-th highest."""

from __future__ import annotations

import numpy as np

from latelier.kernels.jit import kernel

__all__ = ["highest_places", "near_highest", "nth_highest", "sort_falling"]

# Numbers that are sorted together, by counting for each how many are higher.
_BLOCK = 128


@kernel()
def highest_places(scores: np.ndarray, places: np.ndarray) -> None:
    """Write the positions of the highest scores, ascending; of scores equal to the lowest of them, the first.

    Parameters
    ----------
    scores
        ``(n,)`` float32, no NaN.
    places
        ``(most,)`` int64, at most n; written.

    Examples
    --------
    >>> places = np.empty(2, dtype="int64")
    >>> highest_places(np.array([1, 3, 2, 2], dtype="float32"), places)
    >>> places
    array([1, 2])
    """
    most = len(places)
    edge = nth_highest(scores.copy(), most)
    above = 0
    for i in range(len(scores)):
        above += scores[i] > edge
    room, n = most - above, 0
    for i in range(len(scores)):
        if scores[i] > edge:
            places[n] = i
            n += 1
        elif scores[i] == edge and room > 0:
            places[n] = i
            n += 1
            room -= 1


@kernel()
def near_highest(scores: np.ndarray, k: int, slack: float, places: np.ndarray) -> int:
    """Write the positions, ascending, of all scores of at least ``(k-th highest score) - slack``.

    Parameters
    ----------
    scores
        ``(n,)`` float32, no NaN, ``n >= k``.
    k
        At least 1.
    slack
        Not negative.
    places
        ``(n,)`` int64, of which the first are written.

    Returns
    -------
    int
        Number of positions written.

    Examples
    --------
    >>> places = np.empty(4, dtype="int64")
    >>> near_highest(np.array([1, 3, 2, 2.5], dtype="float32"), 1, 0.75, places)
    2
    >>> places[:2]
    array([1, 3])
    """
    edge = nth_highest(scores.copy(), k) - slack
    n = 0
    for i in range(len(scores)):
        if scores[i] >= edge:
            places[n] = i
            n += 1
    return n


@kernel()
def nth_highest(scores: np.ndarray, n: int) -> float:
    """Return the n-th highest number, and reorder the array so that the n highest come first: Hoare's quickselect.

    Parameters
    ----------
    scores
        ``(m,)`` numbers of any type, no NaN; reordered in place.
    n
        From 1 to m.

    Examples
    --------
    >>> numbers = np.array([1, 5, 3, 4])
    >>> int(nth_highest(numbers, 2)), sorted(numbers[:2].tolist())
    (4, [4, 5])
    """
    first, last, wanted = 0, len(scores) - 1, n - 1
    while first < last:
        pivot = scores[(first + last) // 2]
        i, j = first, last
        while i <= j:
            while scores[i] > pivot:
                i += 1
            while scores[j] < pivot:
                j -= 1
            if i <= j:
                scores[i], scores[j] = scores[j], scores[i]
                i += 1
                j -= 1
        if wanted <= j:
            last = j
        elif wanted >= i:
            first = i
        else:
            break
    return scores[wanted]


@kernel()
def sort_falling(numbers: np.ndarray, n: int) -> None:
    """Reorder up to a few hundred distinct numbers so that the n highest come first, in descending order.

    Parameters
    ----------
    numbers
        ``(m,)`` distinct numbers of any type, no NaN; reordered in place.
    n
        Any number; all are sorted if it is m or more.

    Examples
    --------
    >>> numbers = np.array([1, 5, 3, 4])
    >>> sort_falling(numbers, 2)
    >>> numbers[:2]
    array([5, 4])
    """
    block = np.empty(min(_BLOCK, len(numbers)), dtype=numbers.dtype)
    for first in range(0, min(n, len(numbers)), _BLOCK):
        rest = numbers[first:]
        count = min(_BLOCK, len(rest))
        if count < len(rest):
            nth_highest(rest, count)
        for i in range(count):
            block[i] = rest[i]
        # Counting has no branch that a processor could predict wrongly, and compares many numbers at a time.
        for i in range(count):
            place = 0
            for j in range(count):
                place += block[j] > block[i]
            rest[place] = block[i]
