"""The engine ``"int8"``: MaxSim on int8 codes on the CPU, by integer dot products with one scale per token.

A token is its codes times its scale, ``x ~ s * c``, and each number is off by at most half a scale. So for unit
vectors of dim ``n`` a similarity is off by at most ``sqrt(n) / 254`` from each side (by Cauchy-Schwarz; in practice a
tenth of that), and a score by that times the number of query tokens. The dot products themselves are exact integers, so
all instruction sets give the same scores to the last bit.
"""

from __future__ import annotations

import numpy as np
import torch

from latelier.arrays import is_tensor
from latelier.embeddings import TokenEmbeddings
from latelier.kernels.instruction_sets import instruction_set
from latelier.kernels.threads import for_ranges
from latelier.scores.engine import Engine, needs_gradient, off_cpu
from latelier.scores.inputs import Side

__all__ = ["Int8Engine", "maxsim"]


class Int8Engine(Engine):
    """The CPU: int8, and other dtypes quantised on the way; no gradients."""

    name = "int8"

    def unfit(self, queries: Side, documents: Side) -> str | None:
        """Accept inputs on the CPU that need no gradients."""
        if off_cpu(queries, documents) is None and needs_gradient(queries, documents):
            return "has no gradients, but they are needed here"
        return off_cpu(queries, documents)

    def all_pairs(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score by `maxsim`."""
        return torch.from_numpy(maxsim(queries.packed, documents.packed))

    def grouped(self, queries: Side, documents: Side) -> torch.Tensor:
        """Score one query after the other."""
        left, right = queries.packed, documents.packed
        n = len(right) // max(len(left), 1)
        rows = [maxsim(left[i : i + 1], right[i * n : (i + 1) * n]) for i in range(len(left))]
        return torch.from_numpy(np.concatenate([np.empty((0, n), dtype=np.float32), *rows]))


def maxsim(queries: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Score every query against every document.

    `queries`, `documents`: packed embeddings of one dim, on the CPU; those that are not int8 yet are quantised first,
    each token by its own scale. Quantise documents once (``documents.to("int8")``) rather than in every call. Returns:
    ``(n_queries, n_documents)`` float32.
    """
    left, right = queries.to("int8"), documents.to("int8")
    scores = np.empty((len(left), len(right)), dtype=np.float32)
    if left.num_tokens:
        _score_codes(left, right, scores)
    else:
        scores[:] = np.where(right.lengths, 0, -np.inf)
    return scores


def _score_codes(queries: TokenEmbeddings, documents: TokenEmbeddings, scores: np.ndarray) -> None:
    from latelier.kernels.int8_maxsim import Documents, pack_queries, score_range

    isa = instruction_set()
    columns, column_scales, codes, token_scales = (
        np.ascontiguousarray(part.detach() if is_tensor(part) else part)
        for side in (queries, documents)
        for part in (side.vectors, side.scales)
    )
    packed, offsets = tuple(pack_queries(columns, column_scales, queries.offsets)), documents.offsets

    def score(first: int, last: int) -> None:
        block = Documents(codes, token_scales, offsets[first : last + 1])
        score_range(isa.argument, tuple(block), packed, scores, first)

    for_ranges(score, offsets, columns.size // 4)
