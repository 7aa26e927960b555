"""A general late-interaction checkpoint from all-MiniLM-L6-v2: pairs, training, blending, and its test on collections.

    python benchmarks/general_checkpoint.py prepare out --data path/to/collections
    python benchmarks/general_checkpoint.py train out [--batch 128 --minutes 20]
    python benchmarks/general_checkpoint.py blend out
    python benchmarks/general_checkpoint.py evaluate out --data path/to/collections [--json results.json]

`prepare` writes the training pairs, by their source: training qrels of the collections that have some; the positives of
distillation data; weak pairs from packages of Debian (`_weak_pairs.py`), which apt downloads; and titles with their
abstracts. The last are documents that test queries of Cranfield, CISI and SciFact search: no test query is trained on,
but these documents are seen beside their titles. Of every source, the pairs of some queries are kept for validation.

`train` makes one pass over the pairs with in-batch negatives, each batch from one source, or stops after --minutes.
`blend` interpolates between the untrained and the trained weights (WiSE-FT, Wortsman et al., 2022): with the smallest
share, which forgets least, whose mean nDCG@10 on validation queries is within 0.001 of the best one. These search the
validation documents of their kind of source. `evaluate` compares the untrained and the blended model on test queries by
exact search, with a paired randomisation test.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from _common import MEASURE, make_run, sample, training_arguments
from _weak_pairs import PACKAGES, Pair, clean, download, normalised, weak_pairs
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoderTrainer
from training_proof import blend, encode, freeze, measure, titles
from transformers import TrainerCallback

from latelier.data import InOrder, TrainingSet, load_training_set
from latelier.evaluation import Collection, Run, compare, load_beir
from latelier.losses import CachedContrastive, Contrastive
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.scores import top_k

COLLECTIONS = ("scifact", "cranfield", "cisi", "vaswani", "debian")
VALIDATION = 4  # percent of the queries of each source
VALIDATION_QUERIES = (20, 400)  # of a kind of source: with fewer it is left out, more are not used
WARM_UP = 0.1  # of the training
SHARES = (1.0, 0.75, 0.5, 0.35, 0.25)  # of the trained weights
TOLERANCE = 0.001  # of the mean over validation queries: less is chance


# Pairs


def collection_pairs(folder: Path) -> list[Pair]:
    """Return the pairs of a collection: its training qrels, if it has some, and titles with the texts below them."""
    pairs = []
    if (folder / "qrels" / "train.tsv").exists():
        rows = load_training_set(folder)
        pairs += [Pair(folder.name, query, texts[0]) for query, texts in zip(rows.queries, rows.documents, strict=True)]
    known = titles([folder], sentences=0)
    for query, judged in known.qrels.items():
        pairs += [Pair(f"titles/{folder.name}", known.queries[query], known.documents[id]["text"]) for id in judged]
    return pairs


def distillation_pairs(folder: Path) -> list[Pair]:
    """Return the queries of distillation data with their positives; the batch has the negatives."""
    pairs = []
    for file in sorted(folder.glob("*.jsonl")):
        rows = load_training_set(file, candidates=1)
        source = f"distillation/{file.stem}"
        pairs += [Pair(source, query, texts[0]) for query, texts in zip(rows.queries, rows.documents, strict=True)]
    return pairs


def test_texts(folders: Iterable[Path]) -> tuple[set[str], set[str]]:
    """Return the normalised test queries of collections, and the texts and titles of their documents."""
    queries: set[str] = set()
    texts: set[str] = set()
    for folder in folders:
        collection = load_beir(folder, on_problem="skip")
        queries |= set(map(normalised, collection.queries.values()))
        texts |= set(map(normalised, collection.texts().values()))
        texts |= {normalised(document[side]) for document in collection.documents.values() for side in document}
    return queries, texts


def is_validation(pair: Pair) -> bool:
    digest = hashlib.sha256(normalised(pair.query).encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < VALIDATION


def prepare(options: argparse.Namespace) -> None:
    folders = [options.data / name for name in COLLECTIONS]
    queries, texts = test_texts(folders)
    raw = [pair for folder in folders for pair in collection_pairs(folder)]
    raw += distillation_pairs(options.data / "kd-flagembedding-toy")
    pairs = [pair for pair in map(clean, raw) if pair and normalised(pair.query) not in queries]
    packages = download(options.packages, options.out / "packages", options.seconds)
    for pair in weak_pairs(packages, options.seconds):
        if not {normalised(pair.query), normalised(pair.text)} & (queries | texts):
            pairs.append(pair)
    unique = list({(normalised(pair.query), normalised(pair.text)): pair for pair in reversed(pairs)}.values())
    split: dict[str, list[Pair]] = {"pairs": [], "validation": []}
    for pair in reversed(unique):
        split["validation" if is_validation(pair) else "pairs"].append(pair)
    for name, part in split.items():
        lines = [json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in part]
        (options.out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    counts = {name: Counter(pair.source for pair in part) for name, part in split.items()}
    print("| source | training pairs | validation pairs |\n| --- | --- | --- |")
    for source, count in sorted(counts["pairs"].items()):
        print(f"| {source} | {count:,} | {counts['validation'][source]:,} |")
    print(f"| all | {len(split['pairs']):,} | {len(split['validation']):,} |")


def read_pairs(file: Path) -> list[Pair]:
    with file.open(encoding="utf-8") as lines:
        return [Pair(**json.loads(line)) for line in lines]


def subset(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """Return a random sample in which each source keeps its share."""
    shuffled = sorted(random.Random(0).sample(pairs, len(pairs)), key=lambda pair: pair.source)
    count = min(count, len(pairs))
    return [shuffled[i * len(pairs) // count] for i in range(count)]


def in_batches(pairs: Sequence[Pair], batch: int) -> list[Pair]:
    """Return the pairs in random order such that each batch has one source; what is left of the sources is mixed.

    A negative of the same source is harder than one that another subject gives away.
    """
    rng = random.Random(0)
    by_source: dict[str, list[Pair]] = {}
    for pair in rng.sample(pairs, len(pairs)):
        by_source.setdefault(pair.source, []).append(pair)
    rest: list[Pair] = []
    batches = []
    for own in by_source.values():
        whole = len(own) // batch * batch
        batches += [own[start : start + batch] for start in range(0, whole, batch)]
        rest += own[whole:]
    rng.shuffle(rest)
    batches += [rest[start : start + batch] for start in range(0, len(rest) - batch + 1, batch)]
    rng.shuffle(batches)
    return [pair for own in batches for pair in own]


# Training


class Schedule(TrainerCallback):
    """Raises the learning rate linearly, then lowers it to 0 at the last step or the last second."""

    def __init__(self, steps: int, seconds: float) -> None:
        self.steps, self.seconds, self.step = steps, seconds, 0
        self.started = time.perf_counter()

    @property
    def share(self) -> float:
        """Completed share of the training."""
        return max(self.step / self.steps, (time.perf_counter() - self.started) / self.seconds)

    def rate(self, step: int) -> float:
        """Learning rate relative to the highest."""
        share = self.share
        return max(0.0, min((share + 1 / self.steps) / WARM_UP, (1 - share) / (1 - WARM_UP)))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop at the end."""
        self.step = state.global_step
        control.should_training_stop = self.share >= 1


