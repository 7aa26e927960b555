"""Does training help? From a dense model to a late-interaction model of one collection, measured on queries not seen.

    python benchmarks/training_proof.py path/to/debian --other path/to/scifact --minutes 20 [--json proof.json]

Both folders are collections in BEIR layout with qrels/train.tsv and qrels/test.tsv. What runs: the untrained model is
measured on the test queries of both; hard negatives are mined with its own index; it trains on the training pairs of
the first for so many minutes, each batch made of pairs whose documents are mined negatives of one another; its weights
are blended with the untrained ones, with as much of the trained ones as a sample of the training queries of the second
collection allows; and it is measured again. All documents of a collection are searched, exactly. `--cache` keeps the
token vectors of the untrained model for the next run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _training import training_arguments
from sentence_transformers import MultiVectorEncoderTrainer
from transformers import TrainerCallback

from latelier import indexes
from latelier.data import TrainingSet, mine_hard_negatives, order_by_neighbours
from latelier.data.samplers import InOrder
from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, evaluate, load_beir
from latelier.losses import CachedContrastive, Contrastive
from latelier.models import DEFAULT_MODEL, ColBERT, Recipe, pool_tokens
from latelier.scores import colbert_kd_scores, top_k

MEASURES = ["Success@1", "nDCG@10"]
HELD_OUT = 150  # training queries that are not trained on, for the curve
POOLING = 32  # tokens to one vector, for mining
CANDIDATES = 20  # documents that each of them is tried on
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.4, 0.2)  # of the trained weights in the final ones
TOLERANCE = 0.0075  # nDCG@10 that another collection may lose, on a sample of its training queries


def encode(model: ColBERT, texts: list[str], cache: Path | None = None) -> TokenEmbeddings:
    if cache is not None and cache.exists():
        return TokenEmbeddings.load(cache)
    vectors = model.encode_document(texts, packed=True).to("cpu").to("float16")
    if cache is not None:
        cache.parent.mkdir(parents=True, exist_ok=True)
        vectors.save(cache)
    return vectors


def search(model: ColBERT, queries: list[str], documents: TokenEmbeddings, k: int) -> tuple[Any, Any]:
    vectors = model.encode_query(queries, packed=True).to("cpu").to("float32")
    scores, positions = top_k(vectors, documents, k=k)
    return scores.tolist(), positions.tolist()


def measure(model: ColBERT, collection: Collection, documents: TokenEmbeddings) -> dict[str, float]:
    ids = list(collection.documents)
    queries = list(collection.queries)
    scores, positions = search(model, [collection.queries[q] for q in queries], documents, 10)
    run = {
        query: {ids[p]: s for p, s in zip(row, values, strict=True)}
        for query, row, values in zip(queries, positions, scores, strict=True)
    }
    return dict(evaluate(run, collection.qrels, MEASURES))


def mine(
    model: ColBERT, train: Collection, documents: TokenEmbeddings, queries: list[str], options: argparse.Namespace
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
        negatives=options.ranks,
        ranks=(1, options.ranks),
        batch_size=256,
    )


class Clock(TrainerCallback):
    """Stops training when its time or its steps are up, lowers the learning rate accordingly, measures on the way."""

    def __init__(
        self, model: ColBERT, held_out: TrainingSet, seconds: float, points: int, steps: int | None = None
    ) -> None:
        self.model, self.held_out, self.seconds = model, held_out, seconds
        self.steps, self.step = steps, 0
        self.length = model.max_length_document
        self.points = [i / points for i in range(points + 1)]
        self.curve: list[dict[str, float]] = []
        self.paused, self.started = 0.0, time.perf_counter()

    @property
    def share(self) -> float:
        """Share of the steps, or of the time, that is spent; measuring not counted."""
        return self.step / self.steps if self.steps else self.spent / self.seconds

    @property
    def spent(self) -> float:
        """Seconds of training."""
        return time.perf_counter() - self.started - self.paused

    def rate(self, step: int) -> float:
        """Learning rate relative to the highest."""
        return min((step + 1) / 20, max(0.0, 1 - self.share))

    def record(self, step: int) -> None:
        """Add a point to the curve."""
        begin = time.perf_counter()
        self.model.eval()
        length, self.model[0].document_length = self.model[0].document_length, self.length
        hits = accuracy(self.model, self.held_out)
        self.model[0].document_length = length
        self.model.train()
        self.paused += time.perf_counter() - begin
        self.curve.append({"minutes": self.spent / 60, "step": step, "Success@1 of candidates": hits})
        print(f"  {self.curve[-1]['minutes']:5.1f} min, step {step:5}: {hits:.3f}", flush=True)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.started = time.perf_counter()
        self.record(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure when it is time to, stop when time is up."""
        self.step = state.global_step
        if self.share >= self.points[min(len(self.curve), len(self.points) - 1)]:
            self.record(state.global_step)
        control.should_training_stop = self.share >= 1


