"""Ward clustering of each document's tokens, which may have weights, and the mean of each cluster.

The nearest-neighbour chain algorithm, O(n**2): each cluster of the chain is the nearest of the one before it, and when
the last two are each other's nearest, they are merged. This gives the same merges as the greedy algorithm, but not in
ascending order of height, so the tree is cut after all of them have been found.

The matrix holds squared distances in float64: squares save a square root per update, and float64 gives the same merges
as scipy. It is compacted at each merge, so that every loop runs over contiguous numbers that are all in use.
"""

from __future__ import annotations

import numpy as np

from latelier.kernels.jit import kernel


@kernel("contract", "reassoc")
def pool_documents(
    vectors: np.ndarray, offsets: np.ndarray, pooled_offsets: np.ndarray, protected: int, pooled: np.ndarray
) -> int:
    """Cluster each document's tokens and write the unit mean of each cluster, in the order of their first tokens.

    `vectors`: ``(tokens, dim)`` float32; `offsets`, `pooled_offsets`: ``(documents + 1,)`` int64 into `vectors` and
    `pooled`; `protected`: first rows of each document, neither read nor written; `pooled`: ``(clusters, dim)`` float32
    zeros. Returns the first document with a mean of infinite or NaN length, or -1.
    """
    scratch = _scratch(offsets, protected)
    ones = np.ones(0, dtype=np.float32)
    for d in range(len(offsets) - 1):
        rows = vectors[offsets[d] + protected : offsets[d + 1]]
        means = pooled[pooled_offsets[d] + protected : pooled_offsets[d + 1]]
        n = len(rows)
        if n == 0:
            continue
        labels = _labels(rows, ones, len(means), scratch)
        for token in range(n):
            mean = means[labels[token]]
            for k in range(len(mean)):
                mean[k] += rows[token, k]
        for c in range(len(means)):
            square = 0.0
            for k in range(means.shape[1]):
                square += np.float64(means[c, k]) * np.float64(means[c, k])
            if not np.isfinite(square):
                return d
            if square > 0:
                means[c] *= np.float32(1 / np.sqrt(square))  # the sum has the direction of the mean
    return -1


@kernel("contract", "reassoc")
def cluster_documents(
    vectors: np.ndarray, offsets: np.ndarray, clusters: np.ndarray, weights: np.ndarray, labels: np.ndarray
) -> None:
    """Cluster each document's tokens; write `labels`, ``(tokens,)`` int64, numbered in the order of their first tokens.

    `vectors`: ``(tokens, dim)`` float32; `offsets`: ``(documents + 1,)`` int64; `clusters`: ``(documents,)`` int64;
    `weights`: ``(tokens,)`` float32, a token of weight ``w`` counting as ``w`` equal tokens; ``(0,)``: all have 1.
    """
    scratch = _scratch(offsets, 0)
    for d in range(len(offsets) - 1):
        first = offsets[d]
        end = offsets[d + 1]
        if end > first:
            own = weights[first:end] if len(weights) else weights
            labels[first:end] = _labels(vectors[first:end], own, clusters[d], scratch)


@kernel(inner=True)
def _scratch(offsets: np.ndarray, protected: int) -> np.ndarray:
    """Return memory for the distances of the longest document."""
    longest = 0
    for d in range(len(offsets) - 1):
        longest = max(longest, offsets[d + 1] - offsets[d] - protected)
    return np.empty(longest * longest, dtype=np.float64)


@kernel("contract", "reassoc", inner=True)
def _labels(rows: np.ndarray, weights: np.ndarray, clusters: int, scratch: np.ndarray) -> np.ndarray:
    """Return each token's cluster; `weights` are those of the rows, or empty."""
    n = len(rows)
    distances = scratch[: n * n].reshape(n, n)
    _square_distances(rows, distances)
    sizes = np.ones(n)
    if len(weights):
        sizes[:] = weights
        _weight(distances, sizes)
    return _cut(_merge(distances, sizes), clusters)


@kernel("contract", inner=True)
def _weight(distances: np.ndarray, sizes: np.ndarray) -> None:
    """Multiply squared distances by ``2 a b / (a + b)``: what it costs to merge clusters of the sizes a and b."""
    n = len(sizes)
    for i in range(n):
        for j in range(n):
            if i != j:
                distances[i, j] *= 2 * sizes[i] * sizes[j] / (sizes[i] + sizes[j])


@kernel("contract", "reassoc", inner=True)
def _square_distances(rows: np.ndarray, distances: np.ndarray) -> None:
    """Fill ``distances (n, n)`` with ``(1 - <row, row>) ** 2``, infinity on the diagonal.

    Eight products at a time, of four rows with two, so that each load is used more than once. Rows past the end are
    replaced by the last row.
    """
    n, dim = rows.shape
    end = n - 1
    for i in range(0, n, 4):
        i1 = min(i + 1, end)
        i2 = min(i + 2, end)
        i3 = min(i + 3, end)
        row = rows[i]
        row1 = rows[i1]
        row2 = rows[i2]
        row3 = rows[i3]
        for j in range(i, n, 2):
            j1 = min(j + 1, end)
            left = rows[j]
            right = rows[j1]
            a = a1 = a2 = a3 = b = b1 = b2 = b3 = np.float32(0)
            for k in range(dim):
                a += row[k] * left[k]
                a1 += row1[k] * left[k]
                a2 += row2[k] * left[k]
                a3 += row3[k] * left[k]
                b += row[k] * right[k]
                b1 += row1[k] * right[k]
                b2 += row2[k] * right[k]
                b3 += row3[k] * right[k]
            _put(distances, i, j, a)
            _put(distances, i1, j, a1)
            _put(distances, i2, j, a2)
            _put(distances, i3, j, a3)
            _put(distances, i, j1, b)
            _put(distances, i1, j1, b1)
            _put(distances, i2, j1, b2)
            _put(distances, i3, j1, b3)
    for i in range(n):
        distances[i, i] = np.inf


