"""Train a late-interaction model from a dense one on a collection, and measure it on test queries.

    python benchmarks/training_proof.py path/to/debian --other path/to/scifact --minutes 20 [--json proof.json]

Both folders are collections in BEIR layout with qrels/train.tsv and qrels/test.tsv. The script

1. measures the untrained model, `from_dense`, on the test queries of both collections;
2. mines hard negatives with it, and trains on the pairs of the first collection for --minutes, in batches of pairs with
   positives that are mined negatives of one another;
3. interpolates between the untrained and the trained weights, with the largest share of the trained weights that keeps
   nDCG@10 on the second collection's training queries;
4. measures the resulting model on the test queries of both, searching all documents exactly.

`--replay` names collections whose titles and sentences make further training pairs. `--cache` keeps the token vectors
of the untrained model for the next run.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _common import make_run, parse_options, training_arguments
from sentence_transformers import MultiVectorEncoderTrainer
from transformers import TrainerCallback

from latelier import indexes
from latelier.data import InOrder, TrainingSet, mine_hard_negatives, order_by_neighbours
from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, evaluate, load_beir
from latelier.losses import CachedContrastive, Contrastive
from latelier.models import DEFAULT_MODEL, ColBERT, Recipe, pool_tokens
from latelier.scores import colbert_kd_scores, top_k

BEGIN = time.perf_counter()
MEASURES = ["Success@1", "nDCG@10"]
POOLING = 32  # tokens per pooled vector, for mining
VALIDATION = 150  # validation queries, for the curve
CANDIDATES = 20  # documents per validation query
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.4, 0.2)  # of the trained weights in the final ones
TOLERANCE = 0.0075  # maximum loss of nDCG@10 on the training queries of the other collection


def titles(folders: list[Path], sentences: int = 2) -> Collection:
    """Return documents of other collections with their titles and some of their sentences as queries.

    The dense model was trained on such pairs, and training on them again may keep it from forgetting. With abstracts of
    Cranfield and CISI, the measures of SciFact's training queries stayed the same, but those of its test queries fell.
    """
    documents: dict[str, dict[str, str]] = {}
    queries: dict[str, str] = {}
    rng = random.Random(2)
    for folder in folders:
        for id, document in load_beir(folder, on_problem="skip").documents.items():
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
    """Insert a batch of the second set after every few batches of the first; the second set repeats."""
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
    """Mine hard negatives in an index of a few pooled vectors per document, which is fast and accurate enough."""
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


def first_documents(test: Collection, training: Collection, documents: int) -> tuple[Collection, Collection]:
    """Return both collections with the first documents, and the queries with all judged documents among them."""
    kept = dict(list(test.documents.items())[:documents])
    parts = []
    for part in (test, training):
        qrels = {query: judged for query, judged in part.qrels.items() if judged.keys() <= kept.keys()}
        parts.append(Collection(kept, {query: part.queries[query] for query in qrels}, qrels))
    return parts[0], parts[1]


def make_guard(folder: Path, documents: int = 3000, queries: int = 1000) -> Collection:
    """Return the first training queries of a collection, their documents, and the first of the other documents."""
    whole = load_beir(folder, "train")
    qrels = dict(list(whole.qrels.items())[:queries])
    kept = dict.fromkeys(id for judged in qrels.values() for id in judged)
    kept |= dict.fromkeys(list(whole.documents)[: max(0, documents - len(kept))])
    return Collection({id: whole.documents[id] for id in kept}, {q: whole.queries[q] for q in qrels}, qrels)


def encode(model: ColBERT, texts: list[str], cache: Path | None = None) -> TokenEmbeddings:
    """Return the embeddings of documents, read from or written to a cache."""
    if cache is not None and cache.exists():
        return TokenEmbeddings.load(cache)
    vectors = model.encode_document(texts, packed=True).to("cpu").to("float16")
    if cache is not None:
        cache.parent.mkdir(parents=True, exist_ok=True)
        vectors.save(cache)
    return vectors


def measure(model: ColBERT, collection: Collection, documents: TokenEmbeddings) -> dict[str, float]:
    """Return the measures of exact search."""
    ids = list(collection.documents)
    vectors = model.encode_query(list(collection.queries.values()), packed=True)
    scores, positions = top_k(vectors.to("cpu").to("float32"), documents, k=10)
    return dict(evaluate(make_run(collection, ids, scores, positions), collection.qrels, MEASURES))


def accuracy(model: ColBERT, validation: TrainingSet) -> float:
    """Return the share of queries whose positive scores highest among their candidates."""
    texts = list(dict.fromkeys(text for row in validation.documents for text in row))
    place = {text: i for i, text in enumerate(texts)}
    documents = encode(model, texts).to("float32")
    queries = model.encode_query(list(validation.queries), packed=True).to("cpu").to("float32")
    order = [place[text] for row in validation.documents for text in row]
    scores = colbert_kd_scores(queries, documents[order])
    return float((scores.argmax(dim=1) == 0).float().mean())


class Clock(TrainerCallback):
    """Lowers the learning rate linearly, measures during training, and stops after a time or a number of steps."""

    def __init__(
        self, model: ColBERT, validation: TrainingSet, seconds: float, points: int, steps: int | None = None
    ) -> None:
        self.model, self.validation, self.seconds = model, validation, seconds
        self.steps, self.step = steps, 0
        self.length = model.max_length_document
        self.points = [i / points for i in range(points + 1)]
        self.curve: list[dict[str, float]] = []
        self.paused, self.started = 0.0, time.perf_counter()

    @property
    def share(self) -> float:
        """Completed share of the steps or of the training time, without the time of measuring."""
        return self.step / self.steps if self.steps else self.spent / self.seconds

    @property
    def spent(self) -> float:
        """Seconds of training so far."""
        return time.perf_counter() - self.started - self.paused

    def rate(self, step: int) -> float:
        """Learning rate relative to the highest."""
        return min((step + 1) / 20, max(0.0, 1 - self.share))

    def record(self, step: int) -> None:
        """Add a point to the curve."""
        begin = time.perf_counter()
        self.model.eval()
        length, self.model[0].document_length = self.model[0].document_length, self.length
        hits = accuracy(self.model, self.validation)
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
        """Measure at the points of the curve, stop at the end."""
        self.step = state.global_step
        if self.share >= self.points[min(len(self.curve), len(self.points) - 1)]:
            self.record(state.global_step)
        control.should_training_stop = self.share >= 1


def blend(model: ColBERT, untrained: dict[str, torch.Tensor], trained: dict[str, torch.Tensor], share: float) -> None:
    """Interpolate between untrained and trained weights: other collections lose less (Wortsman et al., 2022)."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.lerp(untrained[name], trained[name], share))


