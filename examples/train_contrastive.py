"""Train a late-interaction model on pairs, offline, in about a minute on a CPU: `python examples/train_contrastive.py`.

The pairs are made from the docstrings of Python's standard library: the first paragraph is the query, the rest of the
docstring its document.
"""

import argparse
import random
import tempfile
import time

import torch
from datasets import Dataset
from sentence_transformers import MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments
from sentence_transformers.base.training_args import BatchSamplers

from latelier.demo import standard_library_documents
from latelier.evaluation import evaluate
from latelier.losses import Contrastive
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.scores import colbert_scores


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


def measure(model: ColBERT, pairs: list[tuple[str, str]]) -> float:
    """Return nDCG@10 of finding each query's own document among the documents of all pairs."""
    queries = model.encode_query([query for query, _ in pairs], packed=True)
    documents = model.encode_document([document for _, document in pairs], packed=True)
    scores = colbert_scores(queries, documents).tolist()
    run = {f"q{i}": {f"d{j}": score for j, score in enumerate(row)} for i, row in enumerate(scores)}
    return evaluate(run, {f"q{i}": {f"d{i}": 1} for i in range(len(pairs))}, ["nDCG@10"])["nDCG@10"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30, help="batches to train on (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="pairs per batch (default: %(default)s)")
    parser.add_argument(
        "--validation-queries", type=int, default=150, help="pairs to validate on (default: %(default)s)"
    )
    options = parser.parse_args()
    torch.manual_seed(0)

    pairs = docstring_pairs()
    validation, training = pairs[: options.validation_queries], pairs[options.validation_queries :]
    print(f"{len(training)} training pairs, {len(validation)} validation pairs")

    # The dense model with markers, query expansion and a new, untrained head of 128 dimensions.
    model = ColBERT(DEFAULT_MODEL, max_length_query=24, max_length_document=48, device="cpu")
    print(f"nDCG@10 before training         {measure(model, validation):.3f}")

    # The first column is the query, the second its document, whatever their names. Further columns would be hard
    # negatives; here, the negatives are the documents of the other queries in the batch.
    dataset = Dataset.from_dict(
        {"query": [query for query, _ in training], "document": [document for _, document in training]}
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = MultiVectorEncoderTrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=1e-4,  # high, for few steps; 1e-5 is usual with more data
            warmup_steps=3,
            batch_sampler=BatchSamplers.NO_DUPLICATES,  # no document is a negative of its own query
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = MultiVectorEncoderTrainer(model=model, args=arguments, train_dataset=dataset, loss=Contrastive(model))
        start = time.perf_counter()
        trainer.train()
    seconds = time.perf_counter() - start
    print(f"nDCG@10 after {options.steps} steps          {measure(model.eval(), validation):.3f}   ({seconds:.0f} s)")

    # The baseline: the dense model's own token vectors, with three times as many dimensions, not trained further. With
    # 150 queries, a difference of 0.01 may be chance.
    untrained = ColBERT.from_dense(DEFAULT_MODEL, max_length_document=48, device="cpu")
    print(f"nDCG@10 of ColBERT.from_dense   {measure(untrained, validation):.3f}")


if __name__ == "__main__":
    main()
