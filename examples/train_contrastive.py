"""Train a model on pairs in a trainer's loop: `python examples/train_contrastive.py [rows.jsonl]`.

Without a file, the pairs are made of the docstrings of Python's standard library: the first paragraph is the query, the
rest of a docstring its document. A file holds rows {query, positive, negative, ...}, or any other form that
`load_training_set` reads; of rows with scores, the document with the highest score is the positive. Runs offline on a
CPU.
"""

import argparse
import random
import tempfile
import time

import torch
from sentence_transformers import MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments
from sentence_transformers.base.training_args import BatchSamplers

from latelier.data import TrainingSet, load_training_set, split_validation
from latelier.demo import standard_library_documents
from latelier.evaluation import Collection, RetrievalEvaluator
from latelier.losses import Contrastive
from latelier.models import DEFAULT_MODEL, ColBERT


def docstring_rows() -> TrainingSet:
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
    return TrainingSet([query for query, _ in shuffled], [[document] for _, document in shuffled])


def best_first(rows: TrainingSet) -> TrainingSet:
    """Return rows without scores: the document with the highest score first, as the positive."""
    if rows.scores is None:
        return rows
    scored = zip(rows.documents, rows.scores, strict=True)
    ranked = [[text for _, text in sorted(zip(scores, own, strict=True), reverse=True)] for own, scores in scored]
    return TrainingSet(rows.queries, ranked)


def measured_on(validation: TrainingSet, rows: TrainingSet) -> RetrievalEvaluator:
    """Return an evaluator of how well the positives of validation queries are found among the documents of all rows."""
    ids = {text: str(i) for i, text in enumerate(dict.fromkeys(text for own in rows.documents for text in own))}
    qrels = {f"q{i}": {ids[own[0]]: 1} for i, own in enumerate(validation.documents)}
    queries = {f"q{i}": query for i, query in enumerate(validation.queries)}
    texts = {id_: {"title": "", "text": text} for text, id_ in ids.items()}
    return RetrievalEvaluator(Collection(texts, queries, qrels), ["nDCG@10"], name="validation", write_csv=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", help="rows to train on; default: docstrings")
    parser.add_argument("--candidates", type=int, default=8, help="documents kept of a row (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=30, help="batches to train on (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="pairs per batch (default: %(default)s)")
    parser.add_argument("--validation-queries", type=int, default=150, help="at most so many (default: %(default)s)")
    parser.add_argument("--share", type=float, default=0.1, help="of the queries to validate on (default: %(default)s)")
    options = parser.parse_args()
    torch.manual_seed(0)

    # The dense model with markers, query expansion and a new, untrained head of 128 dimensions.
    model = ColBERT(DEFAULT_MODEL, max_length_query=24, max_length_document=48, device="cpu")
    if options.file:
        rows = best_first(load_training_set(options.file, candidates=options.candidates))
    else:
        rows = docstring_rows()
    # No question, and no positive, of the validation is trained on.
    training, validation = split_validation(rows, options.validation_queries, share=options.share)
    evaluator = measured_on(validation, rows if options.file else validation)
    print(f"{len(training)} rows to train on, {len(validation)} to validate on")

    with tempfile.TemporaryDirectory() as folder:
        arguments = MultiVectorEncoderTrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=1e-4,  # high, for few steps; 1e-5 is usual with more data
            warmup_steps=3,
            batch_sampler=BatchSamplers.NO_DUPLICATES,  # no document is a negative of its own query
            logging_steps=max(1, options.steps // 5),
            eval_strategy="steps",
            eval_steps=max(1, options.steps // 5),
            eval_on_start=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,  # else a bar
            use_cpu=True,
        )
        trainer = MultiVectorEncoderTrainer(
            model=model,
            args=arguments,
            train_dataset=training.to_dataset(),
            evaluator=evaluator,
            loss=Contrastive(model),  # the documents of the other queries of a batch are negatives
        )
        start = time.perf_counter()
        trainer.train()
    seconds = time.perf_counter() - start

    print("step  loss    nDCG@10 of the validation")
    losses = {entry["step"]: f"{float(entry['loss']):.4f}" for entry in trainer.state.log_history if "loss" in entry}
    for entry in trainer.state.log_history:
        figure = entry.get(f"eval_{evaluator.primary_metric}")
        if figure is not None:
            print(f"{entry['step']:4}  {losses.get(entry['step'], '-'):6}  {float(figure):.3f}")
    print(f"{seconds:.0f} seconds")

    # The baseline: the dense model's own token vectors, with three times as many dimensions, not trained further.
    untrained = ColBERT.from_dense(DEFAULT_MODEL, max_length_document=48, device="cpu")
    figure = evaluator(untrained)[evaluator.primary_metric]
    print(f"nDCG@10 of ColBERT.from_dense, {untrained.embedding_size} dimensions: {figure:.3f}")


if __name__ == "__main__":
    main()
