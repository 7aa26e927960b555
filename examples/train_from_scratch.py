"""Train a small encoder from random weights, offline, in less than a minute: `python examples/train_from_scratch.py`.

Nothing is pretrained: the vocabulary is learned from the same texts, the docstrings of Python's standard library. The
first paragraph is the query, the rest of the docstring its document.
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
from latelier.models import ColBERT, TextEncoder, train_tokenizer
from latelier.modules import TransformerEncoder
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


def build(texts: list[str]) -> ColBERT:
    """Return a model of 1.5 million random weights, with a vocabulary learned from texts."""
    tokenizer = train_tokenizer(texts, vocabulary_size=8192)
    encoder = TransformerEncoder(len(tokenizer), dim=128, num_layers=2, heads=4)
    modules = [TextEncoder(encoder, tokenizer)]
    return ColBERT(modules=modules, embedding_size=64, max_length_query=24, max_length_document=48, device="cpu")


def measure(model: ColBERT, pairs: list[tuple[str, str]]) -> float:
    """Return nDCG@10 of finding each query's own document among the documents of all pairs."""
    queries = model.encode_query([query for query, _ in pairs], packed=True)
    documents = model.encode_document([document for _, document in pairs], packed=True)
    scores = colbert_scores(queries, documents).tolist()
    run = {f"q{i}": {f"d{j}": score for j, score in enumerate(row)} for i, row in enumerate(scores)}
    return evaluate(run, {f"q{i}": {f"d{i}": 1} for i in range(len(pairs))}, ["nDCG@10"])["nDCG@10"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150, help="batches to train on (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=0, help="batches of masked tokens before it (default: none)")
    parser.add_argument("--batch-size", type=int, default=32, help="pairs per batch (default: %(default)s)")
    parser.add_argument(
        "--validation-queries", type=int, default=150, help="pairs to validate on (default: %(default)s)"
    )
    options = parser.parse_args()
    torch.manual_seed(0)

    pairs = docstring_pairs()
    validation, training = pairs[: options.validation_queries], pairs[options.validation_queries :]
    print(f"{len(training)} training pairs, {len(validation)} validation pairs")
    model = build([text for pair in training for text in pair])
    print(f"{len(model.tokenizer)} tokens, {sum(weights.numel() for weights in model.parameters()):,} weights")
    # Random vectors tell tokens apart, so that the untrained model finds documents by the words of the query.
    print(f"nDCG@10 before training         {measure(model, validation):.3f}")
    if options.warm_up:
        start = time.perf_counter()
        loss = model[0].warm_up([text for pair in training for text in pair], steps=options.warm_up)
        seconds = time.perf_counter() - start
        print(f"nDCG@10 after masked tokens     {measure(model, validation):.3f}   ({seconds:.0f} s, loss {loss:.2f})")

    dataset = Dataset.from_dict(
        {"query": [query for query, _ in training], "document": [document for _, document in training]}
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = MultiVectorEncoderTrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=2e-3,  # a hundred times that of a pretrained encoder
            warmup_steps=10,
            batch_sampler=BatchSamplers.NO_DUPLICATES,  # no document is a negative of its own query
            logging_steps=25,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        # Scores of untrained vectors differ little: a temperature below 1 widens the differences.
        loss = Contrastive(model, temperature=0.15)
        trainer = MultiVectorEncoderTrainer(model=model, args=arguments, train_dataset=dataset, loss=loss)
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start

        model.eval().save(folder)
        loaded = ColBERT(folder, device="cpu")
        print(f"nDCG@10 after {options.steps} steps         {measure(loaded, validation):.3f}   ({seconds:.0f} s)")


if __name__ == "__main__":
    main()
