"""Searches by keywords, by vectors and keywords together, and by vectors among the documents that keywords find.

The filter, the keywords and the vectors are those of one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.indexes.base import Parameters
from latelier.indexes.fusion import fuse_ranks, fuse_scores
from latelier.indexes.inputs import prepare_queries
from latelier.indexes.ranking import Ranking
from latelier.indexes.results import Hit
from latelier.indexes.search_mode import SearchMode
from latelier.indexes.storage.segments import Part
from latelier.indexes.storage.snapshot import Snapshot
from latelier.indexes.storage.storage import Storage
from latelier.scores.topk import TopK

__all__ = [
    "SearchParts",
    "check_queries",
    "combine_sides",
    "hits_of",
    "rank_with_keywords",
    "score_documents",
]

# Searches the documents in parts of a snapshot for queries, and adds the best ones to a TopK.
SearchParts: TypeAlias = Callable[[Snapshot, Sequence[Part], TokenEmbeddings, TopK], None]


def rank_with_keywords(
    storage: Storage,
    search: SearchParts,
    queries: Any,
    k: int,
    mode: SearchMode,
    filter: str | Sequence[str] | None,
    parameters: Parameters,
    timeout: float | None,
) -> tuple[Snapshot, list[Ranking]]:
    """Search in one of the modes that use keywords.

    Parameters
    ----------
    storage
        The documents.
    search
        Searches by vectors; it scores every document of its parts if `TopK.k` is their number.
    queries
        The vectors of the queries, as users gave them; not used for ``"keywords"``.
    k
        Maximum number of documents per query.
    mode
        The mode and its arguments.
    filter, parameters, timeout
        See `Storage.select`.

    Returns
    -------
    tuple
        The snapshot that was searched, and the best documents of each query.

    Raises
    ------
    InvalidArgumentError
        If the numbers of queries and texts differ.
    """
    # Only the reads of the catalog hold the commit, so that writers of an index in memory do not wait for the vectors.
    with storage.held():
        snapshot = storage.snapshot()
        vectors = check_queries(queries, snapshot.dim, mode)
        allowed = None if filter is None else storage.select(filter, parameters, timeout)[1]
        depth = k if vectors is None else mode.depth
        by_keywords = storage.rank_by_keywords(mode.texts, depth, allowed)
    if vectors is None or not by_keywords:
        return snapshot, by_keywords
    best = TopK(len(vectors), min(mode.depth, max(1, snapshot.documents)))
    if mode.name == "hybrid":
        search(snapshot, snapshot.parts(allowed), vectors, best)
    rankings = []
    for i, own in enumerate(by_keywords):
        score = partial(score_documents, search, snapshot, vectors[i : i + 1])
        rankings.append(combine_sides(mode, Ranking(best.numbers[i], best.scores[i]), own, score, k))
    return snapshot, rankings


def combine_sides(
    mode: SearchMode,
    by_vectors: Ranking,
    by_keywords: Ranking,
    score: Callable[[np.ndarray], Ranking],
    k: int,
) -> Ranking:
    """Return the best documents of one query from those that vectors and those that keywords have found.

    Parameters
    ----------
    mode
        ``"rerank"`` or ``"hybrid"``, and its arguments.
    by_vectors, by_keywords
        Up to `mode.depth` documents each; ``"rerank"`` needs none by vectors.
    score
        Returns the MaxSim scores of documents, given by number.
    k
        Maximum number of documents.
    """
    if mode.name == "rerank":
        return Ranking.sorted(*score(by_keywords.numbers), k)
    if mode.fusion == "rrf":
        return fuse_ranks([by_vectors, by_keywords], mode.weights, k)
    scored = score(np.setdiff1d(by_keywords.numbers, by_vectors.numbers))
    every = Ranking(*(np.concatenate(pair) for pair in zip(by_vectors, scored, strict=True)))
    return fuse_scores([every, by_keywords], mode.weights, k)


def hits_of(snapshot: Snapshot, rankings: Sequence[Ranking]) -> list[list[Hit]]:
    """Return the documents of rankings as hits, with the ids that users gave."""
    numbers = np.concatenate([np.zeros(0, dtype="int64"), *(ranking.numbers for ranking in rankings)])
    scores = [score for ranking in rankings for score in ranking.scores.tolist()]
    hits = map(Hit._make, zip(snapshot.ids(numbers), scores, strict=True))
    return [list(islice(hits, len(ranking.numbers))) for ranking in rankings]


def check_queries(queries: Any, dim: int | None, mode: SearchMode) -> TokenEmbeddings | None:
    """Return the vectors of the queries of a search, packed; None for ``"keywords"``, which uses none.

    Raises
    ------
    InvalidArgumentError
        If there are none, or not as many as the texts of a mode that needs both.
    EmbeddingsError
        See `latelier.indexes.inputs.prepare_queries`.
    """
    if mode.name == "keywords":
        return None
    if queries is None and mode.name != "vectors":
        raise InvalidArgumentError(
            f"mode={mode.name!r} needs the vectors of the queries too; only 'keywords' does not."
        )
    vectors = prepare_queries(queries, dim)
    if mode.name != "vectors" and len(vectors) != len(mode.texts):
        raise InvalidArgumentError(
            f"received {len(vectors)} queries and {len(mode.texts)} texts; give one text for each query."
        )
    return vectors


def score_documents(search: SearchParts, snapshot: Snapshot, query: TokenEmbeddings, numbers: np.ndarray) -> Ranking:
    """Return the MaxSim scores of some documents, given by number, for one query."""
    if not len(numbers):
        return Ranking(numbers, np.zeros(0, "float32"))
    best = TopK(1, len(numbers))
    search(snapshot, snapshot.parts(np.sort(numbers)), query, best)
    return Ranking(best.numbers[0], best.scores[0])
