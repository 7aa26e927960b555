"""Train a small model on a teacher's scores in a trainer's loop: `python examples/train_distillation.py [rows.jsonl]`.

Without a file, the rows are made of the docstrings of Python's standard library: the first paragraph is the query, the
rest of a docstring its document; all-MiniLM-L6-v2 with its own 384 dimensions per token is the teacher, and scores the
four documents that it ranks highest. A file holds rows {query, documents, scores}, or any other form with scores that
`load_training_set` reads. The student keeps 32 dimensions, so its index is twelve times smaller. Runs offline on a CPU.
"""

import argparse
import random
import tempfile
import time

import torch
from sentence_transformers import MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments

from latelier.data import TrainingSet, load_training_set, split_validation
from latelier.demo import standard_library_documents
from latelier.evaluation import Collection, RetrievalEvaluator
from latelier.losses import Distillation
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.scores import colbert_scores


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


def with_scores(teacher: ColBERT, pairs: TrainingSet, candidates: int) -> TrainingSet:
    """Return each query with the documents that the teacher ranks highest among all, and the teacher's scores."""
    documents = [own[0] for own in pairs.documents]
    queries = teacher.encode_query(list(pairs.queries), packed=True)
    scores, best = colbert_scores(queries, teacher.encode_document(documents, packed=True)).topk(candidates, dim=1)
    chosen = [[documents[place] for place in places] for places in best.tolist()]
    return TrainingSet(pairs.queries, chosen, scores.tolist())


def from_0_to_1(rows: TrainingSet) -> TrainingSet:
    """Scale the scores of each query to 0 ... 1, as `Distillation` does with those of the student."""
    scaled = [[(score - min(own)) / max(max(own) - min(own), 1e-9) for score in own] for own in rows.scores]
    return TrainingSet(rows.queries, rows.documents, scaled)


def measured_on(validation: TrainingSet, rows: TrainingSet) -> RetrievalEvaluator:
    """Return an evaluator of how well the best documents of validation queries are found among those of all rows."""
    ids = {text: str(i) for i, text in enumerate(dict.fromkeys(text for own in rows.documents for text in own))}
    if validation.scores is None:
        best = [own[0] for own in validation.documents]
    else:
        scored = zip(validation.documents, validation.scores, strict=True)
        best = [own[max(range(len(own)), key=scores.__getitem__)] for own, scores in scored]
    qrels = {f"q{i}": {ids[text]: 1} for i, text in enumerate(best)}
    queries = {f"q{i}": query for i, query in enumerate(validation.queries)}
    texts = {id_: {"title": "", "text": text} for text, id_ in ids.items()}
    return RetrievalEvaluator(Collection(texts, queries, qrels), ["nDCG@10"], name="validation", write_csv=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", help="rows with scores; default: docstrings with those of a larger model")
    parser.add_argument("--candidates", type=int, default=8, help="documents kept of a row (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="batches to train on (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="queries per batch (default: %(default)s)")
    parser.add_argument("--validation-queries", type=int, default=150, help="at most so many (default: %(default)s)")
    parser.add_argument("--share", type=float, default=0.1, help="of the queries to validate on (default: %(default)s)")
    options = parser.parse_args()
    torch.manual_seed(0)

    student = ColBERT(DEFAULT_MODEL, embedding_size=32, max_length_query=24, max_length_document=48, device="cpu")
    if options.file:
        rows = load_training_set(options.file, candidates=options.candidates)
        # No question, and no best document, of the validation is trained on.
        training, validation = split_validation(from_0_to_1(rows), options.validation_queries, share=options.share)
        evaluator = measured_on(validation, rows)
        loss = Distillation(student)  # for scores from 0 to 1
    else:
        pairs, validation = split_validation(docstring_rows(), options.validation_queries, share=options.share)
        teacher = ColBERT.from_dense(DEFAULT_MODEL, max_length_document=48, device="cpu")
        evaluator = measured_on(validation, validation)
        figure = evaluator(teacher)[evaluator.primary_metric]
        print(f"nDCG@10 of the teacher, {teacher.embedding_size} dimensions: {figure:.3f}")
        drawn = pairs.select(range(min(len(pairs), options.steps * options.batch_size)))
        training = with_scores(teacher, drawn, candidates=4)
        # The teacher's scores are MaxSim too, on the student's scale.
        loss = Distillation(student, normalize_scores=False)
    print(f"{len(training)} rows to train on, {len(validation)} to validate on")

    with tempfile.TemporaryDirectory() as folder:
        arguments = MultiVectorEncoderTrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=2e-4,  # high, for so few steps
            warmup_steps=3,
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
            model=student,
            args=arguments,
            train_dataset=training.to_dataset(),
            evaluator=evaluator,
            loss=loss,
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


if __name__ == "__main__":
    main()
