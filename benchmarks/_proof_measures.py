"""What `training_proof.py` measures: exact search of a collection, and choosing the right one of a few documents."""

from __future__ import annotations

from pathlib import Path

from latelier.data import TrainingSet
from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, evaluate
from latelier.models import ColBERT
from latelier.scores import colbert_kd_scores, top_k

__all__ = ["MEASURES", "accuracy", "encode", "measure"]

MEASURES = ["Success@1", "nDCG@10"]


def encode(model: ColBERT, texts: list[str], cache: Path | None = None) -> TokenEmbeddings:
    if cache is not None and cache.exists():
        return TokenEmbeddings.load(cache)
    vectors = model.encode_document(texts, packed=True).to("cpu").to("float16")
    if cache is not None:
        cache.parent.mkdir(parents=True, exist_ok=True)
        vectors.save(cache)
    return vectors


def measure(model: ColBERT, collection: Collection, documents: TokenEmbeddings) -> dict[str, float]:
    ids = list(collection.documents)
    queries = list(collection.queries)
    vectors = model.encode_query([collection.queries[query] for query in queries], packed=True)
    scores, positions = top_k(vectors.to("cpu").to("float32"), documents, k=10)
    run = {
        query: {ids[p]: s for p, s in zip(row, values, strict=True)}
        for query, row, values in zip(queries, positions.tolist(), scores.tolist(), strict=True)
    }
    return dict(evaluate(run, collection.qrels, MEASURES))


def accuracy(model: ColBERT, held_out: TrainingSet) -> float:
    """Share of queries whose own document is the best of its candidates."""
    texts = list(dict.fromkeys(text for row in held_out.documents for text in row))
    place = {text: i for i, text in enumerate(texts)}
    documents = encode(model, texts).to("float32")
    queries = model.encode_query(list(held_out.queries), packed=True).to("cpu").to("float32")
    order = [place[text] for row in held_out.documents for text in row]
    scores = colbert_kd_scores(queries, documents[order])
    return float((scores.argmax(dim=1) == 0).float().mean())