def train(options: argparse.Namespace) -> None:
    pairs = read_pairs(options.out / "pairs.jsonl")
    rows = in_batches(subset(pairs, options.pairs or len(pairs)), options.batch)
    rows = rows[: options.steps * options.batch if options.steps else None]
    if not rows:
        sys.exit(f"{len(pairs):,} pairs are less than a batch of {options.batch}; give a smaller --batch")
    model = ColBERT.from_dense(
        DEFAULT_MODEL,
        device=options.device,
        max_length_query=options.query_length,
        max_length_document=options.length,
        # One pass does not overfit; dropout would make each step slower.
        config_kwargs={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    )
    freeze(model, options.freeze)
    on_gpu = model.device.type == "cuda"
    loss: Contrastive = Contrastive(model, temperature=options.temperature)
    if options.mini_batch or (options.mini_batch is None and not on_gpu):
        size = options.mini_batch or 32
        loss = CachedContrastive(model, temperature=options.temperature, mini_batch_size=size)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=options.rate, weight_decay=0.01)
    schedule = Schedule(len(rows) // options.batch, 60 * options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        trainer = MultiVectorEncoderTrainer(
            model=model,
            args=training_arguments(
                folder,
                num_train_epochs=1,
                per_device_train_batch_size=options.batch,
                batch_sampler=InOrder,
                disable_tqdm=False,
                use_cpu=not on_gpu,
            ),
            train_dataset=TrainingSet([row.query for row in rows], [[row.text] for row in rows]).to_dataset(),
            loss=loss,
            optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.rate)),
            callbacks=[schedule],
        )
        trainer.train()
    save_file(
        {name: value.cpu().contiguous() for name, value in model.state_dict().items()},
        options.out / "trained.safetensors",
    )
    minutes, steps = (time.perf_counter() - schedule.started) / 60, trainer.state.global_step
    print(f"trained for {steps:,} steps of {options.batch} pairs in {minutes:.1f} minutes")