def accuracy(model: ColBERT, held_out: TrainingSet) -> float:
    """Share of queries whose own document is the best of its candidates."""
    texts = list(dict.fromkeys(text for row in held_out.documents for text in row))
    place = {text: i for i, text in enumerate(texts)}
    documents = encode(model, texts).to("float32")
    queries = model.encode_query(list(held_out.queries), packed=True).to("cpu").to("float32")
    order = [place[text] for row in held_out.documents for text in row]
    scores = colbert_kd_scores(queries, documents[order])
    return float((scores.argmax(dim=1) == 0).float().mean())


def blend(model: ColBERT, untrained: dict[str, torch.Tensor], trained: dict[str, torch.Tensor], share: float) -> None:
    """Go only a part of the way from the untrained weights: other collections lose less (Wortsman et al., 2022)."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.lerp(untrained[name], trained[name], share))


def choose_share(
    model: ColBERT, untrained: dict[str, torch.Tensor], held_out: TrainingSet, guard: Collection | None
) -> list[dict[str, float]]:
    """Blend with as much of the trained weights as a sample of another collection allows; return what was tried.

    No test query has a part in it.
    """
    trained = {name: value.detach().clone() for name, value in model.state_dict().items()}
    tried: list[dict[str, float]] = []
    if guard is None:
        return tried
    texts = list(guard.texts().values())
    for share in (0.0, *SHARES):
        blend(model, untrained, trained, share)
        ndcg = measure(model, guard, encode(model, texts))["nDCG@10"]
        tried.append({"share": share, "nDCG@10": ndcg, "Success@1 of candidates": accuracy(model, held_out)})
        print(f"  {tried[-1]}", flush=True)
        if share and ndcg >= tried[0]["nDCG@10"] - TOLERANCE:
            break
    return tried


def train(
    model: ColBERT,
    examples: TrainingSet,
    held_out: TrainingSet,
    guard: Collection | None,
    options: argparse.Namespace,
) -> dict[str, Any]:
    clock = Clock(model, held_out, options.minutes * 60, options.points, options.steps)
    freeze(model, options.freeze)
    model[0].document_length, length = options.train_length, model.max_length_document
    untrained = {name: value.detach().clone() for name, value in model.state_dict().items()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=options.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, clock.rate)
    if options.mini_batch:
        loss = CachedContrastive(model, temperature=options.temperature, mini_batch_size=options.mini_batch)
    else:
        loss = Contrastive(model, temperature=options.temperature)
    with tempfile.TemporaryDirectory() as folder:
        arguments = training_arguments(
            folder,
            num_train_epochs=100,  # the clock stops it
            per_device_train_batch_size=options.batch,
            batch_sampler=InOrder,
        )
        trainer = MultiVectorEncoderTrainer(
            model=model,
            args=arguments,
            train_dataset=examples.to_dataset(),
            loss=loss,
            optimizers=(optimizer, schedule),
            callbacks=[clock],
        )
        trainer.train()
    model[0].document_length = length
    model.eval()
    if options.save:
        model.save_pretrained(str(options.save.with_name(options.save.name + "-unblended")))
    losses = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    shares = choose_share(model, untrained, held_out, guard)
    return {"steps": trainer.state.global_step, "curve": clock.curve, "loss": losses, "shares": shares}


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


def make_model(options: argparse.Namespace) -> ColBERT:
    torch.manual_seed(0)
    shared: dict[str, Any] = {
        "max_length_document": options.length,
        # A few hundred steps do not overfit; dropout would only make each of them a quarter dearer.
        "config_kwargs": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    }
    if options.recipe == "dense":
        projection = None if options.dims == 384 else "orthogonal"
        return ColBERT.from_dense(DEFAULT_MODEL, projection, options.dims, **shared)
    recipe = Recipe(query_expansion=options.recipe == "full")
    return ColBERT(DEFAULT_MODEL, options.dims, recipe=recipe, **shared)


def freeze(model: ColBERT, layers: int) -> None:
    """Keep the word vectors and the first layers as they are: half the time of a backward pass."""
    encoder = model[0].model
    for module in [encoder.embeddings, *encoder.encoder.layer[:layers]] if layers else []:
        module.requires_grad_(False)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--other", type=Path, help="another collection, with qrels/train.tsv, to see what is lost")
    parser.add_argument("--minutes", type=float, default=20, help="of training, measuring not counted (default: 20)")
    parser.add_argument("--steps", type=int, help="train for so many steps, however long they take")
    parser.add_argument("--dims", type=int, default=128)
    parser.add_argument("--length", type=int, default=350, help="most tokens of a document")
    parser.add_argument("--train-length", type=int, default=256, help="the same while training")
    parser.add_argument("--freeze", type=int, default=3, help="first layers to leave as they are")
    parser.add_argument("--recipe", choices=["dense", "full", "no-expansion"], default="dense")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--mini-batch", type=int, default=0, help="texts per pass of CachedContrastive; 0: Contrastive")
    parser.add_argument("--negatives", type=int, default=0, help="mined documents that only their own row has")
    parser.add_argument("--ranks", type=int, default=10, help="last rank that negatives are drawn from")
    parser.add_argument("--neighbours", type=int, default=7, help="rows put beside a row whose documents they confuse")
    parser.add_argument("--passes", type=int, default=8, help="over the pairs, before the same batches come again")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--documents", type=int, help="a sample, to try this script out; default: all")
    parser.add_argument("--pairs", type=int, default=26000, help="training queries that negatives are mined for")
    parser.add_argument("--points", type=int, default=5, help="of the curve")
    parser.add_argument("--cache", type=Path, help="folder for the untrained model's token vectors")
    parser.add_argument(
        "--save", type=Path, help="folder for the trained model; NAME-unblended beside it: before blending"
    )
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    options = read_options()
    begin = time.perf_counter()

    def say(what: str) -> None:
        print(f"[{(time.perf_counter() - begin) / 60:5.1f} min] {what}", flush=True)

    test, training = load_beir(options.folder, "test"), load_beir(options.folder, "train")
    if options.documents:
        test, training = sample(test, training, options.documents)
    collections = {options.folder.name: test}
    if options.other:
        collections[options.other.name] = load_beir(options.other)
    model = make_model(options)
    results: dict[str, Any] = {"options": {k: str(v) for k, v in vars(options).items()}, "before": {}, "after": {}}
    vectors = {}
    for name, collection in collections.items():
        file = f"{name}-{options.recipe}-{len(collection.documents)}-{options.dims}-{options.length}.safetensors"
        texts = list(collection.texts().values())
        vectors[name] = encode(model, texts, options.cache and options.cache / file)
        results["before"][name] = measure(model, collection, vectors[name])
        say(f"untrained on {name}: {results['before'][name]}")

    queries = sorted(training.qrels)
    random.Random(1).shuffle(queries)
    examples = mine(
        model, training, vectors[options.folder.name], queries[HELD_OUT : HELD_OUT + options.pairs], options
    )
    examples = order_by_neighbours(examples, options.neighbours, negatives=options.negatives, passes=options.passes)
    curve_options = argparse.Namespace(**{**vars(options), "negatives": CANDIDATES - 1, "ranks": CANDIDATES - 1})
    held_out = mine(model, training, vectors[options.folder.name], queries[:HELD_OUT], curve_options)
    vectors.clear()
    say(f"mined: {examples}; held out for the curve: {held_out}")
    guard = make_guard(options.other) if options.other else None
    results["training"] = train(model, examples, held_out, guard, options)
    say(f"trained for {results['training']['steps']} steps")
    if options.save:
        model.save_pretrained(str(options.save))

    for name, collection in collections.items():
        texts = list(collection.texts().values())
        results["after"][name] = measure(model, collection, encode(model, texts))
        say(f"trained on {options.folder.name}, on {name}: {results['after'][name]}")
    print_table(results)
    if options.json:
        options.json.write_text(json.dumps({**results, "threads": os.environ.get("OMP_NUM_THREADS")}, indent=1))


def print_table(results: dict[str, Any]) -> None:
    print("\n| collection | measure | untrained | trained | errors gone |\n| --- | --- | --- | --- | --- |")
    for name, before in results["before"].items():
        for measure_name, value in before.items():
            after = results["after"][name][measure_name]
            gone = (after - value) / (1 - value)
            print(f"| {name} | {measure_name} | {value:.4f} | {after:.4f} | {gone:+.0%} |")


if __name__ == "__main__":
    main()
