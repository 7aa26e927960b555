"""A sharded index on this machine against one index in this process: time, throughput, recall, and cost of a call.

    python benchmarks/cluster.py [--documents 40000] [--shards 1 2 4] [--nbits 8]

The documents are the synthetic ones of ``benchmarks/index.py``, 100 tokens of 128 dimensions, with 200 queries of 32
tokens. Every index computes with as many threads as there are cores. p50 and p95 are of queries one at a time, q/s of
all in one call; recall is that of the exact hits of the index in this process. "coordinator ms" is the processor time
of this process for a query; how much of it each further shard adds is the cost of a call.

Needs the extra ``ray``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))  # read when latelier is imported

import numpy as np
from cost_tables import insert, markdown
from index import synthetic_documents, synthetic_queries

from latelier import indexes
from latelier.embeddings import TokenEmbeddings

DOCUMENT, DIM, QUERY, QUERIES, K = 100, 128, 32, 200, 10
COLUMNS = ("p50 ms", "p95 ms", "q/s", "coordinator ms", "recall@10")


def measure(index: indexes.Index, queries: TokenEmbeddings) -> tuple[dict[str, float], list[set[Any]]]:
    """Return the figures of an index, and what the queries find."""
    for query in queries[:20]:
        index.search(query, K)
    times, work, found = [], [], []
    for query in queries:
        began, processor = time.perf_counter(), time.process_time()
        [hits] = index.search(query, K)
        times.append(1e3 * (time.perf_counter() - began))
        work.append(1e3 * (time.process_time() - processor))
        found.append({hit.id for hit in hits})
    began = time.perf_counter()
    index.search(queries, K)
    seconds = time.perf_counter() - began
    figures = {"p50 ms": float(np.median(times)), "p95 ms": float(np.quantile(times, 0.95))}
    return figures | {"q/s": len(queries) / seconds, "coordinator ms": float(np.mean(work))}, found


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return the figures as a table, with ratios to the index in this process, the first row."""
    lines = [["", "p50", "relative", "queries per second, one call", "relative", "coordinator", "recall@10"]]
    for row in rows:
        name = {0: "one index, this process", 1: "1 shard"}.get(row["shards"], f"{row['shards']} shards")
        ratios = [f"{row[each] / rows[0][each]:.2f}" for each in ("p50 ms", "q/s")]
        cells = [
            f"{row['p50 ms']:.1f} ms",
            ratios[0],
            f"{row['q/s']:.0f}",
            ratios[1],
            f"{row['coordinator ms']:.1f} ms",
        ]
        lines.append([name, *cells, f"{row['recall@10']:.3f}"])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--nbits", type=int, default=8, choices=(8, 4, 2, 1))
    parser.add_argument("--docs", type=Path, help="Page with the comment <!-- measured shards -->, to put the table.")
    options = parser.parse_args()
    if importlib.util.find_spec("ray") is None:
        print('skipped: pip install "latelier[ray]"', file=sys.stderr)
        return
    count = options.documents
    queries = synthetic_queries(count, DOCUMENT, DIM, QUERIES, QUERY)
    print(f"{'':12}" + "".join(f"{name:>16}" for name in (*COLUMNS, "p50 / one", "q/s / one")))
    rows: list[dict[str, Any]] = []
    exact: list[set[Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for shards in (0, *options.shards):
            place = Path(folder) / str(shards)
            made = indexes.Sharded(place, shards=shards, nbits=options.nbits) if shards else indexes.IVF(place)
            with made as index:
                parts = synthetic_documents(count, DOCUMENT, DIM)
                index.add(range(count), (matrix for part in parts for matrix in part))
                figures, found = measure(index, queries)
                if not shards:
                    exact = [{hit.id for hit in hits} for hits in index.search(queries, K, effort="exact")]
            recall = float(np.mean([len(own & best) / K for own, best in zip(found, exact, strict=True)]))
            rows.append({"shards": shards, **figures, "recall@10": recall})
            ratios = [rows[-1][name] / rows[0][name] for name in ("p50 ms", "q/s")]
            name = f"{shards} shards" if shards else "one index"
            print(
                f"{name:12}" + "".join(f"{rows[-1][c]:16.3f}" for c in COLUMNS) + "".join(f"{r:16.2f}" for r in ratios)
            )
    sharded = [(row["shards"], row["coordinator ms"]) for row in rows[1:]]
    call = float(np.polyfit(*np.transpose(sharded), 1)[0]) if len(sharded) > 1 else float("nan")
    print(f"a call takes the coordinator {call:.2f} ms")
    if options.docs:
        page = insert(options.docs.read_text(encoding="utf-8"), "measured shards", markdown(table(rows)))
        options.docs.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
