"""A query as the stages of a search read it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latelier.indexes.ivf.kernels.codes import byte_width, sign_words
from latelier.indexes.ivf.kernels.probing import encode_query
from latelier.kernels.simd import LANES

__all__ = ["Query", "prepare_query"]


class Query(NamedTuple):
    """Codes of a query's tokens; the shapes are those of `latelier.indexes.ivf.kernels.probing.encode_query`."""

    vectors: np.ndarray
    codes: np.ndarray
    rows: np.ndarray
    packed: np.ndarray
    start: np.ndarray
    signs: np.ndarray
    scales: np.ndarray
    lengths: np.ndarray


def prepare_query(vectors: np.ndarray) -> Query:
    """Quantise a query.

    Parameters
    ----------
    vectors
        ``(tokens, dim)`` float32.

    Examples
    --------
    >>> query = prepare_query(np.array([[1.0, -0.5]], dtype="float32"))
    >>> query.codes[0, 0, :2].tolist(), query.scales.round(4).tolist()
    ([127, -64], [0.007899999618530273])
    """
    tokens, dim = vectors.shape
    width, words, groups = byte_width(dim), sign_words(dim), -(-tokens // LANES)
    query = Query(
        np.ascontiguousarray(vectors),
        np.zeros((3, tokens, width), dtype="int8"),
        np.full((tokens, width), 128, dtype="uint8"),
        np.zeros((3, groups, width // 4, LANES, 4), dtype="int8"),
        np.zeros((3, groups, LANES), dtype="int32"),
        np.zeros((groups, words, LANES), dtype="uint32"),
        np.empty(tokens, dtype="float32"),
        np.empty(tokens, dtype="float32"),
    )
    encode_query(*query[:6], (query.scales, query.lengths))
    return query
