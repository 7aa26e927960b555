"""What `train` gains on a few hundred pairs, on passages that it has seen and on passages that it has not.

    python benchmarks/training_gain.py path/to/scifact --split train --test test [--neighbours 7] [--seed 1]
    python benchmarks/training_gain.py path/to/cisi --split test --hold 20

The rows are the pairs of --split of a collection in BEIR layout. Validation questions are drawn

* by default, with `split_validation`: no passage of theirs is trained on;
* with --hold N, as N random questions whose passages are then removed from the training rows, for a collection in which
  most questions share passages;
* with --by-questions, by the text of the question alone, for comparison: their passages are trained on with others.

`train` starts from all-MiniLM-L6-v2 without training (`from_dense`), and validates among the passages of all rows. With
--test, the questions of another split are measured too, among their passages and 1,000 other documents: those
whose passages were trained on with other questions, and those with other passages.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time

import torch
from _common import parse_options, sample

from latelier.data import TrainingSet, load_training_set, split_validation
from latelier.data.splitting import count_shared_positives, positives, text_key
from latelier.evaluation import Collection, evaluate, load_beir
from latelier.evaluation.comparison import bootstrap_interval
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.scores import top_k
from latelier.training import TrainingOptions, train


def draw(rows: TrainingSet, options: argparse.Namespace) -> tuple[TrainingSet, TrainingSet]:
    """Return training and validation rows."""
    if not options.hold and not options.by_questions:
        return split_validation(rows, seed=options.seed)
    questions = sorted(set(rows.queries))
    drawn = set(random.Random(options.seed).sample(questions, options.hold or min(200, len(questions) // 10)))
    validation = [row for row, question in enumerate(rows.queries) if question in drawn]
    training = [row for row, question in enumerate(rows.queries) if question not in drawn]
    if options.hold:
        keys = list(map(text_key, positives(rows)))
        held = {keys[row] for row in validation}
        training = [row for row in training if keys[row] not in held]
    return rows.select(training), rows.select(validation)


def part(collection: Collection) -> Collection:
    """Return a collection with the judged documents and 1,000 others."""
    kept = sample(collection, len({id_ for judged in collection.qrels.values() for id_ in judged}) + 1000)
    return Collection({id_: collection.documents[id_] for id_ in kept}, collection.queries, collection.qrels)


def ndcg(model: ColBERT, collection: Collection) -> dict[str, float]:
    """Return nDCG@10 of each question among all documents, by exact search."""
    documents = model.encode_document(list(collection.texts().values()), packed=True)
    queries = model.encode_query(list(collection.queries.values()), packed=True)
    scores, places = top_k(queries, documents, k=10)
    ids = list(collection.documents)
    run = {
        query: {ids[place]: score for place, score in zip(found, values, strict=True)}
        for query, found, values in zip(collection.queries, places.tolist(), scores.tolist(), strict=True)
    }
    per_query = evaluate(run, collection.qrels, ["nDCG@10"]).per_query
    return {query: values["nDCG@10"] for query, values in per_query.items()}


def compare(name: str, before: dict[str, float], after: dict[str, float], queries: list[str]) -> None:
    """Print the means over some questions, and the interval of their change."""
    changes = [after[query] - before[query] for query in queries]
    means = [sum(values[query] for query in queries) / len(queries) for values in (before, after)]
    low, high = bootstrap_interval(changes)
    print(
        f"{name}: {len(queries)} questions, nDCG@10 {means[0]:.3f} -> {means[1]:.3f}, {means[1] - means[0]:+.3f} "
        f"[{low:+.3f}, {high:+.3f}]",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", default="train", help="relevance judgements to train on (default: %(default)s)")
    parser.add_argument("--test", help="relevance judgements to measure on besides")
    drawing = parser.add_mutually_exclusive_group()
    drawing.add_argument("--hold", type=int, help="validate on so many questions, and remove their passages")
    drawing.add_argument("--by-questions", action="store_true", help="let the validation share passages")
    parser.add_argument("--neighbours", type=int, default=0, help="as in train (default: %(default)s)")
    parser.add_argument("--length", type=int, default=180, help="tokens of a document (default: %(default)s)")
    parser.add_argument("--epochs", type=float, help="as in train")
    parser.add_argument("--learning-rate", type=float, default=3e-5, help="as in train (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    options = parse_options(parser, default=False)
    rows = load_training_set(options.folder, split=options.split)
    training, validation = draw(rows, options)
    shared, different = count_shared_positives(training, validation)
    print(vars(options), f"{torch.get_num_threads()} threads")
    print(
        f"{len(training)} training rows of {len(set(training.queries))} questions; {len(set(validation.queries))} "
        f"validation questions, of whose {different} passages {shared} are trained on",
        flush=True,
    )
    model = ColBERT.from_dense(DEFAULT_MODEL, max_length_document=options.length, device="cpu")
    trained = set(map(text_key, positives(training)))
    collection = None
    if options.test:
        collection = part(load_beir(options.folder, options.test))
        before = ndcg(model, collection)
    start = time.perf_counter()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        report = train(
            training,
            folder,
            model,
            validation=validation,
            options=TrainingOptions(
                neighbours=options.neighbours,
                epochs=options.epochs,
                learning_rate=options.learning_rate,
                seed=options.seed,
            ),
            on_progress=lambda line: print(f"  {(time.perf_counter() - start) / 60:5.1f} min {line}", flush=True),
        )
    print(report)
    cpu = time.process_time() - began
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes, {cpu / 60:.1f} of computing")
    if collection is None:
        return
    texts = {id_: text_key(text) for id_, text in collection.texts().items()}
    after = ndcg(model.eval(), collection)
    seen: dict[bool, list[str]] = {True: [], False: []}
    for query, judged in collection.qrels.items():
        known = [texts[id_] in trained for id_, value in judged.items() if value > 0]
        if all(known) or not any(known):
            seen[all(known)].append(query)
    compare("all test questions", before, after, list(collection.qrels))
    compare("test questions with passages that were trained on", before, after, seen[True])
    compare("test questions with other passages", before, after, seen[False])


if __name__ == "__main__":
    main()
