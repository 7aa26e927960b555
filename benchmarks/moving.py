"""Time and memory of moving documents to files and back; and what a move changes in a quantised index.

    python benchmarks/moving.py [--documents 100000]
    python benchmarks/moving.py --vectors documents.safetensors queries.safetensors

The first makes a `Flat` index of synthetic documents in float16 (40 to 80 tokens of 96 dims, a text of 400 characters),
exports it, exports it again (which compares all documents), and imports it into `Flat` and into 4-bit `IVF`, each in a
process of its own on one thread. Memory is the peak of the anonymous part of the resident set; pages of mapped files
are not counted. The second takes vectors saved with `TokenEmbeddings.save`, and compares an `IVF` index with its copy:
recall@10 against exact search with the given vectors, and the share of tokens whose codes are the same. Linux only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from memory import Resident

DIM, K = 96, 10
PHASES = ("export", "export again", "import into Flat", "import into IVF")


def documents(count: int) -> Iterator[np.ndarray]:
    """Yield one random matrix of unit vectors per document."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        matrix = rng.standard_normal((int(rng.integers(40, 81)), DIM), dtype="float32")
        yield matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


def make(folder: Path, count: int) -> None:
    """Make the index to export."""
    from latelier import indexes

    with indexes.Flat(folder / "source", dtype="float16") as index:
        texts = (f"document {i} ".ljust(400, "x") for i in range(count))
        index.add(range(count), documents(count), texts, ({"year": 2000 + i % 25} for i in range(count)))
        held = index.statistics()
    print(f"{held.documents:,} documents, {held.tokens:,} tokens, {held.bytes / 1e6:,.0f} MB on disk")


def move(folder: Path, phase: str) -> None:
    """Run one phase, and print its time and its memory."""
    from latelier import indexes

    if phase.startswith("export"):
        with indexes.open(folder / "source", read_only=True) as index, Resident() as used:
            indexes.export_documents(index, folder / "export")
    else:
        made = folder / phase.split()[-1]
        target = indexes.IVF(made, nbits=4) if phase.endswith("IVF") else indexes.Flat(made, dtype="float16")
        with target, Resident() as used:
            indexes.import_documents(folder / "export", target)
    print(f"{phase:18} {used.seconds:6.1f} s, {used.anonymous:5.0f} MB", flush=True)


def compare(documents_file: Path, queries_file: Path) -> None:
    """Print the recall of quantised indexes before and after a move."""
    from latelier import indexes
    from latelier.embeddings import TokenEmbeddings

    given, queries = (TokenEmbeddings.load(file).to("numpy") for file in (documents_file, queries_file))
    ids = range(len(given))
    flat = indexes.Flat(dtype="float16")
    flat.add(ids, given)
    best = [{hit.id for hit in row} for row in flat.search(queries, K)]
    del flat

    def recall(index: indexes.Index) -> float:
        found = index.search(queries, K, effort="exact")
        rows = zip(best, found, strict=True)
        return float(np.mean([len(wanted & {hit.id for hit in row}) / K for wanted, row in rows]))

    some = range(min(500, len(given)))
    for nbits in (8, 4, 2, 1):
        index = indexes.IVF(nbits=nbits)
        index.add(ids, given)
        before, was = recall(index), index.get_embeddings(some).vectors
        with tempfile.TemporaryDirectory() as folder:
            for dtype in ("float32", "float16"):
                indexes.export_documents(index, Path(folder, dtype), dtype=dtype)
                moved = indexes.IVF(nbits=nbits)
                indexes.import_documents(Path(folder, dtype), moved)
                same = (was == moved.get_embeddings(some).vectors).all(axis=1).mean()
                print(f"{nbits} bits, {dtype}: recall {before:.4f} -> {recall(moved):.4f}, {same:.2%} of tokens equal")
                del moved


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--vectors", type=Path, nargs=2, metavar="FILE")
    parser.add_argument("--phase", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        move(Path(options.phase[0]), options.phase[1])
        return
    if options.vectors:
        compare(*options.vectors)
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), options.documents)
        for phase in PHASES:
            command = [sys.executable, __file__, "--phase", folder, phase]
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
