"""What the benchmark scripts share: their collection, samples of it, runs and their quality, arguments of training."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoderTrainingArguments

from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, evaluate
from latelier.scores import colbert_scores

__all__ = ["MEASURE", "make_run", "parse_options", "quality", "sample", "training_arguments"]

MEASURE = "nDCG@10"
VARIABLE = "LATELIER_BENCH_COLLECTION"


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


def sample(collection: Collection, documents: int) -> list[str]:
    """Return the ids of all judged documents, and of random others up to a number of documents."""
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
    return MultiVectorEncoderTrainingArguments(
        output_dir=folder,
        bf16=True,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
        **changes,
    )
