"""Memory that an index takes while it is built, opened and searched, with and without a memory budget.

    python benchmarks/memory.py [--documents 100000] [--tokens 30 60] [--kinds flat ivf-4 ivf-2] [--budgets none 256MB]
    python benchmarks/memory.py --documents 1000000 --tokens 30 30 --kinds ivf-4 --budgets none 512MB 256MB

Each index is built, and each is opened and searched, in a process of its own on one thread; a process beside it makes
the synthetic documents (those of ``benchmarks/index.py``, cut to lengths drawn from the range) and sends them through a
pipe, so the measured process holds none of them. Memory is the peak of the resident set (``VmHWM``), and of its
anonymous part (``RssAnon``, sampled), above what the process had after importing the library and loading the kernels.
Recall is that of the default effort against ``effort="exact"`` of the same index. Linux only, which has these counters.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

DIM, K, QUERIES = 128, 10, 100
SENT = 50  # documents sent through the pipe at a time
COLUMNS = {"kind": "", "budget": "", "phase": "", "s": ".1f", "resident MB": ".0f", "anonymous MB": ".0f"}
COLUMNS |= {"index MB": ".0f", "ms a query": ".2f", "recall@10": ".3f"}


class Resident:
    """Peak memory in a ``with`` block, above the memory at its beginning, in MB."""

    def __enter__(self) -> Resident:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
        self._before = _status()
        self.anonymous, self._done = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._began = time.perf_counter()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.anonymous = max(self.anonymous, _status()["RssAnon"] - self._before["RssAnon"])

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self._done.set()
        self._thread.join()
        self.total = _status()["VmHWM"] - self._before["VmRSS"]

    def row(self, phase: str) -> dict[str, Any]:
        """Return the columns of one phase."""
        return {"phase": phase, "s": self.seconds, "resident MB": self.total, "anonymous MB": self.anonymous}


def _status() -> dict[str, float]:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return {name: int(found[name].split()[0]) / 1024 for name in ("VmHWM", "VmRSS", "RssAnon", "RssFile")}


def send_documents(count: int, shortest: int, longest: int, target: BinaryIO) -> None:
    """Write documents to a pipe: their number, their lengths, their vectors; a number of 0 ends."""
    from index import synthetic_documents

    rng = np.random.default_rng(5)
    for chunk in synthetic_documents(count, longest, DIM):
        lengths = rng.integers(shortest, longest + 1, len(chunk))
        for first in range(0, len(chunk), SENT):
            rows = [chunk[i][: lengths[i]] for i in range(first, min(first + SENT, len(chunk)))]
            target.write(np.array([len(rows), *map(len, rows)], dtype="int32").tobytes())
            target.write(np.concatenate(rows).tobytes())
    target.write(np.zeros(1, "int32").tobytes())
    target.close()


def receive_documents(source: BinaryIO) -> Iterator[Any]:
    """Yield the documents of a pipe as packed embeddings."""
    from latelier.embeddings import TokenEmbeddings

    while count := int(np.frombuffer(source.read(4), "int32")[0]):
        offsets = np.concatenate([[0], np.cumsum(np.frombuffer(source.read(4 * count), "int32"))])
        vectors = np.frombuffer(bytearray(source.read(4 * DIM * int(offsets[-1]))), "float32").reshape(-1, DIM)
        yield TokenEmbeddings(vectors, offsets)


def make(kind: str, folder: Path | None, budget: str | None) -> Any:
    from latelier import indexes

    name, _, bits = kind.partition("-")
    if name == "flat":
        return indexes.Flat(folder, max_memory=budget)
    return indexes.IVF(folder, nbits=int(bits), max_memory=budget)  # type: ignore[arg-type]


def warm(kind: str) -> None:
    """Load everything that a build and a search need, so that its memory is not counted."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, make(kind, Path(folder) / "index", None) as index:
        index.add(range(20), [rng.standard_normal((4, DIM), dtype="float32") for _ in range(20)])
        index.search(rng.standard_normal((4, DIM), dtype="float32"))


def build(kind: str, folder: Path, budget: str | None, count: int) -> list[dict[str, Any]]:
    warm(kind)
    with Resident() as peak, make(kind, folder, budget) as index:
        index.add(range(count), receive_documents(sys.stdin.buffer))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return [peak.row("build") | {"index MB": size / 2**20}]