# Blending and evaluation


def make_validation(pairs: Sequence[Pair]) -> dict[str, Collection]:
    """Return a collection for each kind of source, of its validation pairs."""
    collections = {}
    least, most = VALIDATION_QUERIES
    for kind in dict.fromkeys(pair.source.partition("/")[0] for pair in pairs):
        own = subset([pair for pair in pairs if pair.source.partition("/")[0] == kind], most)
        ids = {text: str(i) for i, text in enumerate(dict.fromkeys(pair.text for pair in own))}
        qrels: dict[str, dict[str, int]] = {}
        for pair in own:
            qrels.setdefault(pair.query, {})[ids[pair.text]] = 1
        if len(qrels) >= least:
            documents = {id: {"title": "", "text": text} for text, id in ids.items()}
            collections[kind] = Collection(documents, {query: query for query in qrels}, qrels)
    return collections


def choose_share(options: argparse.Namespace) -> None:
    model = ColBERT.from_dense(DEFAULT_MODEL, device=options.device)
    untrained = {name: value.detach().clone() for name, value in model.state_dict().items()}
    trained = load_file(options.out / "trained.safetensors", device=str(model.device))
    collections = make_validation(read_pairs(options.out / "validation.jsonl"))
    print("| share |", " | ".join(collections), "| mean |\n| --- | --- |" + " --- |" * len(collections))
    means = {}
    for share in (0.0, *SHARES):  # 0: the untrained model, to compare with
        blend(model, untrained, trained, share)
        figures = [
            measure(model, own, encode(model, list(own.texts().values())))[MEASURE] for own in collections.values()
        ]
        means[share] = statistics.mean(figures)
        print("|", " | ".join([f"{share}", *(f"{value:.4f}" for value in (*figures, means[share]))]), "|", flush=True)
    highest = max(means[share] for share in SHARES)
    chosen = min(share for share in SHARES if means[share] >= highest - TOLERANCE)
    blend(model, untrained, trained, chosen)
    model.save_pretrained(str(options.out / "model"))
    print(f"saved the model with a share of {chosen}")


def limit(collection: Collection, documents: int, queries: int) -> Collection:
    """Return some queries of a collection, and their judged documents with random others."""
    ids = sorted(collection.queries)
    chosen = random.Random(0).sample(ids, min(queries, len(ids)))
    qrels = {query: collection.qrels[query] for query in chosen}
    part = Collection(collection.documents, {query: collection.queries[query] for query in chosen}, qrels)
    if documents < len(collection.documents):
        part = Collection({id: part.documents[id] for id in sample(part, documents)}, part.queries, qrels)
    return part