def choose_share(
    model: ColBERT, start: dict[str, torch.Tensor], validation: TrainingSet, guard: Collection, least: float
) -> list[dict[str, float]]:
    """Interpolate with the largest share of the trained weights that has an nDCG@10 of at least ``least`` on ``guard``.

    If no share reaches ``least``, take the best one on ``guard``. Returns the figures of all shares tried.
    """
    trained = {name: value.detach().clone() for name, value in model.state_dict().items()}
    texts = list(guard.texts().values())
    tried: list[dict[str, float]] = []
    for share in SHARES:
        blend(model, start, trained, share)
        ndcg = measure(model, guard, encode(model, texts))["nDCG@10"]
        tried.append({"share": share, "nDCG@10": ndcg, "Success@1 of candidates": accuracy(model, validation)})
        print(f"  {tried[-1]}; at least {least:.4f}", flush=True)
        if ndcg >= least:
            return tried
    blend(model, start, trained, max(tried, key=lambda row: row["nDCG@10"])["share"])
    return tried


def train(
    model: ColBERT, examples: TrainingSet, validation: TrainingSet, options: argparse.Namespace
) -> dict[str, Any]:
    clock = Clock(model, validation, options.minutes * 60, options.points, options.steps)
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
        # A few hundred steps do not overfit; dropout would make each step 25% slower.
        "config_kwargs": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    }
    if recipe == "dense":
        projection = None if options.dims == 384 else "orthogonal"
        return ColBERT.from_dense(DEFAULT_MODEL, projection, options.dims, **shared)
    whole = Recipe(query_expansion=recipe == "full")
    return ColBERT(DEFAULT_MODEL, options.dims, recipe=whole, max_length_query=options.query_length, **shared)


