"""What a token costs in an `IVF` index: bytes on disk and in memory, processor time to build and to search.

    python benchmarks/cost.py FILE [--tokens 1000000 3000000 10000000 30000000] [--nbits 8 4 1] [--indexes DIR]
    python benchmarks/cost.py FILE --documents documents.safetensors --queries queries.safetensors
    python benchmarks/cost.py FILE --again --indexes DIR

Each index is built from the synthetic documents of ``benchmarks/index.py``, 100 tokens of 128 dimensions each, or from
saved `TokenEmbeddings`, and searched with 200 queries, synthetic ones of 32 tokens, in a process of its own on one
thread; a process beside it makes the documents. Times are those of the processor (user and system), which other work on
the machine changes less than the clock. FILE gets a line of JSON for each index; those that are in it already are left
out, or only searched again with ``--again``. ``benchmarks/cost_tables.py`` makes the tables of docs/cost.md from it.
Linux only, as ``benchmarks/memory.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from memory import Resident, make, receive_documents, send_documents, warm

from latelier.embeddings import TokenEmbeddings

DOCUMENT, DIM, QUERY, K = 100, 128, 32, 10
QUERIES, EXACT = 200, 20


def build(kind: str, folder: Path, budget: str | None, documents: Iterable[Any], count: int) -> dict[str, Any]:
    """Return the costs of building an index."""
    warm(kind)
    began = time.process_time()
    with Resident() as peak, make(kind, folder, budget) as index:
        index.add(range(count), documents)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    costs = {"build cpu s": time.process_time() - began, "build s": peak.seconds, "disk": size}
    return costs | {"build memory MB": peak.total, "build anonymous MB": peak.anonymous}


def search(kind: str, folder: Path, budget: str | None, queries: TokenEmbeddings) -> dict[str, Any]:
    """Return the costs of searching an index, and the recall of the default effort."""
    warm(kind)
    with Resident() as peak:
        index = make(kind, folder, budget)
        for query in queries:  # reads what the searches need from the disk
            index.search(query, K)
    times, found = [], []
    for query in queries:
        began = time.process_time()
        [hits] = index.search(query, K)
        times.append(1e3 * (time.process_time() - began))
        found.append({hit.id for hit in hits})
    exact = index.search(queries[:EXACT], K, effort="exact")
    recall = [len(own & {hit.id for hit in hits}) / K for own, hits in zip(found, exact, strict=False)]
    report, tokens = index.memory, float(np.mean(queries.lengths))
    costs = {"search ms": float(np.mean(times)), "p99 ms": float(np.quantile(times, 0.99)), "query tokens": tokens}
    costs |= {"recall@10": float(np.mean(recall)), "resident MB": peak.total, "tables": report.tables}
    return costs | {"kept": dict(report.kept), "read": dict(report.read)}


def step(options: argparse.Namespace) -> None:
    """Do what a process of its own does: send documents, build or search."""
    kind, folder, budget, saved = options.kind, options.folder, options.budget, options.documents
    count = options.count
    if options.step == "send":
        send_documents(count, DOCUMENT, DOCUMENT, sys.stdout.buffer)
    elif options.step == "build":
        documents = receive_documents(sys.stdin.buffer) if saved is None else TokenEmbeddings.load(saved).to("numpy")
        print(json.dumps(build(kind, folder, budget, documents, count)))
    elif saved is None:
        from index import synthetic_queries

        print(json.dumps(search(kind, folder, budget, synthetic_queries(count, DOCUMENT, DIM, QUERIES, QUERY))))
    else:
        queries = TokenEmbeddings.load(options.queries).to("numpy").to("float32")[:QUERIES]
        print(json.dumps(search(kind, folder, budget, queries)))


def measure(options: argparse.Namespace, kind: str, count: int, folder: Path) -> dict[str, Any]:
    """Build and search one index, in a process each; only search it if it is there."""
    own = [sys.executable, __file__, "--kind", kind, "--count", str(count), "--folder", str(folder)]
    for name in ("budget", "documents", "queries"):
        own += [f"--{name}", str(getattr(options, name))] if getattr(options, name) else []
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def run(step: str, **more: Any) -> dict[str, Any]:
        ran = subprocess.run([*own, "--step", step], stdout=subprocess.PIPE, env=environment, check=True, **more)
        costs: dict[str, Any] = json.loads(ran.stdout)
        return costs

    costs = {}
    if not folder.exists() and options.documents:
        costs |= run("build")
    elif not folder.exists():
        with subprocess.Popen([*own, "--step", "send"], stdout=subprocess.PIPE, env=environment) as sender:
            costs |= run("build", stdin=sender.stdout)
    return costs | run("search")


def plan(options: argparse.Namespace) -> list[tuple[int, int, str]]:
    """Return the number of documents, the number of tokens and the text of each collection."""
    if options.documents is None:
        return [(tokens // DOCUMENT, tokens, "synthetic") for tokens in options.tokens]
    saved = TokenEmbeddings.load(options.documents)
    return [(len(saved), len(saved.vectors), options.documents.stem)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="Lines of JSON, one for each index.")
    parser.add_argument("--tokens", type=int, nargs="+", default=[300_000, 1_000_000])
    parser.add_argument("--documents", type=Path, help="Saved TokenEmbeddings, instead of synthetic ones.")
    parser.add_argument("--queries", type=Path, help="Saved TokenEmbeddings.")
    parser.add_argument("--nbits", type=int, nargs="+", default=[8, 4, 1])
    parser.add_argument("--budget", help="The indexes' max_memory, such as 1GB.")
    parser.add_argument("--indexes", type=Path, help="Where indexes are kept; default: none is kept.")
    parser.add_argument("--again", action="store_true", help="Measure searches again.")
    for name, kind in {"--step": str, "--kind": str, "--count": int, "--folder": Path}.items():
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        step(options)
        return
    if not Path("/proc/self/clear_refs").exists():
        print("skipped: the counters of resident memory are those of Linux", file=sys.stderr)
        return
    lines = options.file.read_text(encoding="ascii").splitlines() if options.file and options.file.exists() else []
    rows = {(row["text"], row["kind"], row["tokens"], row["budget"]): row for row in map(json.loads, lines)}
    for count, tokens, text in plan(options):
        for kind in (f"ivf-{nbits}" for nbits in options.nbits):
            key = (text, kind, tokens, options.budget)
            if key in rows and not options.again:
                continue
            folder = options.indexes or Path(tempfile.mkdtemp(prefix="latelier-cost-"))
            try:
                costs = measure(options, kind, count, folder / f"{text}-{kind}-{tokens}-{options.budget}")
            finally:
                if options.indexes is None:
                    shutil.rmtree(folder)
            named = dict(zip(("text", "kind", "tokens", "budget"), key, strict=True))
            rows[key] = rows.get(key, {}) | named | {"documents": count} | costs
            print(rows[key], flush=True)
            if options.file:
                options.file.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="ascii")


if __name__ == "__main__":
    main()
