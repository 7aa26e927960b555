"""One thread and two, on idle cores and while another process keeps one core busy: searching, pooling and building.

    python benchmarks/threads.py [--documents 6000] [--repeats 5] [--texts COLLECTION] [--json results.json]

"search" is one call of `IVF.search` with 64 queries, "pool" Ward pooling of 500 documents, "add" building an `IVF` in
memory, its training included, all with synthetic documents of 100 tokens in 128 dims. With a collection in BEIR layout,
also encoding 96 of its documents with each backend, and its queries one by one. Milliseconds are medians; one and two
threads take turns of three calls, after those of a tenth of a second, which are not counted. MaxSim is measured in the
same way by `benchmarks/scoring.py --only threads`.
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
from latelier.evaluation import load_beir
from latelier.models import DEFAULT_MODEL, ColBERT, pool_tokens

TOKENS, DIM, QUERIES, POOLED = 100, 128, 64, 500
TEXTS = 96
TURN = 3


def build(documents: list[TokenEmbeddings]) -> indexes.IVF:
    index = indexes.IVF()
    index.add(range(sum(map(len, documents))), iter(documents))
    return index


def encodings(folder: Path) -> dict[str, Callable[[], Any]]:
    collection = load_beir(folder, "test", on_problem="skip")
    documents, queries = (list(texts)[:TEXTS] for texts in (collection.texts().values(), collection.queries.values()))
    works: dict[str, Callable[[], Any]] = {}
    for backend, dtypes in (("torch", ("float32", "bfloat16")), ("onnx", ("float32", "int8"))):
        model = ColBERT.from_dense(DEFAULT_MODEL, device="cpu", backend=backend)
        for dtype in dtypes:
            works[f"{backend} {dtype}"] = partial(model.encode_document, documents, compute_dtype=dtype)
            works[f"{backend} {dtype}, queries"] = partial(encode_one_by_one, model, queries, dtype)
    return works


def encode_one_by_one(model: ColBERT, queries: list[str], dtype: str) -> None:
    for query in queries:
        model.encode_query(query, compute_dtype=dtype)


def with_threads(number: int, call: Callable[[], Any]) -> None:
    torch.set_num_threads(number)
    call()


def measure(count: int, repeats: int, texts: Path | None) -> Iterator[dict[str, Any]]:
    documents = list(synthetic_documents(count, TOKENS, DIM))
    queries = synthetic_queries(count, TOKENS, DIM, QUERIES)
    index, pooled = build(documents), documents[0][:POOLED].to("torch")
    works: dict[str, Callable[[], Any]] = {
        "search": lambda: index.search(queries),
        "pool": lambda: pool_tokens(pooled, 2),
        "add": lambda: build(documents),
    } | (encodings(texts) if texts else {})
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
    parser.add_argument("--texts", type=Path, help="a collection in BEIR layout, to encode")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    warm_up()
    rows = []
    print(f"{'work':24}{'cores':16}{'threads':>8}{'ms':>12}{'times one thread':>20}")
    for row in measure(options.documents, options.repeats, options.texts):
        print(f"{row['work']:24}{row['cores']:16}{row['threads']:>8}{row['ms']:12,.1f}{row['ratio']:20.2f}", flush=True)
        rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
