"""Int8 MaxSim in one pass: no matrix of similarities is ever written; `csrc/int8_maxsim.c` says how."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latelier.kernels.library import LANES, NUMPY, Kernel, instruction_set

_STEP = 4  # queries are packed in a multiple of this many words of four bytes

_score_int8 = Kernel(
    "score_int8",
    *("int8*", "float32*", "int64*", "int64", "int64"),
    *("int8*", "int32*", "float32*", "int64*", "int64", "int64", "int64"),
    *("float32*", "int64", "int64", "int8*"),
)


class Documents(NamedTuple):
    """Documents to score.

    `codes`: ``(tokens, dim)`` int8; `scales`: ``(tokens,)`` float32; `offsets`: ``(documents + 1,)`` int64.
    """

    codes: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray


class Queries(NamedTuple):
    """Queries to score.

    `codes`: ``(query_tokens, dim)`` int8; `packed`: the same as the kernel reads them: groups of 16 tokens ``(groups,
    words, 16, 4)`` int8, zeros where tokens or dims are missing; `start`: ``(groups, 16)`` int32: minus what shifting
    the document codes by 128 adds to each sum; `scales`: ``(query_tokens,)`` float32; `offsets`: ``(queries + 1,)``
    int64.
    """

    codes: np.ndarray
    packed: np.ndarray
    start: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray


def pack_queries(codes: np.ndarray, scales: np.ndarray, offsets: np.ndarray) -> Queries:
    """Arrange query tokens as the kernel reads them; the arguments as in `Queries`."""
    tokens, dim = codes.shape
    groups = -(-tokens // LANES)
    words = -(-dim // (4 * _STEP)) * _STEP
    padded = np.zeros((groups * LANES, words * 4), dtype="int8")
    padded[:tokens, :dim] = codes
    start = -128 * padded.astype("int32").sum(axis=1, dtype="int32")
    packed = padded.reshape(groups, LANES, words, 4).transpose(0, 2, 1, 3)
    return Queries(codes, np.ascontiguousarray(packed), start.reshape(groups, LANES), scales, offsets)


def score_range(documents: Documents, queries: Queries, scores: np.ndarray, column: int) -> None:
    """Score documents against queries.

    `scores`: ``(queries, n)`` float32, written from `column` on: minus infinity for a document without tokens.
    """
    if instruction_set() == NUMPY:
        _score_plain(documents, queries, scores, column)
        return
    codes, scales, offsets = documents
    groups, words, _, _ = queries.packed.shape
    _score_int8(
        codes,
        scales,
        offsets,
        len(offsets) - 1,
        codes.shape[1],
        queries.packed,
        queries.start,
        queries.scales,
        queries.offsets,
        len(queries.offsets) - 1,
        groups,
        words,
        scores,
        scores.shape[1],
        column,
        np.empty(LANES * (4 * groups + 8 * groups * words + 4 * words), dtype="int8"),
    )


def _score_plain(documents: Documents, queries: Queries, scores: np.ndarray, column: int) -> None:
    """Do the same in numpy, one document after the other."""
    rows = queries.codes.astype("float64")  # whose sums of products of bytes are exact
    for d in range(len(documents.offsets) - 1):
        tokens = slice(documents.offsets[d], documents.offsets[d + 1])
        if tokens.start == tokens.stop:
            scores[:, column + d] = -np.inf
            continue
        dots = rows @ documents.codes[tokens].T.astype("float64")
        best = (dots.astype("float32") * documents.scales[tokens]).max(axis=1) * queries.scales
        for q in range(len(scores)):
            scores[q, column + d] = best[queries.offsets[q] : queries.offsets[q + 1]].sum(dtype="float64")
