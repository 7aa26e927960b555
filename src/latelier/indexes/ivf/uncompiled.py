"""The search of one query by numpy alone, for the first searches of a process, see `latelier.kernels.threads`.

It compares the sign codes of all documents, whether they are in inverted lists or not, with those of the query, and
scores the likely ones by their codes. It needs no numba. Counting differing bits takes numpy one nanosecond per query
token, document token and 64 numbers; products with signs, as the kernels compute them, take it several times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import SIGNS, Codec
from latelier.indexes.ivf.layout import sign_words
from latelier.indexes.ivf.parameters import SearchParameters, most_without_signs, product_variance_by_numpy
from latelier.indexes.store.segments import Part
from latelier.scores.maxsim import maxsim_numpy as maxsim
from latelier.utils.ragged import lengths_to_offsets, split_by_rows

__all__ = ["hamming_scores_by_numpy", "search_by_numpy"]

# Document tokens that are compared or decoded at a time: their sign codes stay in a core's second-level cache.
_BLOCK_TOKENS = 1 << 14
_LARGEST = float(np.finfo(np.float32).max)


def search_by_numpy(
    parts: Sequence[Part], codec: Codec, vectors: np.ndarray, k: int, parameters: SearchParameters
) -> tuple[np.ndarray, np.ndarray]:
    """Find the best documents of one query.

    `parts`: the documents that may be found, at least one. `vectors`: ``(tokens, dim)`` float32, at least one token.
    `parameters`: the search parameters, of which `rerank`, `slack` and `exact` are used. Returns: scores, best first,
    and catalog numbers; documents with equal scores by number.
    """
    counts = [len(part.positions) for part in parts]
    chosen = np.arange(sum(counts))
    if len(chosen) > (parameters.rerank or most_without_signs(k)) and not parameters.exact:
        norms = np.minimum(np.sqrt(np.square(vectors, dtype="float64").sum(axis=1)), _LARGEST).astype("float32")
        signs = _query_signs(vectors)
        scores = np.concatenate([hamming_scores_by_numpy(part, signs, norms) for part in parts])
        if parameters.rerank is None:
            edge = float(np.partition(scores, -k)[-k]) - parameters.slack * _deviation(vectors)
            chosen = np.flatnonzero(scores >= max(edge, -_LARGEST))
        else:
            chosen = np.sort(np.argsort(-scores, kind="stable")[: parameters.rerank])
    query = TokenEmbeddings(vectors, [0, len(vectors)])
    found = []
    for part, first, count in zip(parts, lengths_to_offsets(counts), counts, strict=False):
        mine = Part(part.segment, part.positions[chosen[(chosen >= first) & (chosen < first + count)] - first])
        for begin, end in split_by_rows(lengths_to_offsets(mine.lengths), _BLOCK_TOKENS):
            block = Part(part.segment, mine.positions[begin:end])
            found.append((maxsim(query, codec.decode_by_numpy(block))[0], part.segment.numbers[block.positions]))
    scores, numbers = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((numbers, -scores))[:k]
    return scores[order], numbers[order]


def hamming_scores_by_numpy(part: Part, signs: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Return ``-(sum over query tokens of norm * least Hamming distance)`` for each document, ``(documents,)`` float32.

    `signs`: ``(query_tokens, sign_words(dim))`` uint32: the query's sign codes; `norms`: ``(query_tokens,)`` float32:
    the norms of its tokens.
    """
    rows, offsets = part.rows(SIGNS), lengths_to_offsets(part.lengths)
    if rows.shape[1] % 2 == 0:  # half as many operations, on twice as wide words
        rows, signs = rows.view("uint64"), signs.view("uint64")
    scores = np.empty(len(part.positions), dtype="float32")
    for first, last in split_by_rows(offsets, _BLOCK_TOKENS):
        # One word of all tokens after the other: numpy's loops are then as long as the block.
        words = np.ascontiguousarray(rows[offsets[first] : offsets[last]].T)
        starts = offsets[first:last] - offsets[first]
        total = np.zeros(last - first)
        for token, norm in zip(signs, norms, strict=True):
            distances = np.zeros(words.shape[1], dtype="uint16" if len(words) < 1024 else "uint32")
            for word, bits in zip(words, token, strict=True):
                distances += np.bitwise_count(word ^ bits)
            total += float(norm) * np.minimum.reduceat(distances, starts)
        scores[first:last] = -np.minimum(total, _LARGEST)
    return scores


def _deviation(vectors: np.ndarray) -> float:
    """Return the standard deviation of the score of a good match by Hamming distances.

    Its bits differ with probability 1/5 each, as if independently: for `dim` bits the Hamming distance has the standard
    deviation ``sqrt(1/5 * 4/5 * dim) = 0.4 * sqrt(dim)``.
    """
    return 0.4 * math.sqrt(vectors.shape[1] * product_variance_by_numpy(vectors))


def _query_signs(vectors: np.ndarray) -> np.ndarray:
    """Return the sign codes of a query, ``(tokens, sign_words(dim))`` uint32.

    A bit is set for ``x >= -scale / 2``, where the scale of a token is its largest absolute number / 127: if the number
    rounded to an integer, as those of documents are, is not negative.
    """
    edges = np.abs(vectors).max(axis=1, keepdims=True) * np.float32(-0.5 / 127)
    packed = np.packbits(vectors >= edges, axis=1, bitorder="little")
    signs = np.zeros((len(vectors), 4 * sign_words(vectors.shape[1])), dtype="uint8")
    signs[:, : packed.shape[1]] = packed
    return signs.view("<u4").astype("uint32")
