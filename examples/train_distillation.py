"""Train a small model on the scores of a larger one, offline, on a CPU: `python examples/train_distillation.py`.

The teacher is all-MiniLM-L6-v2 with its own 384 dimensions per token; the student keeps 32 of them, so its index is
twelve times smaller. Both read the docstrings of Python's standard library: the first paragraph is the query, the rest
of the docstring its document. Takes about a minute.
"""

import argparse
import random
import tempfile
import time

import torch
from datasets import Dataset
from sentence_transformers import MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments

from latelier.demo import standard_library_documents
from latelier.evaluation import evaluate
from latelier.losses import Distillation
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.scores import colbert_scores

CANDIDATES = 4


def docstring_pairs() -> list[tuple[str, str]]:
    """Return (first paragraph, name and rest) of every docstring of suitable length, in a fixed random order."""
    pairs = {}
    for document in standard_library_documents():
        name, _, docstring = document["text"].partition("\n")
        summary, _, rest = docstring.strip().partition("\n\n")
        summary, rest = " ".join(summary.split()), " ".join(rest.split())
        if 20 <= len(summary) <= 80 and len(rest) >= 80:
            pairs[summary] = f"{name} {rest}"
    shuffled = list(pairs.items())
    random.Random(0).shuffle(shuffled)
    return shuffled


def all_scores(model: ColBERT, pairs: list[tuple[str, str]]) -> torch.Tensor:
    """Score every query against every document: (pairs, pairs)."""
    queries = model.encode_query([query for query, _ in pairs], packed=True)
    documents = model.encode_document([document for _, document in pairs], packed=True)
    return colbert_scores(queries, documents)


def measure(model: ColBERT, pairs: list[tuple[str, str]]) -> float:
    """Return nDCG@10 of finding each query's own document among the documents of all pairs."""
    scores = all_scores(model, pairs).tolist()
    run = {f"q{i}": {f"d{j}": score for j, score in enumerate(row)} for i, row in enumerate(scores)}
    return evaluate(run, {f"q{i}": {f"d{i}": 1} for i in range(len(pairs))}, ["nDCG@10"])["nDCG@10"]


def candidates(teacher: ColBERT, pairs: list[tuple[str, str]]) -> Dataset:
    """Return each query with the documents that the teacher ranks highest, and the teacher's scores.

    No relevance judgements are needed, only queries and documents.
    """
    scores, best = all_scores(teacher, pairs).topk(CANDIDATES, dim=1)
    columns = {"query": [query for query, _ in pairs]}
    for i in range(CANDIDATES):
        columns[f"document_{i + 1}"] = [pairs[j][1] for j in best[:, i].tolist()]
    return Dataset.from_dict({**columns, "scores": scores.tolist()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="batches to train on (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="queries per batch (default: %(default)s)")
    parser.add_argument(
        "--validation-queries", type=int, default=150, help="pairs to validate on (default: %(default)s)"
    )
    options = parser.parse_args()
    torch.manual_seed(0)

    pairs = docstring_pairs()
    validation = pairs[: options.validation_queries]
    training = pairs[options.validation_queries :][: options.steps * options.batch_size]
    teacher = ColBERT.from_dense(DEFAULT_MODEL, max_length_document=48, device="cpu")
    print(f"nDCG@10 of the teacher, {teacher.embedding_size} dimensions  {measure(teacher, validation):.3f}")

    student = ColBERT(DEFAULT_MODEL, embedding_size=32, max_length_query=24, max_length_document=48, device="cpu")
    print(f"nDCG@10 of the student, {student.embedding_size} dimensions   {measure(student, validation):.3f}")

    with tempfile.TemporaryDirectory() as folder:
        arguments = MultiVectorEncoderTrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=2e-4,  # high, for so few steps
            warmup_steps=3,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = MultiVectorEncoderTrainer(
            model=student,
            args=arguments,
            train_dataset=candidates(teacher, training),
            # The teacher's scores are MaxSim too, on the same scale. For a teacher with scores from 0 to 1, such as
            # many cross-encoders, use normalize_scores=True.
            loss=Distillation(student, normalize_scores=False),
        )
        start = time.perf_counter()
        trainer.train()
    seconds = time.perf_counter() - start
    after = f"nDCG@10 of the student after {options.steps} steps"
    print(f"{after}  {measure(student.eval(), validation):.3f}   ({seconds:.0f} s)")


if __name__ == "__main__":
    main()