def freeze(model: ColBERT, layers: int) -> None:
    """Freeze the word embeddings and the first layers, which halves the time of a backward pass."""
    encoder = model[0].model
    for module in [encoder.embeddings, *encoder.encoder.layer[:layers]] if layers else []:
        module.requires_grad_(False)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path, help="a second collection, with qrels/train.tsv: how much does it lose?")
    parser.add_argument(
        "--minutes", type=float, default=20, help="minutes of training, without measuring (default: 20)"
    )
    parser.add_argument("--steps", type=int, help="train for a number of steps instead")
    parser.add_argument("--dims", type=int, default=128)
    parser.add_argument("--length", type=int, default=350, help="maximum tokens per document")
    parser.add_argument("--train-length", type=int, default=256, help="maximum tokens per document while training")
    parser.add_argument("--freeze", type=int, default=3, help="number of first layers to freeze")
    parser.add_argument("--recipe", choices=["dense", "full", "no-expansion"], default="dense")
    parser.add_argument("--untrained-recipe", action="store_true", help="measure the untrained recipe too")
    parser.add_argument("--query-length", type=int, help="query tokens of the other recipes (default: theirs)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--mini-batch", type=int, default=0, help="texts per pass of CachedContrastive; 0: Contrastive")
    parser.add_argument("--negatives", type=int, default=0, help="mined negatives per row")
    parser.add_argument("--ranks", type=int, default=10, help="last rank of mined negatives")
    parser.add_argument(
        "--neighbours", type=int, default=7, help="group each row with N rows whose positives are its mined negatives"
    )
    parser.add_argument("--replay", type=Path, nargs="+", help="collections of further pairs: titles and sentences")
    parser.add_argument("--replay-every", type=int, default=3, help="number of batches before each batch of them")
    parser.add_argument("--passes", type=int, default=8, help="passes over the pairs with different batches")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--documents", type=int, help="use the first documents only, to try the script")
    parser.add_argument("--pairs", type=int, default=26000, help="number of training queries")
    parser.add_argument("--points", type=int, default=5, help="points of the curve")
    parser.add_argument("--cache", type=Path, help="folder for the token vectors of the untrained model")
    parser.add_argument(
        "--save", type=Path, help="folder for the trained model; the unblended one is saved as NAME-unblended"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--curve", type=Path, help="SVG file for the loss and success@1 on validation queries")
    return parse_options(parser, default=False)


def prepare(
    model: ColBERT, training: Collection, vectors: TokenEmbeddings, options: argparse.Namespace
) -> tuple[TrainingSet, TrainingSet]:
    """Return the training rows, in order, and the validation rows."""
    queries = sorted(training.qrels)
    random.Random(1).shuffle(queries)

    def order(mined: TrainingSet) -> TrainingSet:
        return order_by_neighbours(mined, options.neighbours, negatives=options.negatives, passes=options.passes)

    examples = order(mine(model, training, vectors, queries[VALIDATION : VALIDATION + options.pairs], options.ranks))
    if options.replay:
        known = titles(options.replay)
        texts = encode(model, list(known.texts().values()))
        again = order(mine(model, known, texts, sorted(known.qrels), options.ranks))
        examples = interleave(examples, again, options.batch, options.replay_every)
    return examples, mine(model, training, vectors, queries[:VALIDATION], CANDIDATES - 1)


def say(what: str) -> None:
    print(f"[{(time.perf_counter() - BEGIN) / 60:5.1f} min] {what}", flush=True)


def read_collections(options: argparse.Namespace) -> tuple[dict[str, Collection], Collection]:
    """Return the test collections, and the training collection."""
    test, training = load_beir(options.folder, "test"), load_beir(options.folder, "train")
    if options.documents:
        test, training = first_documents(test, training, options.documents)
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
    model: ColBERT, examples: TrainingSet, validation: TrainingSet, untrained: ColBERT, options: argparse.Namespace
) -> dict[str, Any]:
    start = {name: value.detach().clone() for name, value in model.state_dict().items()}
    guard = make_guard(options.other) if options.other else None
    least = 0.0
    if guard:
        least = measure(untrained, guard, encode(untrained, list(guard.texts().values())))["nDCG@10"] - TOLERANCE
    figures = train(model, examples, validation, options)
    say(f"trained for {figures['steps']} steps")
    if options.save:
        model.save_pretrained(str(options.save.with_name(options.save.name + "-unblended")))
    if guard:
        figures["shares"] = choose_share(model, start, validation, guard, least)
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
    examples, validation = prepare(untrained, training, vectors[options.folder.name], options)
    vectors.clear()
    say(f"mined: {examples}; validation set: {validation}")
    results["training"] = train_and_blend(model, examples, validation, untrained, options)
    results["after"] = measure_all("trained", model, collections)
    print_table(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.curve:
        draw(results["training"], options.curve)


def draw(training: dict[str, Any], target: Path) -> None:
    """Draw the loss, and the accuracy on validation queries, over the steps."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    points, loss = training["curve"], training["loss"]
    plt.rcParams.update({"svg.hashsalt": "latelier", "svg.fonttype": "none", "font.size": 9})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
    left.plot([step for step, _ in loss], [float(value) for _, value in loss], color="#3f51b5", linewidth=1)
    left.set(xlabel="steps", ylabel="loss", ylim=(0, None))
    hits = [point["Success@1 of candidates"] for point in points]
    right.plot([point["step"] for point in points], hits, color="#3f51b5", marker="o", markersize=3)
    right.set(xlabel="steps", ylabel="success@1, validation")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, metadata={"Date": None})


def print_table(results: dict[str, Any]) -> None:
    print("\n| collection | measure | untrained | trained | errors gone |\n| --- | --- | --- | --- | --- |")
    for name, before in results["before"].items():
        for measure_name, value in before.items():
            after = results["after"][name][measure_name]
            gone = (after - value) / (1 - value)
            print(f"| {name} | {measure_name} | {value:.4f} | {after:.4f} | {gone:+.0%} |")


if __name__ == "__main__":
    main()
