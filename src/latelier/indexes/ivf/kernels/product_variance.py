"""How much the sign score of a query varies, see `latelier.indexes.ivf.product_variance`."""

from __future__ import annotations

import numpy as np

from latelier.kernels.jit import kernel

__all__ = ["product_variance"]


@kernel("reassoc", "contract")
def product_variance(vectors: np.ndarray, dims: int, rows: np.ndarray) -> float:
    """Return the sum over pairs of query tokens of ``norm_i * norm_j * max(0, cosine_ij) ** 8``, by the first dims.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32.
    dims
        Number of dims.
    rows
        From `variance_rows`: the tokens to compare with all; with a part of them, the result is an estimate.

    Examples
    --------
    >>> ones = np.ones((2, 2), dtype="float32")
    >>> round(product_variance(ones, 1, np.arange(2)), 6)
    4.0
    """
    tokens = len(vectors)
    directions, norms = np.empty((tokens, dims), dtype=np.float32), np.empty(tokens)
    for t in range(tokens):
        square = 0.0
        for i in range(dims):
            square += np.float64(vectors[t, i]) ** 2
        norms[t] = np.sqrt(square)
        inverse = 1 / norms[t] if square > 0 else 0.0
        for i in range(dims):
            directions[t, i] = vectors[t, i] * inverse
    everything = len(rows) == tokens
    total = 0.0
    for row in rows:
        # With all rows, each pair is computed once and counted twice.
        part = 0.0
        for t in range(row + 1 if everything else 0, tokens):
            cosine = np.float32(0)
            for i in range(dims):
                cosine += directions[row, i] * directions[t, i]
            part += norms[t] * max(cosine, np.float32(0)) ** 8
        total += norms[row] * (norms[row] + 2 * part if everything else part)
    return total * tokens / max(1, len(rows))
