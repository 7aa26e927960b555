"""Speed of encoding compared with sentence-transformers, and its effect on ranking.

    python benchmarks/encoding.py path/to/scifact [--documents 2000] [--queries 100] [--speed-only] [--busy]

The folder is a collection in BEIR layout. A sample of its documents, which includes judged ones, is encoded with one
model, all-MiniLM-L6-v2 projected to 128 dimensions without training: by sentence-transformers at its defaults, and by
this library with torch (float32, bfloat16) and with ONNX Runtime (float32, int8; extra ``onnx``). Each system encodes
64 documents, or ten queries one at a time, then the next system does: caches hold the weights of the system that runs,
and other work on the machine slows all of them alike. Times are medians. Ranking is exact; "least cosine" and "mean
cosine" are those of token vectors with the ones of sentence-transformers. With ``--busy`` another process takes a core.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from _common import MEASURE, parse_options, quality, sample
from sentence_transformers import MultiVectorEncoder

from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, load_beir
from latelier.kernels.library import instruction_set
from latelier.models import DEFAULT_MODEL, ColBERT

PEER = "sentence-transformers"
CHUNK = 64  # documents
Encode = Callable[[list[str], str], Any]


def encoders(options: argparse.Namespace) -> dict[str, Encode]:
    """Return the systems by name: each encodes texts as ``"query"`` or ``"document"``."""

    def load(backend: str) -> ColBERT:
        return ColBERT.from_dense(
            DEFAULT_MODEL, "orthogonal", 128, options.device, max_length_document=options.length, backend=backend
        )

    model = load("torch")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        peer = MultiVectorEncoder(folder, device=options.device)

    def ours(model: ColBERT, dtype: str) -> Encode:
        return lambda texts, task: model.encode(texts, task=task, packed=True, compute_dtype=dtype)

    systems: dict[str, Encode] = {PEER: lambda texts, task: peer.encode(texts, task=task)}
    systems |= {f"torch, {dtype}": ours(model, dtype) for dtype in ("float32", "bfloat16")}
    if options.device == "cpu" and find_spec("onnxruntime") is not None:
        exported = load("onnx")
        systems |= {f"ONNX Runtime, {dtype}": ours(exported, dtype) for dtype in ("float32", "int8")}
    return systems


def encode_documents(
    systems: dict[str, Encode], texts: list[str]
) -> tuple[dict[str, float], dict[str, TokenEmbeddings]]:
    """Return documents per second, and the embeddings."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    parts: dict[str, list[TokenEmbeddings]] = {name: [] for name in systems}
    for encode in systems.values():
        encode(texts[:8], "document")
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        for name, encode in systems.items():
            begin = time.perf_counter()
            rows = encode(chunk, "document")
            times[name].append((time.perf_counter() - begin) / len(chunk))
            parts[name].append(_packed(rows))
    encoded = {name: TokenEmbeddings.concatenate(each) for name, each in parts.items()}
    return {name: 1 / statistics.median(values) for name, values in times.items()}, encoded


def query_ms(systems: dict[str, Encode], queries: list[str]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in systems}
    for start in range(0, len(queries), 10):
        for name, encode in systems.items():
            encode(queries[start : start + 1], "query")
            for query in queries[start : start + 10]:
                begin = time.perf_counter()
                encode([query], "query")
                times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(values) for name, values in times.items()}


def measure(collection: Collection, options: argparse.Namespace) -> list[dict[str, Any]]:
    every = list(collection.texts())
    ids = every[: options.documents] if options.speed_only or options.busy else sample(collection, options.documents)
    texts = [collection.texts()[id_] for id_ in ids]
    queries = list(collection.queries.values())
    systems = encoders(options)
    with busy_core() if options.busy else nullcontext():
        rates, documents = encode_documents(systems, texts)
        latencies = query_ms(systems, queries[: options.queries])
    exact = documents[PEER].vectors
    rows = []
    for name, encode in systems.items():
        row: dict[str, Any] = {"system": name, "documents/s": rates[name], "ratio": rates[name] / rates[PEER]}
        row |= {"query ms": latencies[name], "query ratio": latencies[name] / latencies[PEER]}
        if not (options.speed_only or options.busy):
            row[MEASURE] = quality(collection, ids, _packed(encode(queries, "query")), documents[name])
            cosines = torch.cosine_similarity(documents[name].vectors, exact, dim=-1)
            row |= {"least cosine": cosines.min().item(), "mean cosine": cosines.mean().item()}
        rows.append(row)
    lengths = [
        documents[PEER].lengths.mean(),
        _packed(systems[PEER](queries[: options.queries], "query")).lengths.mean(),
    ]
    print(
        f"{len(texts):,} documents of {lengths[0]:.0f} tokens, queries of {lengths[1]:.0f}; {options.threads} threads"
        f"{', one core taken' if options.busy else ''}; {instruction_set()}"
    )
    return rows


def _packed(rows: Any) -> TokenEmbeddings:
    return (rows if isinstance(rows, TokenEmbeddings) else TokenEmbeddings.from_list(rows)).to("cpu")


@contextmanager
def busy_core() -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _spin() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="test")
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--length", type=int, default=300, help="maximum document length in tokens")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--speed-only", action="store_true", help="encode the first documents, judged or not; no ranking"
    )
    parser.add_argument("--busy", action="store_true", help="as --speed-only, while another process takes one core")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parse_options(parser)
    torch.set_num_threads(options.threads)
    rows = measure(load_beir(options.folder, options.split, on_problem="skip"), options)
    columns = {"documents/s": ".1f", "ratio": ".2f", "query ms": ".2f", "query ratio": ".2f"}
    columns |= {MEASURE: ".4f", "least cosine": ".4f", "mean cosine": ".5f"}
    print(f"{'system':24}" + "".join(f"{name:>14}" for name in columns))
    for row in rows:
        cells = (format(row[name], spec) if name in row else "" for name, spec in columns.items())
        print(f"{row['system']:24}" + "".join(f"{cell:>14}" for cell in cells))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
