"""What the benchmarks share: a sample of a collection that can be judged, and how well it is ranked."""

from __future__ import annotations

import random

from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, evaluate
from latelier.scores import colbert_scores

__all__ = ["MEASURE", "quality", "sample"]

MEASURE = "nDCG@10"


def sample(collection: Collection, documents: int) -> list[str]:
    """Ids of all judged documents, and of others drawn by chance until there are enough."""
    texts = collection.texts()
    judged = sorted({id_ for judged in collection.qrels.values() for id_ in judged if id_ in texts})
    others = sorted(texts.keys() - set(judged))
    random.Random(0).shuffle(others)
    return judged + others[: max(0, documents - len(judged))]


def quality(collection: Collection, ids: list[str], queries: TokenEmbeddings, documents: TokenEmbeddings) -> float:
    best = colbert_scores(queries, documents).topk(min(100, len(ids)), dim=1)
    run = {
        query: {ids[i]: score for i, score in zip(places, scores, strict=True)}
        for query, places, scores in zip(collection.queries, best.indices.tolist(), best.values.tolist(), strict=True)
    }
    return float(evaluate(run, collection.qrels, [MEASURE])[MEASURE])
