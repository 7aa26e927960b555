"""One thread and two, on idle cores and while another process keeps one core busy: searching, pooling and building.

    python benchmarks/threads.py [--documents 6000] [--repeats 5] [--json results.json]

"search" is one call of `IVF.search` with 64 queries, "pool" Ward pooling of 500 documents, "add" building an `IVF` in
memory, its training included, all with synthetic documents of 100 tokens in 128 dims. Milliseconds are medians; one and
two threads take turns of four calls, of which the first is not counted. `benchmarks/scoring.py --only threads` measures
MaxSim in the same way.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _busy import one_busy_core
from _common import median_ms
from index import synthetic_documents, synthetic_queries, warm_up

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.models import pool_tokens

TOKENS, DIM, QUERIES, POOLED = 100, 128, 64, 500
TURN = 4


def build(documents: list[TokenEmbeddings]) -> indexes.IVF:
    index = indexes.IVF()
    index.add(range(sum(map(len, documents))), iter(documents))
    return index


def with_threads(number: int, call: Callable[[], Any]) -> None:
    torch.set_num_threads(number)
    call()


def measure(count: int, repeats: int) -> Iterator[dict[str, Any]]:
    documents = list(synthetic_documents(count, TOKENS, DIM))
    queries = synthetic_queries(count, TOKENS, DIM, QUERIES)
    index, pooled = build(documents), documents[0][:POOLED].to("torch")
    works: dict[str, Callable[[], Any]] = {
        "search": lambda: index.search(queries),
        "pool": lambda: pool_tokens(pooled, 2),
        "add": lambda: build(documents),
    }
    for state in ("idle", "one core busy"):
        with one_busy_core() if state != "idle" else nullcontext():
            for work, call in works.items():
                times = median_ms(repeats, {str(n): partial(with_threads, n, call) for n in (1, 2)}, TURN)
                for n, value in times.items():
                    yield {"work": work, "cores": state, "threads": n, "ms": value, "ratio": value / times["1"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    warm_up()
    rows = []
    print(f"{'work':8}{'cores':16}{'threads':>8}{'ms':>12}{'times one thread':>20}")
    for row in measure(options.documents, options.repeats):
        print(f"{row['work']:8}{row['cores']:16}{row['threads']:>8}{row['ms']:12,.1f}{row['ratio']:20.2f}", flush=True)
        rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