def search(model: ColBERT, collection: Collection) -> Run:
    """Return the run of exact search."""
    documents = encode(model, list(collection.texts().values()))
    queries = model.encode_query(list(collection.queries.values()), packed=True).to("cpu").to("float32")
    scores, positions = top_k(queries, documents, k=10)
    return make_run(collection, list(collection.documents), scores, positions)


def evaluate_models(options: argparse.Namespace) -> None:
    models = {
        "untrained": ColBERT.from_dense(DEFAULT_MODEL, device=options.device),
        "blended": ColBERT(str(options.out / "model"), device=options.device),
    }
    rows = []
    print(f"| {MEASURE} | documents | queries | untrained | blended | difference | 95% interval | p |")
    print("| --- " * 8 + "|")
    for name in options.collections:
        collection = limit(load_beir(options.data / name, on_problem="skip"), options.documents, options.queries)
        runs = [search(model, collection) for model in models.values()]
        found = compare(runs[0], runs[1], collection.qrels, [MEASURE])[MEASURE]
        row: dict[str, Any] = {"collection": name, "documents": len(collection.documents)}
        row |= {"queries": len(found.differences), "untrained": found.a, "blended": found.b}
        row |= {"difference": found.difference, "interval": found.interval, "p": found.p}
        rows.append(row)
        interval = "[{:+.4f}, {:+.4f}]".format(*found.interval)
        figures = f"{found.a:.4f} | {found.b:.4f} | {found.difference:+.4f} | {interval} | {found.p:.4f}"
        print(f"| {name} | {row['documents']:,} | {row['queries']:,} | {figures} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    parts = {}
    for name, run in (("prepare", prepare), ("train", train), ("blend", choose_share), ("evaluate", evaluate_models)):
        parts[name] = commands.add_parser(name)
        parts[name].add_argument("out", type=Path, help="folder for pairs, weights and the model")
        parts[name].set_defaults(run=run)
        if name in ("prepare", "evaluate"):
            parts[name].add_argument("--data", type=Path, required=True, help="folder of the collections")
        if name != "prepare":
            parts[name].add_argument(
                "--device", help="default: the best one", type=lambda text: None if text == "auto" else text
            )
    prepared, trained, evaluated = parts["prepare"], parts["train"], parts["evaluate"]
    prepared.add_argument("--packages", nargs="*", default=PACKAGES, help="packages of Debian for weak pairs")
    prepared.add_argument("--seconds", type=float, default=600, help="time for downloading, and for reading, packages")
    trained.add_argument("--rate", type=float, default=2e-5, help="highest learning rate")
    trained.add_argument("--temperature", type=float, default=0.5)
    trained.add_argument("--batch", type=int, default=512, help="pairs per batch")
    trained.add_argument(
        "--mini-batch",
        type=int,
        help="texts per pass of CachedContrastive; 0: Contrastive (default: 0 on a GPU, else 32)",
    )
    trained.add_argument("--pairs", type=int, help="train on so many pairs (default: all)")
    trained.add_argument("--steps", type=int, help="stop after so many steps")
    trained.add_argument("--minutes", type=float, default=math.inf, help="stop after so many minutes")
    trained.add_argument("--length", type=int, default=180, help="maximum tokens per document while training")
    trained.add_argument("--query-length", type=int, default=32, help="maximum tokens per query while training")
    trained.add_argument("--freeze", type=int, default=0, help="number of first layers to freeze")
    evaluated.add_argument("--collections", nargs="+", default=COLLECTIONS, help="their names")
    evaluated.add_argument("--documents", type=int, default=12000, help="most documents of a collection")
    evaluated.add_argument("--queries", type=int, default=300, help="most test queries of a collection")
    evaluated.add_argument("--json", type=Path, help="also write the table to this file")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    if options.command is None:
        print("skipped: give a command, such as prepare", file=sys.stderr)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    options.run(options)


if __name__ == "__main__":
    main()
