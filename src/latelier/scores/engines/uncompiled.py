"""MaxSim by numpy alone, for the first searches of a process, see `latelier.kernels.threads`: no torch, no numba."""

from __future__ import annotations

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.utils.ragged import split_by_rows

__all__ = ["maxsim"]

# Similarities of one block: 1M float32 = 4 MiB, small enough for a cache and large enough for a product.
_BLOCK_ELEMENTS = 1 << 20


def maxsim(queries: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Score every query against every document.

    `queries`, `documents`: packed numpy embeddings of one dim, of any floating dtype; each with at least one token.
    Returns: ``(n_queries, n_documents)`` float32. The order of the sums, and so the last digits, may differ from those
    of the compiled kernels.
    """
    rows = queries.vectors.astype("float32", copy=False)
    scores = np.empty((len(queries), len(documents)), dtype="float32")
    if not len(rows):
        return scores
    for first, last in split_by_rows(documents.offsets, max(1, _BLOCK_ELEMENTS // len(rows))):
        begin, end = documents.offsets[first], documents.offsets[last]
        # As in the kernels, products that exceed the largest float32 are infinite, without a warning.
        with np.errstate(over="ignore", invalid="ignore"):
            similarities = rows @ documents.vectors[begin:end].astype("float32", copy=False).T
            starts = documents.offsets[first:last] - begin
            best = np.maximum.reduceat(similarities, starts, axis=1)
            if np.isnan(best).any():  # infinite products of both signs were added; the kernels do not count NaN
                best = np.nan_to_num(np.fmax.reduceat(similarities, starts, axis=1), nan=-np.inf, posinf=np.inf)
            np.add.reduceat(best, queries.offsets[:-1], axis=0, out=scores[:, first:last])
    return scores