@kernel(inner=True)
def _put(distances: np.ndarray, i: int, j: int, similarity: float) -> None:
    """Write a squared cosine distance to both triangles; the distance is clipped to 0..2, and 0 for NaN."""
    distance = np.float32(1) - similarity
    distance = distance if distance > 0 else np.float32(0)
    distance = distance if distance < 2 else np.float32(2)
    distances[i, j] = distances[j, i] = np.float64(distance) ** 2


@kernel("contract", inner=True)
def _merge(distances: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merge until one cluster is left; ``distances (n, n)`` and ``sizes (n,)`` are overwritten.

    Returns, for each of the n - 1 merges, its squared height and the first tokens of both clusters: the earlier one,
    then the later one. Each token but 0 is the later one exactly once.
    """
    n = len(distances)
    keys = distances.view(np.int64)
    tokens = np.arange(n)  # first token of each cluster
    chain = np.empty(n, dtype=np.int64)
    heights = np.empty(n - 1)
    earlier = np.empty(n - 1, dtype=np.int64)
    later = np.empty(n - 1, dtype=np.int64)
    depth = 0
    for merge in range(n - 1):
        active = n - merge
        if depth == 0:
            chain[0] = 0
            depth = 1
        while True:
            x = chain[depth - 1]
            y = _nearest(keys[x], active)
            # Among equally near clusters the previous one is taken, or the chain would never end.
            if depth > 1 and distances[x, chain[depth - 2]] <= distances[x, y]:
                y = chain[depth - 2]
                break
            chain[depth] = y
            depth += 1
        depth -= 2
        kept = min(x, y)
        gone = max(x, y)
        heights[merge] = distances[kept, gone]
        earlier[merge] = min(tokens[kept], tokens[gone])
        later[merge] = max(tokens[kept], tokens[gone])
        tokens[kept] = earlier[merge]
        _join(distances, sizes, kept, gone, active)
        # The last cluster moves to the row that has become free.
        last = active - 1
        if gone != last:
            distances[gone, :last] = distances[last, :last]
            distances[:last, gone] = distances[last, :last]
            distances[gone, gone] = np.inf
            sizes[gone] = sizes[last]
            tokens[gone] = tokens[last]
            for i in range(depth):
                if chain[i] == last:
                    chain[i] = gone
    return heights, earlier, later


@kernel("contract", inner=True)
def _join(distances: np.ndarray, sizes: np.ndarray, kept: int, gone: int, active: int) -> None:
    """Replace the first of two clusters by their union: the Lance-Williams formula for Ward's method."""
    height = distances[kept, gone]
    size_kept = sizes[kept]
    size_gone = sizes[gone]
    row = distances[kept]
    other = distances[gone]
    for i in range(active):
        size = sizes[i]
        total = (size_kept + size) * row[i] + (size_gone + size) * other[i] - size * height
        distance = total / (size_kept + size_gone + size)
        # A union is never nearer than the nearer of its two clusters. The chain relies on it, so rounding is corrected.
        if row[i] < other[i]:
            lowest = row[i]
        else:
            lowest = other[i]
        row[i] = distance if distance > lowest else lowest
    row[kept] = np.inf
    sizes[kept] = size_kept + size_gone
    for i in range(active):
        distances[i, kept] = row[i]


@kernel(inner=True)
def _nearest(keys: np.ndarray, active: int) -> int:
    """Return the first position of the minimum of ``keys[:active]``.

    Non-negative floats have the same order as their bits read as integers. LLVM vectorises a minimum of integers but
    not one of floats, and neither with an early exit.
    """
    smallest = keys[0]
    for i in range(1, active):
        smallest = keys[i] if keys[i] < smallest else smallest
    place = active
    for i in range(active):
        here = i if keys[i] == smallest else active
        place = here if here < place else place
    return place


@kernel(inner=True)
def _cut(merges: tuple[np.ndarray, np.ndarray, np.ndarray], clusters: int) -> np.ndarray:
    """Return each token's cluster after the lowest merges; clusters are numbered in the order of their first tokens."""
    heights, earlier, later = merges
    n = len(heights) + 1
    parents = np.arange(n)
    for merge in np.argsort(heights, kind="mergesort")[: n - clusters]:
        parents[later[merge]] = earlier[merge]
    labels = np.empty(n, dtype=np.int64)
    seen = 0
    for token in range(n):
        if parents[token] == token:
            labels[token] = seen
            seen += 1
        else:
            labels[token] = labels[parents[token]]  # the parent is an earlier token, labelled already
    return labels
