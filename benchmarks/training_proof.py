"""Does training help? From a dense model to a late-interaction model of one collection, measured on queries not seen.

    python benchmarks/training_proof.py path/to/debian --other path/to/scifact --minutes 20 [--json proof.json]

Both folders are collections in BEIR layout with qrels/train.tsv and qrels/test.tsv. What runs: the untrained model,
`from_dense`, is measured on the test queries of both; hard negatives are mined with its own index; a model of the
recipe asked for trains on the pairs of the first for so many minutes, each batch made of pairs whose documents are
mined negatives of one another; its weights are blended with those it began with, with as much of the trained ones as
training queries of the second collection allow; and it is measured. All documents of a collection are searched,
exactly. `--replay` names collections whose titles and sentences are pairs to train on now and then; `--cache` keeps the
token vectors of the untrained model for the next run.
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
from _proof_data import interleave, make_guard, mine, sample, titles
from _proof_measures import accuracy, encode, measure
from _training import training_arguments
from sentence_transformers import MultiVectorEncoderTrainer
from transformers import TrainerCallback

from latelier.data import TrainingSet, order_by_neighbours
from latelier.data.samplers import InOrder
from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, load_beir
from latelier.losses import CachedContrastive, Contrastive
from latelier.models import DEFAULT_MODEL, ColBERT, Recipe

BEGIN = time.perf_counter()
HELD_OUT = 150  # training queries that are not trained on, for the curve
CANDIDATES = 20  # documents that each of them is tried on
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.4, 0.2)  # of the trained weights in the final ones
TOLERANCE = 0.0075  # nDCG@10 that another collection may lose, on a sample of its training queries


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


def blend(model: ColBERT, untrained: dict[str, torch.Tensor], trained: dict[str, torch.Tensor], share: float) -> None:
    """Go only a part of the way from the untrained weights: other collections lose less (Wortsman et al., 2022)."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.lerp(untrained[name], trained[name], share))


def choose_share(
    model: ColBERT, start: dict[str, torch.Tensor], held_out: TrainingSet, guard: Collection, least: float
) -> list[dict[str, float]]:
    """Blend with as much of the trained weights as another collection allows, or as is best for it; return the tries.

    No test query has a part in it.
    """
    trained = {name: value.detach().clone() for name, value in model.state_dict().items()}
    texts = list(guard.texts().values())
    tried: list[dict[str, float]] = []
    for share in SHARES:
        blend(model, start, trained, share)
        ndcg = measure(model, guard, encode(model, texts))["nDCG@10"]
        tried.append({"share": share, "nDCG@10": ndcg, "Success@1 of candidates": accuracy(model, held_out)})
        print(f"  {tried[-1]}; at least {least:.4f}", flush=True)
        if ndcg >= least:
            return tried
    blend(model, start, trained, max(tried, key=lambda row: row["nDCG@10"])["share"])
    return tried


def train(model: ColBERT, examples: TrainingSet, held_out: TrainingSet, options: argparse.Namespace) -> dict[str, Any]:
    clock = Clock(model, held_out, options.minutes * 60, options.points, options.steps)
    freeze(model, options.freeze)
    model[0].document_length, length = options.train_length, model.max_length_document
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
    losses = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    return {"steps": trainer.state.global_step, "curve": clock.curve, "loss": losses}


def make_model(recipe: str, options: argparse.Namespace) -> ColBERT:
    torch.manual_seed(0)
    shared: dict[str, Any] = {
        "max_length_document": options.length,
        # A few hundred steps do not overfit; dropout would only make each of them a quarter dearer.
        "config_kwargs": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    }
    if recipe == "dense":
        projection = None if options.dims == 384 else "orthogonal"
        return ColBERT.from_dense(DEFAULT_MODEL, projection, options.dims, **shared)
    whole = Recipe(query_expansion=recipe == "full")
    return ColBERT(DEFAULT_MODEL, options.dims, recipe=whole, max_length_query=options.query_length, **shared)


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
    parser.add_argument("--untrained-recipe", action="store_true", help="measure the recipe before training, too")
    parser.add_argument("--query-length", type=int, help="tokens of a query of the other recipes (default: theirs)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--mini-batch", type=int, default=0, help="texts per pass of CachedContrastive; 0: Contrastive")
    parser.add_argument("--negatives", type=int, default=0, help="mined documents that only their own row has")
    parser.add_argument("--ranks", type=int, default=10, help="last rank that negatives are drawn from")
    parser.add_argument("--neighbours", type=int, default=7, help="rows put beside a row whose documents they confuse")
    parser.add_argument("--replay", type=Path, nargs="+", help="collections whose titles and sentences are pairs too")
    parser.add_argument("--replay-every", type=int, default=3, help="batches, before a batch of these")
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


