"""Speed of building, searching and extending the approximate index, and its recall.

    python benchmarks/index.py [--synthetic 20000] [--sizes 2000 12000] [--nbits 8 4 2] [--json results.json]
    python benchmarks/index.py --documents documents.safetensors --queries queries.safetensors [--sizes ...]

Documents and queries are saved `TokenEmbeddings`, or synthetic (see `synthetic_documents`). Synthetic documents are
streamed into an index on disk, so a million of them fit: ``--synthetic 1000000 --tokens 100``. The time of generating
them is not part of the build time. Search times are medians over queries, one at a time on one thread; throughput is
that of one call with all queries, on one thread and on two. Recall is against exact float32 scores or, for streamed
collections, against `effort="exact"`; `--no-lists` also measures each index without inverted lists; `--judged` adds
nDCG@10 over the queries with all of their judged documents in the index; `--cone 0.5 0.8 0.95` also measures the same
vectors in a narrow cone of about this mean cosine, as many models have them. fast-plaid and xtr-warp-rs are measured on
the same vectors if they are installed and the collection has at most --peers documents.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import evaluate, load_beir
from latelier.indexes.ivf.index import Thresholds
from latelier.scores.maxsim import maxsim

K = 10
STREAMED = 100_000  # collections of at least this many documents are not held in memory
CHUNK = 1000
DIGITS = {"build s": 2, "p50 ms": 2, "p95 ms": 2, "recall@10": 4, "nDCG@10": 4, "q/s 1": 0, "q/s 2": 0}
DIGITS |= {"B/token": 1, "RSS MB": 0}


def synthetic_documents(count: int, tokens: int, dim: int, begin: int = 0) -> Iterator[TokenEmbeddings]:
    """Yield documents of unit token vectors, a thousand at a time, each chunk from a seed of its own.

    There are ``64 * sqrt(count)`` senses, which are vectors of length about 1. Each topic has about 40 documents, a
    direction, and 30 senses, drawn by Zipf's law. A document has 12 of its topic's senses and a direction of its own.

        token = normalise(sense + 0.6 * topic's direction + 0.4 * document's direction + 0.5 * noise)

    So tokens of one sense are similar, more so within a topic, and most within a document, as contextual vectors are.
    """
    senses, directions, topics = _world(count, dim)
    for first in range(begin, count, CHUNK):
        rng = np.random.default_rng([0, first])
        n = min(CHUNK, count - first)
        topic = rng.integers(0, len(topics), n)
        own = topics[topic[:, None], rng.random((n, topics.shape[1])).argsort(axis=1)[:, :12]]
        rows = senses[np.take_along_axis(own, rng.integers(0, 12, (n, tokens)), axis=1)]
        rows += np.float32(0.6) * directions[topic][:, None]
        rows += _noise(rng, (n, 1, dim), 0.4)
        rows += _noise(rng, (n, tokens, dim), 0.5)
        rows /= np.linalg.norm(rows, axis=2, keepdims=True)
        yield TokenEmbeddings(rows.reshape(n * tokens, dim), np.arange(0, n * tokens + 1, tokens))


def synthetic_queries(count: int, tokens: int, dim: int, queries: int, length: int = 12) -> TokenEmbeddings:
    """Return queries made of tokens of documents spread over the collection, plus ``0.4 * noise``."""
    rng = np.random.default_rng(1)
    chosen = np.linspace(0, count - 1, queries).astype(int)
    found = []
    for first in np.unique(chosen // CHUNK):
        part = next(synthetic_documents(count, tokens, dim, begin=CHUNK * int(first)))
        for d in chosen[chosen // CHUNK == first] - first * CHUNK:
            rows = part[int(d)][rng.choice(tokens, min(length, tokens), replace=False)]
            rows = rows + _noise(rng, rows.shape, 0.4)
            found.append(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    return TokenEmbeddings.from_list(found)


def _world(count: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the senses, the directions of the topics, and the senses of each topic."""
    rng = np.random.default_rng(7)
    senses = _noise(rng, (int(64 * count**0.5), dim), 1.0)
    topics = max(1, count // 40)
    # Zipf's law by inversion: the frequency of the sense of rank r is about 1 / r.
    chosen = (len(senses) ** rng.random((topics, 30)) - 1).astype("int64")
    return senses, _noise(rng, (topics, dim), 1.0), chosen


def _noise(rng: np.random.Generator, shape: tuple[int, ...], size: float) -> np.ndarray:
    """Draw normally distributed vectors of length about `size`."""
    return rng.standard_normal(shape, dtype="float32") * np.float32(size / shape[-1] ** 0.5)


def in_cone(embeddings: TokenEmbeddings, cosine: float) -> TokenEmbeddings:
    """Return unit vectors with a common direction added, so that unrelated ones have about this cosine."""
    if not cosine:
        return embeddings
    vectors = np.asarray(embeddings.vectors, dtype="float32")
    common = _noise(np.random.default_rng(5), (vectors.shape[1],), 1.0)
    shifted = vectors + np.float32((cosine / (1 - cosine)) ** 0.5) * common / np.linalg.norm(common)
    return TokenEmbeddings(shifted / np.linalg.norm(shifted, axis=1, keepdims=True), embeddings.offsets)


class Judged:
    """Relevance judgements for vectors of a collection in BEIR layout: its documents in order, and its test queries."""

    def __init__(self, folder: Path) -> None:
        collection = load_beir(folder)
        self.documents, self.qrels = list(collection.documents), collection.qrels
        self.queries = sorted(collection.qrels)

    def ndcg(self, found: list[list[int]], count: int) -> float:
        """Return nDCG@10 over those of the first queries that have all judged documents among the first `count`."""
        there = set(self.documents[:count])
        runs = {
            query: {self.documents[place]: -float(rank) for rank, place in enumerate(places)}
            for query, places in zip(self.queries, found, strict=False)
            if self.qrels[query].keys() <= there
        }
        return dict(evaluate(runs, {query: self.qrels[query] for query in runs}, ["nDCG@10"]))["nDCG@10"]


class Collection:
    """Documents and queries of one size, and the exact best documents of each query if they can be computed."""

    def __init__(
        self,
        documents: Callable[[], Iterator[TokenEmbeddings]],
        queries: TokenEmbeddings,
        count: int,
        judged: Judged | None = None,
        cosine: float = 0.0,
    ) -> None:
        self.documents: Callable[[], Iterator[TokenEmbeddings]] = lambda: (in_cone(p, cosine) for p in documents())
        self.queries, self.count, self.judged, self.cosine = in_cone(queries, cosine), count, judged, cosine
        self.best: list[set[int]] | None = None
        if count < STREAMED:
            scores = np.concatenate([maxsim(self.queries, part.to("float32")) for part in self.documents()], axis=1)
            self.best = [set(row.tolist()) for row in np.argsort(-scores, axis=1, kind="stable")[:, :K]]

    def quality(self, found: list[list[int]]) -> dict[str, float]:
        """Return the recall of the exact hits over the first queries, and nDCG@10 with relevance judgements."""
        pairs = zip(self.best or [], found, strict=False)
        recall = {"recall@10": float(np.mean([len(best & set(ids)) / len(best) for best, ids in pairs]))}
        return recall if self.judged is None else recall | {"nDCG@10": self.judged.ndcg(found, self.count)}


class Peak:
    """Peak memory of the process during a ``with`` block, sampled."""

    def __enter__(self) -> Peak:
        self.megabytes, self._done = _resident(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.megabytes = max(self.megabytes, _resident())

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


def _resident() -> float:
    """Return the memory of this process without mapped files, in MB."""
    try:
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except OSError:
        return float("nan")
    return (int(fields[1]) - int(fields[2])) * 4096 / 1e6


class Clocked:
    """An iterator that records the time of making its items, which is not part of the build time."""

    def __init__(self, items: Iterator[TokenEmbeddings]) -> None:
        self._items, self.seconds = items, 0.0

    def __iter__(self) -> Clocked:
        return self

    def __next__(self) -> TokenEmbeddings:
        begin = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.seconds += time.perf_counter() - begin


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def measure_searches(
    search: Callable[[Any], list[list[Any]]], queries: TokenEmbeddings
) -> tuple[dict[str, float], list]:
    """Time queries one at a time on one thread, and all in one call on one thread and on two."""
    torch.set_num_threads(1)
    single = [queries[i : i + 1] for i in range(len(queries))]
    for query in single[:20]:
        search(query)
    times, found = [], []
    for query in single:
        seconds, [hits] = timed(lambda query=query: search(query))
        times.append(seconds)
        found.append(hits)
    row = {"p50 ms": 1e3 * statistics.median(times), "p95 ms": 1e3 * float(np.quantile(times, 0.95))}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        search(queries)
        row[f"q/s {threads}"] = len(queries) / min(timed(lambda: search(queries))[0] for _ in range(3))
    return row, found


def measure_ivf(
    collection: Collection, nbits: int, efforts: list[str], threads: int, lists: bool = True
) -> Iterator[dict[str, Any]]:
    system = f"IVF {nbits}-bit" + ("" if lists else ", no lists")
    system += f", cosine {collection.cosine}" if collection.cosine else ""
    folder = Path(tempfile.mkdtemp(prefix="latelier-bench-"))
    try:
        with indexes.IVF(folder / "index", nbits=nbits) as index:
            if not lists:
                index._thresholds = Thresholds(train_tokens=sys.maxsize)
            torch.set_num_threads(threads)
            with Peak() as peak:
                before = _resident()
                documents = Clocked(collection.documents())
                seconds, _ = timed(lambda: index.add(range(collection.count), documents))
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            built = {
                "build s": seconds - documents.seconds,
                "B/token": size / index._storage.snapshot().tokens,
                "RSS MB": peak.megabytes - before,
            }
            if collection.best is None:
                torch.set_num_threads(threads)
                exact = index.search(collection.queries, K, effort="exact")
                collection.best = [{int(hit.id) for hit in row} for row in exact]
            for effort in efforts:
                value: Any = effort if effort.isalpha() else float(effort)
                row, found = measure_searches(lambda q, e=value: index.search(q, K, effort=e), collection.queries)
                quality = collection.quality([[int(hit.id) for hit in hits] for hits in found])
                yield {"system": f"{system} {effort}", **built, **row, **quality}
            yield from measure_life(index, collection, system)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_life(index: indexes.IVF, collection: Collection, system: str) -> Iterator[dict[str, Any]]:
    """Time adding a thousand documents, and opening the index again, each with the first search after it."""
    more = next(iter(collection.documents()))[:1000]
    ids = [f"more {i}" for i in range(len(more))]
    first = collection.queries[:1]
    yield {
        "system": f"{system} add {len(more)}",
        "build s": timed(lambda: (index.add(ids, more), index.search(first)))[0],
    }

    def reopen() -> None:
        with indexes.open(index.path or "", read_only=True) as other:
            other.search(first)

    yield {"system": f"{system} open+search", "build s": timed(reopen)[0]}


def measure_flat(collection: Collection) -> dict[str, Any]:
    index = indexes.Flat(dtype="float16")
    seconds, _ = timed(lambda: index.add(range(collection.count), collection.documents()))
    queries = collection.queries[:50]
    row, found = measure_searches(lambda q: index.search(q, K), queries)
    quality = collection.quality([[int(hit.id) for hit in hits] for hits in found])
    return {"system": "Flat float16", "build s": seconds, **row, **quality}


def measure_fast_plaid(collection: Collection) -> dict[str, Any]:
    from fast_plaid import search

    folder = tempfile.mkdtemp(prefix="latelier-bench-")
    try:
        matrices = [torch.from_numpy(np.array(m, dtype="float32")) for part in collection.documents() for m in part]
        index = search.FastPlaid(index=folder, device="cpu")
        seconds, _ = timed(lambda: index.create(documents_embeddings=matrices))

        def ask(queries: TokenEmbeddings) -> list[list[int]]:
            asked = [torch.from_numpy(np.array(m, dtype="float32")) for m in queries]
            return [[hit[0] for hit in row] for query in asked for row in index.search(query[None], top_k=K)]

        row, found = measure_searches(ask, collection.queries[:50])
        return {"system": "fast-plaid", "build s": seconds, **row, **collection.quality(found)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_warp(collection: Collection) -> dict[str, Any]:
    from xtr_warp.search import XTRWarp

    folder = tempfile.mkdtemp(prefix="latelier-bench-")
    try:
        matrices = [torch.from_numpy(np.array(m, dtype="float32")) for part in collection.documents() for m in part]
        index = XTRWarp(index=folder, device="cpu")
        seconds, _ = timed(lambda: index.create(embeddings_source=matrices, device="cpu", show_progress=False))
        index.load(device="cpu")

        def ask(queries: TokenEmbeddings) -> list[list[int]]:
            asked = [torch.from_numpy(np.array(m, dtype="float32")) for m in queries]
            return [[hit[0] for hit in row] for query in asked for row in index.search(query[None], top_k=K)]

        row, found = measure_searches(ask, collection.queries)
        return {"system": "xtr-warp-rs", "build s": seconds, **row, **collection.quality(found)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


PEERS = {"fast_plaid": measure_fast_plaid, "xtr_warp": measure_warp}


def collections(options: argparse.Namespace) -> Iterator[Collection]:
    if options.documents:
        documents = TokenEmbeddings.load(options.documents).to("numpy")
        judged = Judged(options.judged) if options.judged else None
        queries = TokenEmbeddings.load(options.queries).to("numpy").to("float32")[: options.asked]
        for size in options.sizes or [len(documents)]:
            part = documents[:size]
            chunks = [part[i : i + CHUNK] for i in range(0, len(part), CHUNK)]
            for cosine in [0.0, *options.cone]:
                yield Collection(lambda chunks=chunks: iter(chunks), queries, len(part), judged, cosine)
        return
    for size in options.sizes or [options.synthetic]:
        shape = (size, options.tokens, options.dim)
        asked = synthetic_queries(*shape, queries=options.asked)
        for cosine in [0.0, *options.cone]:
            yield Collection(lambda shape=shape: synthetic_documents(*shape), asked, size, cosine=cosine)


def show(row: dict[str, Any], count: int) -> None:
    cells = [f"{row['system']:32}{count:>10,}"]
    cells += [f"{row[name]:11,.{n}f}" if name in row else " " * 11 for name, n in DIGITS.items()]
    print("".join(cells), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=Path, help="saved TokenEmbeddings")
    parser.add_argument("--queries", type=Path, help="saved TokenEmbeddings")
    parser.add_argument(
        "--judged",
        type=Path,
        help="collection in BEIR layout; the saved documents are in its order, the queries are those of qrels/test.tsv "
        "in the order of their ids",
    )
    parser.add_argument("--synthetic", type=int, default=20_000, help="number of synthetic documents")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of a synthetic document")
    parser.add_argument("--dim", type=int, default=128, help="dimensions of synthetic tokens")
    parser.add_argument("--sizes", type=int, nargs="*", help="numbers of documents to measure with, the first ones")
    parser.add_argument("--asked", type=int, default=300, help="number of queries")
    parser.add_argument("--nbits", type=int, nargs="*", default=[8], choices=(8, 4, 2, 1))
    parser.add_argument("--cone", type=float, nargs="*", default=[], help="also measure in cones of such a mean cosine")
    parser.add_argument("--efforts", nargs="*", default=["balanced"])
    parser.add_argument("--threads", type=int, default=2, help="threads to build with")
    parser.add_argument("--peers", type=int, default=5000, help="maximum number of documents for other engines")
    parser.add_argument("--flat", action="store_true", help="also measure the exact index")
    parser.add_argument("--no-lists", action="store_true", help="also measure the index without inverted lists")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    if bool(options.documents) != bool(options.queries):
        parser.error("--documents and --queries go together")
    print(f"{'system':32}{'documents':>10}" + "".join(f"{name:>11}" for name in DIGITS))
    rows: list[dict[str, Any]] = []
    for collection in collections(options):
        found: list[Iterator[dict[str, Any]]] = [
            measure_ivf(collection, nbits, options.efforts, options.threads, lists)
            for nbits in options.nbits
            for lists in ([True, False] if options.no_lists else [True])
        ]
        if options.flat:
            found.append(iter([measure_flat(collection)]))
        if collection.count <= options.peers:
            found += [iter([peer(collection)]) for name, peer in PEERS.items() if importlib.util.find_spec(name)]
        for measured in found:
            for row in measured:
                show(row, collection.count)
                rows.append({"documents": collection.count, **row})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
