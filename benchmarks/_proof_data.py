"""What `training_proof.py` trains on and watches: mined pairs, pairs of other collections, samples of collections."""

from __future__ import annotations

import random
import re
from pathlib import Path

from latelier import indexes
from latelier.data import TrainingSet, mine_hard_negatives
from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, load_beir
from latelier.models import ColBERT, pool_tokens

__all__ = ["interleave", "make_guard", "mine", "sample", "titles"]

POOLING = 32  # tokens to one vector, for mining


def titles(folders: list[Path], sentences: int = 2) -> Collection:
    """Return documents of other collections with queries that need no judging: their titles, and some sentences.

    Such pairs are what the encoder learned from at first: seen again now and then, they might keep it from forgetting.
    With abstracts of Cranfield and CISI they did so for SciFact's training queries, and not for its test queries.
    """
    documents: dict[str, dict[str, str]] = {}
    queries: dict[str, str] = {}
    rng = random.Random(2)
    for folder in folders:
        for id, document in load_beir(folder, on_problem="warn").documents.items():
            title, text = document.get("title", ""), document["text"].removeprefix(document.get("title", "")).strip()
            whole = re.split(r"(?<=[.?!])\s+", text)
            drawn = rng.sample(whole, min(sentences, len(whole) // 3))
            rest = " ".join(sentence for sentence in whole if sentence not in drawn)
            if not title or not rest:
                continue
            documents[f"{folder.name}-{id}"] = {"title": "", "text": rest}
            for query in (title, *drawn):
                queries[f"{folder.name}-{id}-{len(queries)}"] = query
    qrels = {query: {query.rpartition("-")[0]: 1} for query in queries}
    return Collection(documents, queries, qrels)


def interleave(first: TrainingSet, second: TrainingSet, batch: int, every: int) -> TrainingSet:
    """Put a batch of the second after every few batches of the first, beginning again where the second ends."""
    queries: list[str] = []
    documents: list[list[str]] = []
    turn = 0
    for start in range(0, len(first), batch):
        parts = [(first, range(start, min(start + batch, len(first))))]
        if start // batch % every == every - 1:
            parts.append((second, [row % len(second) for row in range(turn, turn + batch)]))
            turn += batch
        for source, rows in parts:
            queries += [source.queries[row] for row in rows]
            documents += [source.documents[row] for row in rows]
    return TrainingSet(queries, documents)


def mine(
    model: ColBERT, train: Collection, documents: TokenEmbeddings, queries: list[str], negatives: int
) -> TrainingSet:
    """Hard negatives from an index of a few pooled vectors per document, which is good enough for this and quick."""
    index = indexes.Flat()
    for start in range(0, len(documents), 4096):
        pooled = pool_tokens(documents[start : start + 4096].to("float32"), POOLING, protected_tokens=0)
        index.add(list(train.documents)[start : start + 4096], pooled)
    judged = {query: train.qrels[query] for query in queries}
    return mine_hard_negatives(
        model,
        index,
        train.queries,
        judged,
        documents=train.texts(),
        negatives=negatives,
        ranks=(1, negatives),
        batch_size=256,
    )


def sample(test: Collection, training: Collection, documents: int) -> tuple[Collection, Collection]:
    """Keep the first documents, and the queries that they answer."""
    kept = dict(list(test.documents.items())[:documents])
    parts = []
    for part in (test, training):
        qrels = {query: judged for query, judged in part.qrels.items() if judged.keys() <= kept.keys()}
        parts.append(Collection(kept, {query: part.queries[query] for query in qrels}, qrels))
    return parts[0], parts[1]


def make_guard(folder: Path, documents: int = 3000, queries: int = 1000) -> Collection:
    """Return a sample of a collection's training queries, their documents, and the first of the other documents."""
    whole = load_beir(folder, "train")
    qrels = dict(list(whole.qrels.items())[:queries])
    kept = dict.fromkeys(id for judged in qrels.values() for id in judged)
    kept |= dict.fromkeys(list(whole.documents)[: max(0, documents - len(kept))])
    return Collection({id: whole.documents[id] for id in kept}, {q: whole.queries[q] for q in qrels}, qrels)
