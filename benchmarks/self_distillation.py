"""Distillation of a model with fewer dimensions from its own encoder with all dimensions.

    python benchmarks/self_distillation.py path/to/debian --other path/to/scifact [--dims 64] [--json results.json]

Both folders are collections in BEIR layout. The teacher is the untrained encoder, 384 dimensions per token. The student
is the same encoder with a projection; it trains with `Distillation` on the queries of qrels/train.tsv and the documents
that the teacher ranks highest, without relevance judgements. Test queries search a sample of the documents exactly. The
second collection shows the effect on text of another kind.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _common import MEASURE, parse_options, quality, sample, training_arguments
from sentence_transformers import MultiVectorEncoderTrainer

from latelier.data import TrainingSet
from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, load_beir
from latelier.losses import Distillation
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.scores import top_k

RANKS = 32  # candidates are sampled from the teacher's best 32 documents


class Judge:
    """Measures models on a sample of one collection."""

    def __init__(self, folder: Path, documents: int) -> None:
        self.name = folder.name
        self.collection: Collection = load_beir(folder)
        self.ids = sample(self.collection, documents)
        texts = self.collection.texts()
        self.texts = [texts[id_] for id_ in self.ids]

    def __call__(self, model: ColBERT, documents: TokenEmbeddings | None = None) -> float:
        """Return nDCG@10 of a model; ``documents`` are its embeddings of the documents, if known."""
        documents = model.encode_document(self.texts, packed=True) if documents is None else documents
        queries = model.encode_query(list(self.collection.queries.values()), packed=True)
        return quality(self.collection, self.ids, queries.to("cpu"), documents.to("cpu"))


def make_student(projection: str, dims: int, texts: list[str], length: int) -> ColBERT:
    torch.manual_seed(0)
    student = ColBERT.from_dense(DEFAULT_MODEL, projection, dims, max_length_document=length)
    return student.fit_projection(texts[:1000]) if projection == "pca" else student


def candidates(
    teacher: ColBERT, queries: list[str], texts: list[str], documents: TokenEmbeddings, each: int
) -> TrainingSet:
    """Return each query with its best document, a sample of the following ones, and the teacher's scores."""
    scores, places = top_k(teacher.encode_query(queries, packed=True).to("cpu"), documents, k=RANKS)
    rng = random.Random(0)
    chosen = [[0, *sorted(rng.sample(range(1, RANKS), each - 1))] for _ in queries]
    return TrainingSet(
        queries,
        [[texts[places[row, i]] for i in own] for row, own in enumerate(chosen)],
        [[float(scores[row, i]) for i in own] for row, own in enumerate(chosen)],
    )


def train(student: ColBERT, examples: TrainingSet, options: argparse.Namespace) -> dict[str, Any]:
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        arguments = training_arguments(
            folder,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=16,
            learning_rate=options.rate,
            warmup_steps=0.1,
        )
        loss = Distillation(student, normalize_scores=False)
        data = examples.to_dataset()
        trainer = MultiVectorEncoderTrainer(model=student, args=arguments, train_dataset=data, loss=loss)
        trainer.train()
    student.eval()
    return {"steps": trainer.state.global_step, "seconds": time.perf_counter() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path)
    parser.add_argument("--dims", type=int, default=64, help="dimensions of the student (default: 64)")
    parser.add_argument("--documents", type=int, default=6000, help="documents of the sample (default: 6000)")
    parser.add_argument("--queries", type=int, default=1200, help="training queries (default: 1200)")
    parser.add_argument("--candidates", type=int, default=8, help="documents per query (default: 8)")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--length", type=int, default=256, help="maximum tokens per document (default: 256)")
    parser.add_argument("--json", type=Path)
    options = parse_options(parser, default=False)
    judges = [Judge(options.folder, options.documents)]
    judges += [Judge(options.other, options.documents // 4)] if options.other else []
    texts = judges[0].texts
    training = load_beir(options.folder, "train")
    queries = sorted(training.queries.values())
    queries = random.Random(0).sample(queries, min(options.queries, len(queries)))

    rows: list[dict[str, Any]] = []

    def report(system: str, model: ColBERT, documents: TokenEmbeddings | None = None) -> None:
        found = {judges[0].name: judges[0](model, documents)} | {judge.name: judge(model) for judge in judges[1:]}
        rows.append({"system": system, **found})
        print(system, {name: round(value, 4) for name, value in found.items()}, flush=True)

    teacher = ColBERT.from_dense(DEFAULT_MODEL, max_length_document=options.length)
    vectors = teacher.encode_document(texts, packed=True).to("cpu")
    report(f"teacher, {teacher.embedding_size} dims, untrained", teacher, vectors)
    for projection in ("orthogonal", "pca"):
        student = make_student(projection, options.dims, texts, options.length)
        report(f"{options.dims} dims, {projection}, untrained", student)
    examples = candidates(teacher, queries, texts, vectors, options.candidates)
    trained = train(student, examples, options)
    report(f"{options.dims} dims, pca, after {trained['steps']} steps", student)
    print(f"\n| {MEASURE} | " + " | ".join(judge.name for judge in judges) + " |")
    print("| --- |" + " --- |" * len(judges))
    for row in rows:
        print("|", " | ".join([row["system"], *(f"{row[judge.name]:.4f}" for judge in judges)]), "|")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, **trained}, indent=1))


if __name__ == "__main__":
    main()
