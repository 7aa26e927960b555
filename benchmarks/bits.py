"""What the bits of an `IVF` index cost and save at the dimensions of the model: bytes, recall@10 and nDCG@10.

    python benchmarks/bits.py path/to/cranfield path/to/vaswani [--documents 12000] [--queries 300] [--cache folder]

The folders are collections in BEIR layout. Their documents, or samples which include all judged ones, are encoded once
by all-MiniLM-L6-v2 without training; with --cache they are kept in that folder for the next run. The exact index is of
float16. Bytes are those of the whole folder of the index, without texts.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from _encodings import Encoded, load_encoded

from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import evaluate
from latelier.indexes import IVF, Flat, Index
from latelier.models import pool_tokens

STEP = 1000  # documents at a time
SYSTEMS: dict[str, tuple[int | None, int]] = {
    "float16, exact": (None, 1),
    "8 bits": (8, 1),
    "4 bits": (4, 1),
    "2 bits": (2, 1),
    "1 bit": (1, 1),
    "2 bits, pool_factor=2": (2, 2),
    "1 bit, pool_factor=2": (1, 2),
}


def fill(index: Index, data: Encoded, factor: int) -> None:
    """Store the documents, pooled by a factor."""

    def parts() -> object:
        for first in range(0, len(data.documents), STEP):
            some = data.documents[first : first + STEP].to("float32")
            yield pool_tokens(some, factor) if factor > 1 else some

    index.add(list(data.texts), parts())


def main() -> None:
    """Print a row for each system and collection."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--documents", type=int, default=12_000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    for folder in options.folders:
        with tempfile.TemporaryDirectory(prefix="latelier-bits-") as place:
            data = load_encoded(folder, "test", options.documents, options.queries, options.cache or Path(place))
            text = sum(len(each.encode()) for each in data.texts.values())
            queries: TokenEmbeddings = data.queries.to("float32")
            exact: list[set[object]] = []
            for name, (bits, factor) in SYSTEMS.items():
                path = Path(place) / name
                with Flat(path, dtype="float16") if bits is None else IVF(path, nbits=bits) as index:
                    fill(index, data, factor)
                    hits = index.search(queries, 100)
                top = [{hit.id for hit in each[:10]} for each in hits]
                exact = exact or top
                run = {
                    query: {str(hit.id): hit.score for hit in each}
                    for query, each in zip(data.collection.queries, hits, strict=True)
                }
                found = evaluate(run, data.collection.qrels, ["nDCG@10"])
                recall = np.mean([len(mine & best) / 10 for mine, best in zip(top, exact, strict=True)])
                size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
                print(
                    f"{data.name} | {name} | nDCG@10 {found['nDCG@10']:.3f} | recall@10 {recall:.3f} | "
                    f"{size / data.documents.num_tokens:.0f} bytes per token | {size / text:.1f} per byte of text"
                )


if __name__ == "__main__":
    main()
