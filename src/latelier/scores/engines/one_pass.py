"""MaxSim on packed embeddings by one kernel, numpy or torch in any dtype, without gradients and without torch.

The kernel multiplies and takes the maxima in one pass (`kernels.float_maxsim`), in several threads, each on its own
documents. Sums are float32 for every dtype, so a similarity is off by at most ``dim * 2**-24 * |q| |d|``.
"""

from __future__ import annotations

import numpy as np

from latelier.arrays import is_tensor, torch_dtype
from latelier.embeddings import TokenEmbeddings
from latelier.kernels.instruction_sets import instruction_set
from latelier.kernels.threads import for_ranges
from latelier.scores.engines.addressed import AddressedDocuments
from latelier.utils.ragged import split_by_rows

__all__ = ["maxsim", "score_into"]

# More query tokens than this are scored in several passes: 512 KiB of 128 float32 each, in the second-level cache.
_QUERY_TOKENS = 1024


def maxsim(queries: TokenEmbeddings, documents: TokenEmbeddings | AddressedDocuments) -> np.ndarray:
    """Score every query against every document.

    `queries`, `documents`: packed embeddings of one dim, numpy or torch on the CPU, in any dtype; or
    `AddressedDocuments`. Returns: ``(n_queries, n_documents)`` float32. A document without tokens scores minus
    infinity, a query without tokens 0 elsewhere.
    """
    scores = np.empty((len(queries), len(documents)), dtype=np.float32)
    score_into(scores, queries, documents)
    return scores


def score_into(
    scores: np.ndarray,
    queries: TokenEmbeddings,
    documents: TokenEmbeddings | AddressedDocuments,
    positions: np.ndarray | None = None,
) -> None:
    """Score every query against every document.

    `scores`: ``(q, d)`` float32, written in place; `queries`, `documents`: as in `maxsim`; `positions`:
    ``(query tokens, d)`` int32, written in place: the best token's position in the document (the first of equal ones),
    -1 for a document without tokens.
    """
    if not isinstance(documents, AddressedDocuments):
        documents = AddressedDocuments.of_packed(documents)
    for first, last in split_by_rows(queries.offsets, _QUERY_TOKENS):
        tokens = slice(queries.offsets[first], queries.offsets[last])
        of_share = positions[tokens] if positions is not None else None
        _score_share(scores[first:last], queries[first:last], documents, of_share)


def _score_share(
    scores: np.ndarray, queries: TokenEmbeddings, documents: AddressedDocuments, positions: np.ndarray | None
) -> None:
    from latelier.kernels.conversion import BFLOAT16, FLOAT16, WORDS
    from latelier.kernels.float_maxsim import NO_POSITIONS, Documents, Queries, pack_queries, score_range

    isa = instruction_set()
    pairs = queries.dtype == documents.dtype == "bfloat16" and documents.dim % 2 == 0 and isa.multiplies_bfloat16
    rows = _bit_pairs(queries) if pairs else _rows(queries)
    columns = tuple(Queries(pack_queries(rows), queries.offsets))
    kind = WORDS if pairs else {"float32": WORDS, "float16": FLOAT16, "bfloat16": BFLOAT16}[documents.dtype]
    row = kind, documents.dim // 2 if pairs else documents.dim, documents.row_bytes
    where = NO_POSITIONS if positions is None else positions

    def score(first: int, last: int) -> None:
        block = Documents(documents.addresses[first:last], documents.lengths[first:last], *row)
        score_range(isa.argument, tuple(block), columns, scores, where, first)

    for_ranges(score, documents.offsets, queries.num_tokens * queries.dim)


def _rows(embeddings: TokenEmbeddings) -> np.ndarray:
    """All tokens as float32 rows ``(tokens, dim)``; a view where the vectors are that already."""
    vectors = embeddings.to("float32").vectors
    return np.ascontiguousarray(vectors.detach().cpu().numpy() if is_tensor(vectors) else vectors)


def _bit_pairs(embeddings: TokenEmbeddings) -> np.ndarray:
    """All tokens of bfloat16 embeddings as the bits of their numbers, ``(tokens, dim)`` int16."""
    bits: np.ndarray = embeddings.vectors.detach().contiguous().view(torch_dtype("int16")).numpy()
    return bits
