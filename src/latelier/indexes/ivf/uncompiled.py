"""The search of one query by numpy alone, for the first searches of a process, see `latelier.kernels.first_use`.

It compares the sign codes of all documents, whether they are in inverted lists or not, and scores the likely ones by
their codes: stages 3 and 4 of `latelier.indexes.ivf.search`. It needs no numba.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.code_layout import sign_words
from latelier.indexes.ivf.codec import CODES, SCALES, SIGNS, Codec
from latelier.indexes.ivf.search_parameters import SearchParameters, most_without_signs
from latelier.indexes.ivf.sign_integers import SignIntegers, round_to_integers
from latelier.indexes.ivf.sign_tolerance import sign_passes, tolerance
from latelier.indexes.storage.segments import Part
from latelier.scores.engines.uncompiled import maxsim
from latelier.utils.ranges import lengths_to_offsets, split_by_rows

__all__ = ["decode_by_numpy", "search_by_numpy", "sign_scores_by_numpy"]

# Document tokens that are compared or decoded at a time; limits the memory of their signs or numbers as floats.
_BLOCK_TOKENS = 1 << 12


def search_by_numpy(
    parts: Sequence[Part], codec: Codec, vectors: np.ndarray, k: int, parameters: SearchParameters
) -> tuple[np.ndarray, np.ndarray]:
    """Find the best documents of one query.

    Parameters
    ----------
    parts
        The documents that may be found, at least one.
    codec
        The codec of the index.
    vectors
        ``(tokens, dim)`` float32, at least one token.
    k
        Maximum number of documents to return.
    parameters
        The search parameters, of which `rerank`, `slack` and `exact` are used.

    Returns
    -------
    tuple of numpy.ndarray
        Scores, best first, and catalog numbers; documents with equal scores by number.
    """
    chosen = np.arange(sum(len(part.positions) for part in parts))
    if len(chosen) > (parameters.rerank or most_without_signs(k)) and not parameters.exact:
        *first, words = sign_passes(sign_words(codec.dim), len(chosen))
        for some in first:
            scores, edge = _score_signs(parts, chosen, vectors, some), tolerance(vectors, some, parameters)
            chosen = _near_best(chosen, scores, parameters.rerank or k, edge)
        scores = _score_signs(parts, chosen, vectors, words)
        if parameters.rerank is None:
            chosen = _near_best(chosen, scores, k, tolerance(vectors, words, parameters))
        else:
            chosen = np.sort(chosen[np.argsort(-scores, kind="stable")[: parameters.rerank]])
    query = TokenEmbeddings(vectors, [0, len(vectors)])
    found = []
    for part in _select(parts, chosen):
        for begin, end in split_by_rows(lengths_to_offsets(part.lengths), _BLOCK_TOKENS):
            block = Part(part.segment, part.positions[begin:end])
            found.append((maxsim(query, decode_by_numpy(block, codec))[0], part.segment.numbers[block.positions]))
    scores, numbers = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((numbers, -scores))[:k]
    return scores[order], numbers[order]


def _select(parts: Sequence[Part], chosen: np.ndarray) -> Iterator[Part]:
    """Yield those of the documents, counted through all parts, that are chosen; ascending."""
    first = 0
    for part in parts:
        last = first + len(part.positions)
        mine = chosen[(chosen >= first) & (chosen < last)] - first
        if len(mine):
            yield Part(part.segment, part.positions[mine])
        first = last


def _score_signs(parts: Sequence[Part], chosen: np.ndarray, vectors: np.ndarray, words: int) -> np.ndarray:
    query = round_to_integers(vectors, words)
    return np.concatenate([sign_scores_by_numpy(part, query) for part in _select(parts, chosen)])


def _near_best(chosen: np.ndarray, scores: np.ndarray, k: int, tolerance: float) -> np.ndarray:
    k = min(k, len(chosen))
    return chosen[scores >= np.partition(scores, -k)[-k] - tolerance]


def sign_scores_by_numpy(part: Part, query: SignIntegers) -> np.ndarray:
    """Return the sign scores of documents, as `kernels.sign_scores` does, ``(documents,)`` float32.

    Parameters
    ----------
    part
        Some documents.
    query
        From `round_to_integers`.
    """
    words, offsets = query.integers.shape[1] // 32, lengths_to_offsets(part.lengths)
    rows, integers = part.rows(SIGNS)[:, :words], query.integers.astype("float32")
    scores = np.zeros(len(part.positions), dtype="float32")
    # The sum of integer * sign is 2 * (sum over set bits) - (sum of all), and the tables hold sums that start at 0.
    lowest = np.abs(integers).sum(axis=1) - integers.sum(axis=1)
    for first, last in split_by_rows(offsets, _BLOCK_TOKENS):
        bits = _bits_of(rows[offsets[first] : offsets[last]], 32 * words).astype("float32")
        best = np.maximum.reduceat(integers @ bits.T, offsets[first:last] - offsets[first], axis=1)
        with np.errstate(over="ignore"):
            for unit, products in zip(query.units, 2 * best + lowest[:, None], strict=True):
                scores[first:last] += unit * products
    return np.where(scores < np.inf, scores, np.float32(-np.inf))


def decode_by_numpy(part: Part, codec: Codec) -> TokenEmbeddings:
    """Return the vectors of stored documents, as `Codec.decode` does."""
    bits = part.rows(SCALES).astype("uint32")
    # Infinity and NaN, which only a damaged file holds, are read as zero.
    scales = (np.where(bits < 0xFF00, bits, 0).astype("uint32") << 15).view("float32")
    if codec.bits == 8:
        values = part.rows(CODES).astype("float32")
        values -= np.float32(128)
    else:
        planes = [part.rows(SIGNS)]
        if codec.bits > 1:
            planes += list(np.moveaxis(part.rows(CODES), 1, 0))  # the highest plane first
        code = np.zeros((len(scales), codec.dim), dtype="int32")
        for plane in planes:
            code = 2 * code + _bits_of(plane, codec.dim)
        values = (2 * code - (2**codec.bits - 1)).astype("float32")
    values *= scales[:, None]
    return TokenEmbeddings(values, lengths_to_offsets(part.lengths))


def _bits_of(words: np.ndarray, dim: int) -> np.ndarray:
    """Return the bits of ``(tokens, words)`` uint32 as ``(tokens, dim)`` uint8, the lowest bit of a word first."""
    octets = np.ascontiguousarray(words).astype("<u4").view("uint8")
    return np.unpackbits(octets, axis=1, bitorder="little", count=dim)
