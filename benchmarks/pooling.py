"""Speed of token pooling compared with sentence-transformers, and its effect on ranking.

    python benchmarks/pooling.py path/to/scifact [--documents 1000] [--factor 2] [--dims 128] [--json results.json]

The folder is a collection in BEIR layout (corpus.jsonl, queries.jsonl, qrels/test.tsv). A sample of its documents,
which includes all judged ones, is encoded once by all-MiniLM-L6-v2 without training, projected by PCA if --dims is less
than its 384. Seconds are medians of repeats, in which the libraries take turns; ranking is exact.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import MEASURE, median_ms, parse_options, quality, sample
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, load_beir
from latelier.models import DEFAULT_MODEL, ColBERT, pool_tokens

NATIVE_DIMS = 384


def encode(texts: list[str], queries: list[str], dims: int, length: int) -> tuple[TokenEmbeddings, TokenEmbeddings]:
    projection = None if dims == NATIVE_DIMS else "pca"
    model = ColBERT.from_dense(DEFAULT_MODEL, projection, dims, "cpu", max_length_document=length)
    if projection:
        model.fit_projection(texts[:1000])
    return model.encode_document(texts, packed=True), model.encode_query(queries, packed=True)


def measure(collection: Collection, options: argparse.Namespace) -> list[dict[str, Any]]:
    ids = sample(collection, options.documents)
    texts = collection.texts()
    documents, queries = encode(
        [texts[id_] for id_ in ids], list(collection.queries.values()), options.dims, options.length
    )
    print(
        f"{len(documents):,} documents of {documents.lengths.mean():.0f} tokens in {documents.dim} dims, "
        f"{len(queries)} queries, {options.threads} threads, {options.repeats} repeats"
    )
    listed, peer = list(documents), HierarchicalTokenPooling(options.factor)
    calls: dict[str, Callable[[], TokenEmbeddings | list[torch.Tensor]]] = {
        f"sentence-transformers, factor {options.factor}": lambda: peer.pool(listed),
        f"latelier, factor {options.factor}": lambda: pool_tokens(documents, options.factor),
    }
    seconds = {name: ms / 1e3 for name, ms in median_ms(options.repeats, calls).items()}
    slowest = next(iter(seconds.values()))
    rows: list[dict[str, Any]] = [{"system": "not pooled"}]
    rows += [{"system": name, "seconds": seconds[name], "ratio": slowest / seconds[name]} for name in calls]
    for row in rows:
        pooled = calls[row["system"]]() if row["system"] in calls else documents
        packed = pooled if isinstance(pooled, TokenEmbeddings) else TokenEmbeddings.from_list(pooled)
        row |= {"vectors": packed.num_tokens, MEASURE: quality(collection, ids, queries, packed)}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="test")
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--length", type=int, default=180, help="maximum document length in tokens")
    parser.add_argument("--dims", type=int, default=128)
    parser.add_argument("--factor", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parse_options(parser)
    torch.set_num_threads(options.threads)
    rows = measure(load_beir(options.folder, options.split, on_problem="skip"), options)
    print(f"{'system':34}{'seconds':>9}{'ratio':>8}{'vectors':>9}{MEASURE:>9}")
    for row in rows:
        timing = f"{row['seconds']:9.3f}{row['ratio']:7.1f}x" if "seconds" in row else " " * 17
        print(f"{row['system']:34}{timing}{row['vectors']:9,}{row[MEASURE]:9.4f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