def search(kind: str, folder: Path, budget: str | None, exact: Path) -> list[dict[str, Any]]:
    warm(kind)
    queries = list(np.load(exact.with_suffix(".queries.npy")))
    rows = []
    with Resident() as peak:
        index = make(kind, folder, budget)
    rows.append(peak.row("open"))
    with Resident() as peak:
        index.search(queries[0], K)
    rows.append(peak.row("first search"))
    times, found = [], []
    with Resident() as peak:
        for query in queries:
            begin = time.perf_counter()
            [hits] = index.search(query, K)
            times.append(1e3 * (time.perf_counter() - begin))
            found.append([hit.id for hit in hits])
    rows.append(peak.row(f"{len(queries)} searches") | {"ms a query": statistics.median(times)})
    with Resident() as peak:
        index.search(queries, K)
    rows.append(peak.row("one batch"))
    if getattr(index, "memory", None) is not None and budget is not None:
        print(index.memory, file=sys.stderr)
    if not exact.exists():
        options = {} if kind == "flat" else {"effort": "exact"}
        with Resident() as peak:
            hits = index.search(queries, K, **options)
        exact.write_text(json.dumps([[hit.id for hit in row] for row in hits]), encoding="ascii")
        rows.append(peak.row("exact batch"))
    best = json.loads(exact.read_text(encoding="ascii"))
    recall = np.mean([len({*own} & {*row}) / K for own, row in zip(best, found, strict=True)])
    rows[2]["recall@10"] = float(recall)
    index.close()
    return rows


def run(options: argparse.Namespace, kind: str, budget: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Build and search one index, in a process each."""
    own = [sys.executable, __file__, "--documents", str(options.documents), "--tokens", *map(str, options.tokens)]
    own += ["--kinds", kind, "--budgets", budget, "--folder", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    index = folder / f"{kind}-{budget}"
    steps = [] if index.exists() else ["build"]
    for step in [*steps, "search"]:
        sender = None
        if step == "build":
            sender = subprocess.Popen([*own, "--step", "send"], stdout=subprocess.PIPE, env=environment)
        source = None if sender is None else sender.stdout
        ran = subprocess.run([*own, "--step", step], stdin=source, stdout=subprocess.PIPE, env=environment, check=True)
        if sender is not None:
            sender.wait()
        for row in json.loads(ran.stdout):
            yield {"kind": kind, "budget": budget, **row}
    if not options.keep:
        shutil.rmtree(index)


def step(options: argparse.Namespace) -> None:
    kind, budget = options.kinds[0], options.budgets[0]
    index, exact = options.folder / f"{kind}-{budget}", options.folder / f"{kind}.json"
    limit = None if budget == "none" else budget
    if options.step == "send":
        send_documents(options.documents, *options.tokens, sys.stdout.buffer)
    elif options.step == "queries":
        from index import synthetic_queries

        made = synthetic_queries(options.documents, options.tokens[1], DIM, QUERIES)
        np.save(options.folder / "queries.npy", np.stack(list(made)))
    elif options.step == "build":
        print(json.dumps(build(kind, index, limit, options.documents)))
    else:
        np.save(exact.with_suffix(".queries.npy"), np.load(options.folder / "queries.npy"))
        print(json.dumps(search(kind, index, limit, exact)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, nargs=2, default=[30, 60], help="Shortest and longest document.")
    parser.add_argument("--kinds", nargs="+", default=["flat", "ivf-8", "ivf-4"])
    parser.add_argument("--budgets", nargs="+", default=["none", "64MB"])
    parser.add_argument("--folder", type=Path, help="Where the indexes are made; default: a temporary folder.")
    parser.add_argument("--keep", action="store_true", help="Keep the indexes, and use those that are there.")
    parser.add_argument("--json", type=Path, help="File to write the rows to.")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        step(options)
        return
    if not Path("/proc/self/clear_refs").exists():
        print("skipped: the counters of resident memory are those of Linux", file=sys.stderr)
        return
    folder = options.folder or Path(tempfile.mkdtemp(prefix="latelier-memory-"))
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    try:
        own = [sys.executable, __file__, "--documents", str(options.documents), "--folder", str(folder)]
        subprocess.run([*own, "--tokens", *map(str, options.tokens), "--step", "queries"], check=True)
        print("  ".join(f"{name:>13}" for name in COLUMNS))
        for kind in options.kinds:
            for budget in options.budgets:
                for row in run(options, kind, budget, folder):
                    rows.append(row)
                    print("  ".join(f"{format(row.get(n, ''), f if n in row else ''):>13}" for n, f in COLUMNS.items()))
                    sys.stdout.flush()
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="ascii")


if __name__ == "__main__":
    main()
