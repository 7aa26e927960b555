"""Speed of encoding compared with sentence-transformers, and its effect on ranking.

    python benchmarks/encoding.py path/to/scifact [--documents 2000] [--queries 100] [--device cuda] [--json out.json]

The folder is a collection in BEIR layout. A sample of its documents, which includes all judged ones, is encoded with
one model, all-MiniLM-L6-v2 projected to 128 dimensions without training: by sentence-transformers at its defaults, and
by this library at its defaults and in float32. Documents are encoded once. Queries are encoded one at a time, ten by
each system in turn; times are medians. Ranking is exact; "least cosine" is the lowest cosine of a token vector with
that of sentence-transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import MEASURE, parse_options, quality, sample
from sentence_transformers import MultiVectorEncoder

from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, load_beir
from latelier.models import DEFAULT_MODEL, ColBERT

PEER, OURS, EXACT, FORCED = "sentence-transformers", "latelier", "latelier, float32", "latelier, bfloat16"


def documents_per_second(
    systems: dict[str, Callable[[list[str]], Any]], texts: list[str]
) -> tuple[dict[str, float], dict[str, TokenEmbeddings]]:
    rates, encoded = {}, {}
    for name, encode in systems.items():
        encode(texts[:8])
        begin = time.perf_counter()
        rows = encode(texts)
        rates[name] = len(texts) / (time.perf_counter() - begin)
        encoded[name] = (rows if isinstance(rows, TokenEmbeddings) else TokenEmbeddings.from_list(rows)).to("cpu")
    return rates, encoded


def query_ms(systems: dict[str, Callable[[str], Any]], queries: list[str]) -> dict[str, float]:
    """Encode ten queries with one system, then with the next: after a single query, caches hold the other's weights."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    for start in range(0, len(queries), 10):
        for name, encode in systems.items():
            encode(queries[start])
            for query in queries[start : start + 10]:
                begin = time.perf_counter()
                encode(query)
                times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(values) for name, values in times.items()}


def padding(model: ColBERT, texts: list[str]) -> float:
    """Return the share of padding among the positions that the encoder computes."""
    computed = 0

    def count(module: torch.nn.Module, inputs: Any) -> None:
        nonlocal computed
        computed += inputs[0]["input_ids"].numel()

    handle = model[0].register_forward_pre_hook(count)
    model.encode_document(texts, packed=True, compute_dtype="bfloat16")
    handle.remove()
    real = int(model.preprocess(texts, task="document")["attention_mask"].sum())
    return 1 - real / computed


def measure(collection: Collection, options: argparse.Namespace) -> list[dict[str, Any]]:
    ids = sample(collection, options.documents)
    texts = [collection.texts()[id_] for id_ in ids]
    queries = list(collection.queries.values())
    model = ColBERT.from_dense(DEFAULT_MODEL, "orthogonal", 128, options.device, max_length_document=options.length)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        peer = MultiVectorEncoder(folder, device=options.device)
    rates, documents = documents_per_second(
        {
            PEER: peer.encode_document,
            OURS: lambda texts: model.encode_document(texts, packed=True),
            EXACT: lambda texts: model.encode_document(texts, packed=True, compute_dtype="float32"),
        },
        texts,
    )
    latencies = query_ms(
        {
            PEER: peer.encode_query,
            OURS: model.encode_query,
            FORCED: lambda query: model.encode_query(query, compute_dtype="bfloat16"),
        },
        queries[: options.queries],
    )
    encoded_queries = model.encode_query(queries, packed=True).to("cpu")
    exact = documents[PEER].vectors
    rows = []
    for name in (PEER, OURS, EXACT, FORCED):
        row: dict[str, Any] = {"system": name}
        if name in documents:
            row["documents/s"], row["ratio"] = rates[name], rates[name] / rates[PEER]
            row[MEASURE] = quality(collection, ids, encoded_queries, documents[name])
            row["least cosine"] = torch.cosine_similarity(documents[name].vectors, exact, dim=-1).min().item()
        if name in latencies:
            row["query ms"], row["query ratio"] = latencies[name], latencies[name] / latencies[PEER]
        rows.append(row)
    print(
        f"{len(texts):,} documents of {documents[OURS].lengths.mean():.0f} tokens, {len(queries)} queries of "
        f"{encoded_queries.lengths.mean():.0f}, {options.threads} threads; padding {padding(model, texts):.1%}"
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="test")
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--length", type=int, default=300, help="maximum document length in tokens")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parse_options(parser)
    torch.set_num_threads(options.threads)
    rows = measure(load_beir(options.folder, options.split, on_problem="warn"), options)
    columns = {"documents/s": ".1f", "ratio": ".2f", MEASURE: ".4f", "least cosine": ".5f"}
    columns |= {"query ms": ".2f", "query ratio": ".2f"}
    print(f"{'system':24}" + "".join(f"{name:>14}" for name in columns))
    for row in rows:
        cells = (format(row[name], spec) if name in row else "" for name, spec in columns.items())
        print(f"{row['system']:24}" + "".join(f"{cell:>14}" for cell in cells))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
