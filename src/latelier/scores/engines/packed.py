"""MaxSim on packed embeddings, on the CPU and without gradients: no padding is ever multiplied.

Where the instruction set has it, one kernel multiplies and takes the maxima in one pass, and reads float16 and bfloat16
without converting them first; it multiplies bfloat16 by bfloat16 where the processor can (AVX512_BF16). Elsewhere all
query tokens of a batch are the columns of one matrix product, document tokens its rows, in blocks small enough that the
similarities are still in cache when their maximum is taken. Threads: as many as `torch.set_num_threads` says.

Sums are float32 for every type of number, so a similarity is off by at most ``dim * 2**-24 * |q| |d|`` from that of the
numbers as they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from latelier.arrays import as_tensor
from latelier.embeddings import TokenEmbeddings
from latelier.kernels.cpu import InstructionSet, instruction_set
from latelier.kernels.segment_max import NO_POSITIONS, segment_max_sum
from latelier.kernels.threads import for_ranges
from latelier.scores.engines.addressed import Matrices
from latelier.utils.ranges import lengths_to_offsets, split_by_rows

__all__ = ["document_blocks", "maxsim", "maxsim_list", "score_into"]

# Similarities of one block: 256k float32 = 1 MiB, what a core's second-level cache holds.
_BLOCK_ELEMENTS = 1 << 18
# More query tokens than this are scored in several passes, so that a block keeps at least 256 document tokens.
_QUERY_TOKENS = 1024
# Tokens copied together at a time: 8 MiB of 128 float32 each, in the last-level cache.
_COPIED_TOKENS = 1 << 14


def maxsim(queries: TokenEmbeddings, documents: TokenEmbeddings | Matrices) -> np.ndarray:
    """Score every query against every document.

    Parameters
    ----------
    queries, documents
        Packed embeddings of one dim, numpy or torch on the CPU, in any dtype; documents may be `Matrices` too.

    Returns
    -------
    numpy.ndarray
        ``(n_queries, n_documents)`` float32. A document without tokens scores minus infinity, a query without tokens
        0 elsewhere.

    Examples
    --------
    >>> queries = TokenEmbeddings.from_list([[[1.0, 0.0], [0.0, 1.0]]])
    >>> documents = TokenEmbeddings.from_list([[[1.0, 0.0]], [[-0.5, 0.0], [0.0, -0.25]]])
    >>> maxsim(queries, documents)
    array([[1., 0.]], dtype=float32)
    """
    scores = np.empty((len(queries), len(documents)), dtype=np.float32)
    score_into(scores, queries, documents)
    return scores


def maxsim_list(queries: TokenEmbeddings, documents: Sequence[torch.Tensor]) -> np.ndarray:
    """Score every query against every document of a list of at least one, all of one dtype, dim and device.

    They are scored where they are. Where that cannot be, they are copied together by and by: all at once, they would
    have left the cache before they are scored.
    """
    matrices = Matrices.of_list(documents) if instruction_set().has_one_pass else None
    if matrices is not None:
        return maxsim(queries, matrices)
    offsets = lengths_to_offsets([len(document) for document in documents])
    blocks = (documents[first:last] for first, last in split_by_rows(offsets, _COPIED_TOKENS))
    return np.concatenate([maxsim(queries, TokenEmbeddings.from_list(block)) for block in blocks], axis=1)


def score_into(
    scores: np.ndarray,
    queries: TokenEmbeddings,
    documents: TokenEmbeddings | Matrices,
    positions: np.ndarray = NO_POSITIONS,
) -> None:
    """Fill ``scores (q, d)``, and ``positions (query tokens, d)`` where asked, with the best kernel there is."""
    isa = instruction_set()
    if isa.has_one_pass and not isinstance(documents, Matrices):
        documents = Matrices.of_packed(documents)
    for first, last in split_by_rows(queries.offsets, _QUERY_TOKENS):
        tokens = slice(queries.offsets[first], queries.offsets[last]) if positions.size else slice(None)
        share = scores[first:last], queries[first:last]
        if isinstance(documents, Matrices):
            _score_in_one_pass(isa, *share, documents, positions[tokens])
        else:
            _score_products(*share, documents, positions[tokens])


def _score_in_one_pass(
    isa: InstructionSet,
    scores: np.ndarray,
    queries: TokenEmbeddings,
    documents: Matrices,
    positions: np.ndarray,
) -> None:
    from latelier.kernels.convert import BFLOAT16, FLOAT16, WORDS
    from latelier.kernels.float_maxsim import pack_queries, score_range

    pairs = queries.dtype == documents.dtype == "bfloat16" and documents.dim % 2 == 0 and isa.multiplies_bfloat16
    packed = pack_queries(queries.vectors.detach().contiguous().view(torch.int16).numpy() if pairs else _rows(queries))
    numbers = WORDS if pairs else {"float32": WORDS, "float16": FLOAT16, "bfloat16": BFLOAT16}[documents.dtype]

    def score(first: int, last: int) -> None:
        rows = documents.addresses[first:last], documents.lengths[first:last], documents.row_bytes, numbers
        score_range(rows, (packed, queries.offsets), scores, positions, first)

    for_ranges(score, documents.offsets, queries.num_tokens * queries.dim)


def _score_products(
    scores: np.ndarray, queries: TokenEmbeddings, documents: TokenEmbeddings, positions: np.ndarray
) -> None:
    columns = torch.from_numpy(_rows(queries).copy()).T  # (dim, query tokens)
    width = columns.shape[1]
    buffer = torch.empty(0)
    for first, last in document_blocks(documents.offsets, width):
        block = documents[first:last]
        if buffer.numel() < block.num_tokens * width:
            buffer = torch.empty(block.num_tokens * width)
        similarities = buffer[: block.num_tokens * width].view(block.num_tokens, width)
        torch.mm(as_tensor(_rows(block)), columns, out=similarities)
        segment_max_sum(similarities.numpy(), block.offsets, queries.offsets, scores, positions, first)


def document_blocks(offsets: np.ndarray, query_tokens: int) -> Iterator[tuple[int, int]]:
    """Cut documents into ranges whose similarities with `query_tokens` columns stay in cache."""
    return split_by_rows(offsets, max(1, _BLOCK_ELEMENTS // max(query_tokens, 1)))


def _rows(embeddings: TokenEmbeddings) -> np.ndarray:
    """All tokens as float32 rows ``(tokens, dim)``; a view where the vectors are that already."""
    # torch, because numpy takes ten times as long to convert it
    source = embeddings.to("torch") if embeddings.dtype == "float16" else embeddings
    vectors = source.to("float32").vectors
    array = vectors.detach().cpu().numpy() if isinstance(vectors, torch.Tensor) else vectors
    return np.ascontiguousarray(array)
