"""Searching a million documents on a GPU, beside the same index on the CPU: seconds, memory, queries a second, recall.

    python benchmarks/search_gpu.py [--documents 1000000] [--tokens 100] [--nbits 8] [--json results.json]

Documents and queries are the synthetic ones of `benchmarks/index.py`, with 128 dimensions. They are streamed into an
`IVF` on disk, which is then opened twice: with ``device="cuda"``, where the first search copies the codes to the GPU,
and on the CPU, with all cores. Each figure is the median of repeats of a call with so many queries. Recall is against
``effort="exact"`` on the same stored codes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from index import CHUNK, K, synthetic_documents

from latelier import indexes
from latelier.embeddings import TokenEmbeddings

DIM = 128


def generate(count: int, tokens: int, workers: int) -> Iterator[TokenEmbeddings]:
    """Yield the documents in order, made ahead by several threads."""

    def chunk(first: int) -> TokenEmbeddings:
        return next(synthetic_documents(count, tokens, DIM, begin=first))

    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Any] = deque()
        for first in range(0, count, CHUNK):
            waiting.append(pool.submit(chunk, first))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def make_queries(options: argparse.Namespace, count: int) -> TokenEmbeddings:
    """Return queries of 32 tokens of documents from some chunks of the collection, plus ``0.4 * noise``."""
    rng = np.random.default_rng(1)
    found: list[np.ndarray] = []
    for first in np.linspace(0, max(0, options.documents - CHUNK), 16).astype(int) // CHUNK * CHUNK:
        part = next(synthetic_documents(options.documents, options.tokens, DIM, begin=int(first)))
        for document in rng.choice(len(part), -(-count // 16)):
            rows = part[int(document)][rng.choice(options.tokens, 32)]
            rows = rows + rng.standard_normal(rows.shape, dtype="float32") * np.float32(0.4 / DIM**0.5)
            found.append(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    return TokenEmbeddings.from_list(found[:count])


def build(folder: Path, options: argparse.Namespace) -> float:
    begin = time.perf_counter()
    with indexes.IVF(folder, nbits=options.nbits) as index:
        index.add(range(options.documents), generate(options.documents, options.tokens, os.cpu_count() or 1))
    return time.perf_counter() - begin


def rates(index: indexes.IVF, queries: TokenEmbeddings, batches: list[int], **search: Any) -> dict[str, float]:
    """Return the queries per second of calls with so many queries, the median of at least three calls."""
    found = {}
    for batch in batches:
        times = []
        for call in range(3 if batch > 100 else 12):
            start = call * batch % max(1, len(queries) - batch + 1)
            begin = time.perf_counter()
            index.search(queries[start : start + batch], K, **search)
            times.append(time.perf_counter() - begin)
        found[f"q/s, {batch} at once"] = batch / statistics.median(times)
    return found


def recall(found: list[list[Any]], exact: list[list[Any]]) -> float:
    pairs = zip(found, exact, strict=True)
    return float(np.mean([len({h.id for h in row} & {h.id for h in best}) / len(best) for row, best in pairs]))


def measure(folder: Path, queries: TokenEmbeddings, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with indexes.open(folder, device=options.device) as index:
        begin = time.perf_counter()
        index.search(queries[:1], K)
        first = time.perf_counter() - begin
        exact = index.search(queries[: options.asked], K, effort="exact")
        memory = torch.cuda.memory_allocated() / 2**30 if options.device == "cuda" else 0.0
        yield {"first search s": first, "GPU GiB": memory}
        for effort in ("fast", "balanced", 2.0, "exact"):
            quality = recall(index.search(queries[: options.asked], K, effort=effort), exact)
            row = {"system": f"{options.device}, {effort}", "recall@10": quality}
            yield row | rates(index, queries, options.batches, effort=effort)
    with indexes.open(folder) as index:
        index.search(queries[:1], K)
        for effort in ("balanced", 4.0):
            quality = recall(index.search(queries[: options.asked], K, effort=effort), exact)
            row = {"system": f"CPU, {torch.get_num_threads()} threads, {effort}", "recall@10": quality}
            yield row | rates(index, queries, options.batches, effort=effort)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--nbits", type=int, default=8, choices=(8, 4, 2, 1))
    parser.add_argument("--device", default="cuda", help="'none' only builds the index")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 1024])
    parser.add_argument("--asked", type=int, default=256, help="queries for the recall")
    parser.add_argument("--index", type=Path, help="folder of the index, which is kept, and not built if it is there")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: this benchmark needs a CUDA device, and torch finds none.")
        return
    queries = make_queries(options, max(options.asked, *options.batches))
    with tempfile.TemporaryDirectory() as folder:
        path = options.index or Path(folder) / "index"
        built = build(path, options) if not path.exists() else float("nan")
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        rows: list[dict[str, Any]] = [{"build s": built, "disk GiB": size / 2**30}]
        print(f"{options.documents:,} documents of {options.tokens} tokens: {json.dumps(rows[0])}", flush=True)
        for row in () if options.device == "none" else measure(path, queries, options):
            rows.append(row)
            print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
