"""What the benchmark scripts share: options, timing, samples of collections, runs and their quality, training."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, evaluate
from latelier.scores import colbert_scores

if TYPE_CHECKING:
    from sentence_transformers import MultiVectorEncoderTrainingArguments

__all__ = ["MEASURE", "make_run", "median_ms", "parse_options", "quality", "sample", "training_arguments"]

MEASURE = "nDCG@10"
VARIABLE = "LATELIER_BENCH_COLLECTION"
AWAKE_SECONDS = 0.1


def parse_options(parser: argparse.ArgumentParser, *, default: bool = True) -> argparse.Namespace:
    """Parse the options and the folder of a collection; exit, with a message, if no folder is given.

    With ``default``, the environment variable LATELIER_BENCH_COLLECTION names the folder for `make bench`.
    """
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get(VARIABLE) if default else None)
    options = parser.parse_args()
    if options.folder is None:
        print(f"skipped: give a folder in BEIR layout{f', or set {VARIABLE}' if default else ''}", file=sys.stderr)
        sys.exit(0)
    return options


def median_ms(repeats: int, calls: dict[str, Callable[[], Any]], turn: int = 1) -> dict[str, float]:
    """Return the median time of each call; calls take turns, so that other load on the machine affects all of them.

    A turn is so many calls. Before several, calls of a tenth of a second are not counted: so long it may take until the
    system uses a core that the turn before has left asleep.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            begin = time.perf_counter()
            while turn > 1 and time.perf_counter() - begin < AWAKE_SECONDS:
                call()
            for _ in range(turn):
                begin = time.perf_counter()
                call()
                times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(values) for name, values in times.items()}


def sample(collection: Collection, documents: int) -> list[str]:
    """Return the ids of all judged documents, filled up to `documents` with random others."""
    texts = collection.texts()
    judged = sorted({id_ for judged in collection.qrels.values() for id_ in judged if id_ in texts})
    others = sorted(texts.keys() - set(judged))
    random.Random(0).shuffle(others)
    return judged + others[: max(0, documents - len(judged))]


def make_run(
    collection: Collection, ids: Sequence[str], scores: torch.Tensor, positions: torch.Tensor
) -> dict[str, dict[str, float]]:
    """Return the run of the best documents per query, from their scores and positions ``(queries, k)``."""
    rows = zip(collection.queries, positions.tolist(), scores.tolist(), strict=True)
    return {query: {ids[p]: s for p, s in zip(places, values, strict=True)} for query, places, values in rows}


def quality(collection: Collection, ids: list[str], queries: TokenEmbeddings, documents: TokenEmbeddings) -> float:
    """Return nDCG@10 of exact search."""
    best = colbert_scores(queries, documents).topk(min(100, len(ids)), dim=1)
    run = make_run(collection, ids, best.values, best.indices)
    return float(evaluate(run, collection.qrels, [MEASURE])[MEASURE])


def training_arguments(folder: str, **changes: Any) -> MultiVectorEncoderTrainingArguments:
    """Return the arguments of a trainer that reports its loss and saves nothing."""
    from sentence_transformers import MultiVectorEncoderTrainingArguments  # slow to import

    defaults: dict[str, Any] = {
        "bf16": True,
        "logging_steps": 10,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
        "seed": 0,
    }
    return MultiVectorEncoderTrainingArguments(output_dir=folder, **defaults | changes)
