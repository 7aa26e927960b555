"""Scores with arguments in every form, against two loops."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from latelier import scores
from naive import naive_matrix
from soak.arguments import COUNTS, NONSENSE, Texts, dress, matrices, spoil
from soak.caller import REFUSED, Caller, close
from soak.cases import Wrong

_BACKENDS = st.sampled_from(["auto"] * 4 + ["packed", "torch"])


def all_pairs(call: Caller, scratch: Path) -> None:
    """``colbert_scores``, and ``xtr_scores`` of all tokens, which is the mean of the same maxima."""
    queries, documents, valid = _sides(call)
    found = _score(call, scores.colbert_scores, queries, documents, valid, backend=call.draw(_BACKENDS))
    if valid:
        expected = naive_matrix(queries.matrices, documents.matrices)
        close(found, expected, "scores", max(queries.tolerance, documents.tolerance))
    found = _score(call, scores.xtr_scores, queries, documents, valid, top_k=10**6)
    if valid and expected.size:
        means = expected / np.array([len(query) for query in queries.matrices])[:, None]
        close(found, means, "scores of XTR", max(queries.tolerance, documents.tolerance))


def pairs(call: Caller, scratch: Path) -> None:
    """The pairwise functions: the diagonal of all pairs."""
    queries, documents, valid = _sides(call, equal=True)
    found = _score(call, scores.colbert_scores_pairwise, queries, documents, valid)
    if valid:
        expected = np.diag(naive_matrix(queries.matrices, documents.matrices))
        close(found, expected, "scores", max(queries.tolerance, documents.tolerance))
    _score(call, scores.xtr_scores_pairwise, queries, documents, valid, top_k=call.draw(st.integers(1, 9)))


def groups(call: Caller, scratch: Path) -> None:
    """The functions for distillation: each query against documents of its own."""
    queries, documents, valid = _sides(call, times=call.draw(st.integers(1, 3)))
    found = _score(call, scores.colbert_kd_scores, queries, documents, valid, backend=call.draw(_BACKENDS))
    if valid and queries.matrices:
        table = naive_matrix(queries.matrices, documents.matrices)
        n = len(documents.matrices) // len(queries.matrices)
        expected = [row[i * n : (i + 1) * n] for i, row in enumerate(table)]
        close(found, expected, "scores", max(queries.tolerance, documents.tolerance))
    _score(call, scores.xtr_kd_scores, queries, documents, valid, top_k=call.draw(st.integers(1, 9)))


def best(call: Caller, scratch: Path) -> None:
    """``top_k``: the first of a stable sort."""
    queries, documents, valid = _sides(call)
    k = call.draw(st.integers(1, 6))
    found = _score(call, scores.top_k, queries, documents, valid, k)
    if valid:
        expected = naive_matrix(queries.matrices, documents.matrices)
        close(found[0], -np.sort(-expected, axis=1)[:, :k], "best scores", max(queries.tolerance, documents.tolerance))
        chosen = np.take_along_axis(expected, found[1].numpy(), axis=1)
        close(found[0], chosen, "scores of the best", max(queries.tolerance, documents.tolerance))


def options(call: Caller, scratch: Path) -> None:
    """Counts and backends that are none."""
    queries, documents, _ = _sides(call)
    if call.draw(st.booleans()):
        call(scores.top_k, queries.matrices, documents.matrices, call.draw(st.one_of(COUNTS, NONSENSE)))
    else:
        call(scores.xtr_scores, queries.matrices, documents.matrices, top_k=call.draw(st.one_of(COUNTS, NONSENSE)))
    backend = call.draw(st.one_of(st.sampled_from(["cuda", "fused", "numpy", "AUTO"]), NONSENSE))
    call(scores.colbert_scores, queries.matrices, documents.matrices, backend=backend)


def _sides(call: Caller, *, equal: bool = False, times: int = 0) -> tuple[Texts, Texts, bool]:
    """Return queries and documents, and whether both are valid."""
    draw = call.draw
    dim, count = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    others = count if equal else count * times or draw(st.integers(1, 5))
    queries = dress(draw, matrices(draw, count, dim))
    documents = dress(draw, matrices(draw, others, dim))
    damage = draw(st.sampled_from([None, None, "queries", "documents", "dim", "count"]))
    if damage == "queries":
        queries = spoil(draw, queries)
    elif damage == "documents":
        documents = spoil(draw, documents)
    elif damage == "dim":
        documents = dress(draw, matrices(draw, others, dim + 1))
    elif damage == "count":
        documents = dress(draw, matrices(draw, draw(st.integers(0, 4)), dim, least=0))
    return queries, documents, damage is None


def _score(
    call: Caller, function: Any, queries: Texts, documents: Texts, valid: bool, *args: Any, **options: Any
) -> Any:
    masks = {"queries_mask": queries.mask, "documents_mask": documents.mask}
    found = call(function, queries.value, documents.value, *args, valid=valid, **masks, **options)
    if found is not REFUSED and not isinstance(found if isinstance(found, torch.Tensor) else found[0], torch.Tensor):
        raise Wrong(f"returned {type(found).__name__}")
    return found


TARGETS = (all_pairs, pairs, groups, best, options)
