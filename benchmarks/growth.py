"""What grows with an index: opening, the first search, searches of each mode, filters, writing and compacting.

    python benchmarks/growth.py texts.txt --queries queries.txt [--sizes 1000 10000 100000] [--nbits 2] [--cache FOLDER]

The files hold one text a line, such as ``name: summary`` of packages; without --queries, each query is one of the first
texts without its name and a third of its words. The model is all-MiniLM-L6-v2 without training, in int8 (extra
`onnx`); vectors are kept in --cache. For each size, an `IVF` index with texts and metadata is written and
compacted in one process, and opened and searched in another one, on one thread. Times are those of the processor, the
median of all queries one at a time, without encoding them; the filter leaves one document in a hundred. Linux
only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes import IVF
from latelier.models import DEFAULT_MODEL, ColBERT, ExportedEncoder

K = 10
QUERIES = 200
CHUNK = 5000
MODES: dict[str, dict[str, Any]] = {
    "vectors": {"mode": "vectors"},
    "keywords": {"mode": "keywords"},
    "hybrid": {"mode": "hybrid"},
    "vectors, filter of 1%": {"mode": "vectors", "filter": "n = 7"},
    "hybrid, filter of 1%": {"mode": "hybrid", "filter": "n = 7"},
}


def int8_encoder(folder: Path) -> ExportedEncoder:
    """Return the encoder of the model in int8, exported into a folder at the first call."""
    if not folder.exists():
        ColBERT.from_dense(DEFAULT_MODEL, device="cpu").export(folder, compute_dtype="int8")
    return ExportedEncoder(folder)


def encoded(texts: list[str], cache: Path, side: str) -> TokenEmbeddings:
    """Return the vectors of texts, from the cache where they are in it."""
    parts = []
    model: ExportedEncoder | None = None
    for first in range(0, len(texts), CHUNK):
        chunk = texts[first : first + CHUNK]
        file = cache / f"{side}-{first}-{len(chunk)}.safetensors"
        if not file.exists():
            model = model or int8_encoder(cache / "encoder")
            model.encode(chunk, side).to("float16").save(file)
            print(f"  {first + len(chunk):,} of {len(texts):,}", flush=True)
        parts.append(TokenEmbeddings.load(file).to("numpy"))
    return TokenEmbeddings.concatenate(parts)


def question(text: str, seed: int) -> str:
    """Return a text without its name and a third of its words."""
    words = text.partition(": ")[2].split()
    kept = np.random.default_rng(seed).permutation(len(words))[: max(2, len(words) - len(words) // 3)]
    return " ".join(words[i] for i in np.sort(kept))


def write(folder: Path, nbits: int, texts: list[str], vectors: TokenEmbeddings) -> dict[str, float]:
    """Return the costs of writing an index."""
    with IVF(folder, nbits=nbits) as index:
        began = time.process_time()
        index.add(range(len(texts)), vectors, texts, [{"n": i % 100} for i in range(len(texts))])
        costs = {"write, µs a token": 1e6 * (time.process_time() - began) / vectors.num_tokens}
        began = time.process_time()
        index.compact()
        return costs | {"compact, s": time.process_time() - began}


def anonymous_memory() -> int:
    """Return the bytes of this process's memory that are no pages of files."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))


def search(folder: Path, queries: list[str], vectors: TokenEmbeddings) -> dict[str, float]:
    """Return the costs of opening and searching an index, in milliseconds, and the recall of the default effort."""

    def timed(function: Callable[[], Any]) -> tuple[float, Any]:
        began = time.process_time()
        found = function()
        return 1e3 * (time.process_time() - began), found

    before = anonymous_memory()
    opened, index = timed(lambda: IVF(folder, read_only=True))
    costs = {"open, ms": opened}
    first, _ = timed(lambda: index.search(vectors[:1], K))
    costs["first search, ms"] = first
    for name, options in MODES.items():
        times = []
        for i, text in enumerate(queries):
            asked = None if options["mode"] == "keywords" else vectors[i : i + 1]
            words = {} if options["mode"] == "vectors" else {"texts": text}
            times.append(timed(lambda a=asked, w=words, o=options: index.search(a, K, **w, **o))[0])
        costs[name + ", ms"] = statistics.median(times)
    found = index.search(vectors, K, mode="vectors")
    best = index.search(vectors, K, mode="vectors", effort="exact")
    shares = [
        len({hit.id for hit in one} & {hit.id for hit in other}) / K for one, other in zip(found, best, strict=True)
    ]
    memory = anonymous_memory() - before
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return costs | {
        "recall@10": float(np.mean(shares)),
        "memory without pages of files, MB": memory / 1e6,
        "disk, MB": size / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--queries", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--nbits", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path("growth-cache"))
    parser.add_argument("--search", type=Path, help=argparse.SUPPRESS)  # what the second process does
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    texts = options.texts.read_text(encoding="utf-8").splitlines()[: max(options.sizes)]
    if options.queries is None:
        queries = [question(text, i) for i, text in enumerate(texts[:QUERIES])]
    else:
        queries = options.queries.read_text(encoding="utf-8").splitlines()[:QUERIES]
    asked = encoded(queries, options.cache, "query")
    if options.search is not None:
        print(json.dumps(search(options.search, queries, asked)))
        return
    vectors = encoded(texts, options.cache, "document")
    rows: dict[str, list[float]] = {}
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            costs = write(Path(folder) / "index", options.nbits, texts[:size], vectors[:size])
            again = [sys.executable, *sys.argv, "--search", f"{folder}/index"]
            ran = subprocess.run(again, capture_output=True, text=True, check=True)
            costs |= json.loads(ran.stdout.splitlines()[-1])
        for name, value in costs.items():
            rows.setdefault(name, []).append(value)
    print(f"{options.nbits} bits, {vectors.num_tokens / len(vectors):.1f} tokens a text")
    print("| documents | " + " | ".join(f"{size:,}" for size in options.sizes) + " |")
    print("| --- |" + " --- |" * len(options.sizes))
    for name, values in rows.items():
        print(f"| {name} | " + " | ".join(f"{value:.3g}" for value in values) + " |")


if __name__ == "__main__":
    main()