def prepare(
    model: ColBERT, training: Collection, vectors: TokenEmbeddings, options: argparse.Namespace
) -> tuple[TrainingSet, TrainingSet]:
    """Return the rows to train on, in their order, and those that are held out for the curve."""
    queries = sorted(training.qrels)
    random.Random(1).shuffle(queries)

    def order(mined: TrainingSet) -> TrainingSet:
        return order_by_neighbours(mined, options.neighbours, negatives=options.negatives, passes=options.passes)

    examples = order(mine(model, training, vectors, queries[HELD_OUT : HELD_OUT + options.pairs], options.ranks))
    if options.replay:
        known = titles(options.replay)
        texts = encode(model, list(known.texts().values()))
        again = order(mine(model, known, texts, sorted(known.qrels), options.ranks))
        examples = interleave(examples, again, options.batch, options.replay_every)
    return examples, mine(model, training, vectors, queries[:HELD_OUT], CANDIDATES - 1)


def say(what: str) -> None:
    print(f"[{(time.perf_counter() - BEGIN) / 60:5.1f} min] {what}", flush=True)


def read_collections(options: argparse.Namespace) -> tuple[dict[str, Collection], Collection]:
    """Return what is measured on, and what is trained on."""
    test, training = load_beir(options.folder, "test"), load_beir(options.folder, "train")
    if options.documents:
        test, training = sample(test, training, options.documents)
    others = {options.other.name: load_beir(options.other)} if options.other else {}
    return {options.folder.name: test, **others}, training


def encode_all(
    model: ColBERT, collections: dict[str, Collection], options: argparse.Namespace
) -> dict[str, TokenEmbeddings]:
    vectors = {}
    for name, collection in collections.items():
        file = f"{name}-dense-{len(collection.documents)}-{options.dims}-{options.length}.safetensors"
        vectors[name] = encode(model, list(collection.texts().values()), options.cache and options.cache / file)
    return vectors


def measure_all(
    what: str, model: ColBERT, collections: dict[str, Collection], vectors: dict[str, TokenEmbeddings] | None = None
) -> dict[str, dict[str, float]]:
    figures = {}
    for name, collection in collections.items():
        documents = vectors[name] if vectors else encode(model, list(collection.texts().values()))
        figures[name] = measure(model, collection, documents)
        say(f"{what}, on {name}: {figures[name]}")
    return figures


def train_and_blend(
    model: ColBERT, examples: TrainingSet, held_out: TrainingSet, untrained: ColBERT, options: argparse.Namespace
) -> dict[str, Any]:
    start = {name: value.detach().clone() for name, value in model.state_dict().items()}
    guard = make_guard(options.other) if options.other else None
    least = 0.0
    if guard:
        least = measure(untrained, guard, encode(untrained, list(guard.texts().values())))["nDCG@10"] - TOLERANCE
    figures = train(model, examples, held_out, options)
    say(f"trained for {figures['steps']} steps")
    if options.save:
        model.save_pretrained(str(options.save.with_name(options.save.name + "-unblended")))
    if guard:
        figures["shares"] = choose_share(model, start, held_out, guard, least)
    if options.save:
        model.save_pretrained(str(options.save))
    return figures


def main() -> None:
    options = read_options()
    collections, training = read_collections(options)
    untrained = make_model("dense", options)
    model = untrained if options.recipe == "dense" else make_model(options.recipe, options)
    vectors = encode_all(untrained, collections, options)
    results: dict[str, Any] = {
        "options": {name: str(value) for name, value in vars(options).items()},
        "threads": torch.get_num_threads(),
        "before": measure_all("untrained", untrained, collections, vectors),
    }
    if options.untrained_recipe:
        results["recipe"] = measure_all("recipe without training", model, collections)
    examples, held_out = prepare(untrained, training, vectors[options.folder.name], options)
    vectors.clear()
    say(f"mined: {examples}; held out for the curve: {held_out}")
    results["training"] = train_and_blend(model, examples, held_out, untrained, options)
    results["after"] = measure_all("trained", model, collections)
    print_table(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def print_table(results: dict[str, Any]) -> None:
    print("\n| collection | measure | untrained | trained | errors gone |\n| --- | --- | --- | --- | --- |")
    for name, before in results["before"].items():
        for measure_name, value in before.items():
            after = results["after"][name][measure_name]
            gone = (after - value) / (1 - value)
            print(f"| {name} | {measure_name} | {value:.4f} | {after:.4f} | {gone:+.0%} |")


if __name__ == "__main__":
    main()
