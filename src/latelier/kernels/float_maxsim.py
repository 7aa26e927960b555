"""Floating-point MaxSim in one pass, and its gradients; `csrc/float_maxsim.c` says how.

Half-precision documents are widened to float32, the tokens of one tile while those before them are multiplied. Where
queries are bfloat16 too and the processor multiplies bfloat16 fast (AMD's, with AVX512_BF16), nothing is widened, and
it takes half the time; numbers below 1.2e-38 then count as zero.

Backward, the gradient of query token ``i`` is ``sum over d of g[q, d] * document[j(i, d)]``, and that of
``document[j(i, d)]`` grows by ``g[q, d] * query[i]``, where ``j(i, d)`` is document ``d``'s best token for ``i``.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np

from latelier.kernels.library import LANES, NUMPY, Kernel, instruction_set

# What a row holds, as in csrc/conversion.h: words of the type of the queries' words, or what is widened to float32.
WORDS, FLOAT16, BFLOAT16 = range(3)
_STEP = 4  # queries are packed in a multiple of this many words of four bytes
_TILE_ROWS = 8  # at most

_score_floats = Kernel(
    "score_floats",
    *("int64*", "int64*", "int64", "int64", "int64", "int64"),
    *("int64", "int32*", "int64", "int64", "int64*", "int64"),
    *("float32*", "int32*", "int64", "int64", "int64", "int32*"),
)
_add_query_gradients = Kernel(
    "add_query_gradients",
    *("float32*", "int32*", "int64", "float32*", "int64*", "int64", "int64*", "float32*", "int64", "int64"),
)
_add_document_gradients = Kernel(
    "add_document_gradients",
    *("float32*", "int32*", "int64", "float32*", "int64*", "int64", "int64*", "float32*", "int64", "int64", "int64"),
)


def multiplies_bfloat16() -> bool:
    """Return whether two bfloat16 are multiplied in the time of one float32."""
    return instruction_set() == "avx512bf16"


class Documents(NamedTuple):
    """Documents to score, at their addresses in memory, which the caller keeps alive.

    `addresses`, `lengths`: of each document's rows, ``(documents,)`` int64. `kind`: what a row holds: `WORDS` of the
    type of the queries' words; or `FLOAT16` or `BFLOAT16`, which are widened to float32. `numbers`: of a row: words,
    or what is widened.
    """

    addresses: np.ndarray
    lengths: np.ndarray
    kind: int
    numbers: int
    row_bytes: int


class Queries(NamedTuple):
    """Queries to score.

    `rows`: ``(tokens, dim)`` float32, or bfloat16 as int16 with an even dim. `packed`: the same as the kernel reads
    them, ``(groups, words, 16)`` int32: groups of 16 tokens, word by word, zeros where tokens or words are missing.
    """

    rows: np.ndarray
    packed: np.ndarray
    offsets: np.ndarray


def pack_queries(rows: np.ndarray, offsets: np.ndarray) -> Queries:
    """Arrange query tokens as the kernel reads them; `rows` as in `Queries`."""
    words = np.ascontiguousarray(rows).view("int32")
    tokens, dim = words.shape
    width = -(-dim // _STEP) * _STEP
    groups = max(1, -(-tokens // LANES))
    padded = np.zeros((groups * LANES, width), dtype="int32")
    padded[:tokens, :dim] = words
    packed = np.ascontiguousarray(padded.reshape(groups, LANES, width).transpose(0, 2, 1))
    return Queries(rows, packed, offsets)


def score_range(
    documents: Documents, queries: Queries, scores: np.ndarray, positions: np.ndarray | None, column: int
) -> None:
    """Score documents against queries.

    `scores`: ``(queries, n)`` float32, written from `column` on: minus infinity for a document without tokens, 0 from a
    query without tokens elsewhere. `positions`: ``(query_tokens, n)`` int32, written: the best token in the document
    (the first of equal ones), -1 for a document without tokens; or None.
    """
    if instruction_set() == NUMPY:
        _score_plain(documents, queries, scores, positions, column)
        return
    groups, words, _ = queries.packed.shape
    _score_floats(
        documents.addresses,
        documents.lengths,
        len(documents.addresses),
        documents.kind,
        documents.numbers,
        documents.row_bytes,
        queries.rows.dtype == np.int16,
        queries.packed,
        groups,
        words,
        queries.offsets,
        len(queries.offsets) - 1,
        scores,
        positions,
        0 if positions is None else len(positions),
        scores.shape[1],
        column,
        np.zeros(2 * groups * LANES + 2 * _TILE_ROWS * words, dtype="int32"),
    )


def _score_plain(
    documents: Documents, queries: Queries, scores: np.ndarray, positions: np.ndarray | None, column: int
) -> None:
    """Do the same in numpy, one document after the other."""
    for number, (address, length) in enumerate(zip(documents.addresses, documents.lengths, strict=True), column):
        if positions is not None:
            positions[:, number] = -1
        if length == 0:
            scores[:, number] = -np.inf
            continue
        with np.errstate(over="ignore", invalid="ignore"):  # products may be infinite
            similarities = queries.rows @ _read_rows(documents, int(address), int(length)).T
        np.fmax(similarities, np.float32(-np.inf), out=similarities)  # NaN never wins
        best = similarities.max(axis=1)
        if positions is not None:
            positions[:, number] = np.where(best > -np.inf, similarities.argmax(axis=1), -1)
        for q in range(len(scores)):
            scores[q, number] = best[queries.offsets[q] : queries.offsets[q + 1]].sum(dtype="float64")


def _read_rows(documents: Documents, address: int, length: int) -> np.ndarray:
    """Return the rows of a document as float32."""
    memory = (ctypes.c_uint8 * (length * documents.row_bytes)).from_address(address)
    rows = np.ctypeslib.as_array(memory).reshape(length, -1)
    if documents.kind == WORDS:
        return rows.view("float32")
    if documents.kind == FLOAT16:
        return rows.view("float16").astype("float32")
    return (rows.view("uint16").astype("uint32") << 16).view("float32")


class Packed(NamedTuple):
    """Texts one after the other.

    `vectors`: ``(tokens, dim)`` float32; `offsets`: ``(texts + 1,)`` int64.
    """

    vectors: np.ndarray
    offsets: np.ndarray


def add_query_gradients(
    gradients: np.ndarray,
    positions: np.ndarray,
    documents: Packed,
    query_offsets: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Add the gradients of the tokens of queries ``first`` to ``last - 1`` to `out`, ``(query_tokens, dim)`` float32.

    `gradients`: of the scores, ``(queries, documents)`` float32. `positions`: ``(query_tokens, documents)`` int32: each
    document's best token, -1 if it has no token.
    """
    vectors, offsets = documents
    if instruction_set() == NUMPY:
        for q in range(first, last):
            for token in range(query_offsets[q], query_offsets[q + 1]):
                used = (positions[token] >= 0) & (gradients[q] != 0)
                rows = vectors[offsets[:-1][used] + positions[token, used]]
                out[token] += gradients[q, used] @ rows
        return
    columns = gradients.shape[1]
    dim = out.shape[1]
    _add_query_gradients(gradients, positions, columns, vectors, offsets, dim, query_offsets, out, first, last)


def add_document_gradients(
    gradients: np.ndarray,
    positions: np.ndarray,
    queries: Packed,
    document_offsets: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Add the gradients of the tokens of documents ``first`` to ``last - 1`` to `out`, see `add_query_gradients`.

    No two ranges of documents touch the same row of `out`.
    """
    vectors, offsets = queries
    count, columns = gradients.shape
    if instruction_set() == NUMPY:
        weights = np.repeat(gradients, np.diff(offsets), axis=0)
        for d in range(first, last):
            used = (positions[:, d] >= 0) & (weights[:, d] != 0)
            places = document_offsets[d] + positions[used, d]
            np.add.at(out, places, weights[used, d, None] * vectors[used])
        return
    dim = out.shape[1]
    _add_document_gradients(
        gradients, positions, columns, vectors, offsets, dim, document_offsets, out, first, last, count
    )
