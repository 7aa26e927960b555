"""Keywords of `indexes.Qdrant` and `indexes.Flat`: nDCG@10 of each, and how many of the ten best documents they share.

    python benchmarks/qdrant_keywords.py path/to/scifact [--queries 100]

The folder is a collection in BEIR's layout. The average length of texts, which Qdrant's sparse vectors are made with,
is that of the first 100 documents, as in a collection that grows. Qdrant's local mode takes a second per query.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from _common import MEASURE

from latelier.evaluation import evaluate, load_beir
from latelier.indexes import Flat, Qdrant

K = 10
FIRST = 100  # documents of the first write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    parser.add_argument("--split", default="test")
    parser.add_argument("--queries", type=int, default=100)
    options = parser.parse_args()
    if options.folder is None:
        print("skipped: give a folder in BEIR layout", file=sys.stderr)
        return
    collection = load_beir(options.folder, options.split, on_problem="skip")
    texts = collection.texts()
    queries = dict(list(collection.queries.items())[: options.queries])
    qrels = {query: collection.qrels[query] for query in queries}
    ids, vectors = list(texts), [np.ones((1, 2), dtype="float32")] * len(texts)
    found = []
    for index in (Flat(), Qdrant()):
        for part in (slice(0, FIRST), slice(FIRST, None)):
            index.add(ids[part], vectors[part], list(texts.values())[part])
        hits = index.search(mode="keywords", texts=list(queries.values()), k=K)
        found.append(hits)
        run = {query: {str(hit.id): hit.score for hit in best} for query, best in zip(queries, hits, strict=True)}
        print(f"{type(index).__name__}: {MEASURE} {evaluate(run, qrels, [MEASURE])[MEASURE]:.3f}")
    pairs = list(zip(*found, strict=True))
    shared = np.mean([len({hit.id for hit in ours} & {hit.id for hit in theirs}) for ours, theirs in pairs])
    first = np.mean([ours[:1] and ours[0].id == theirs[0].id for ours, theirs in pairs])
    print(f"of the {K} best documents they share {shared:.1f}; the first is the same for {first:.0%} of the queries")


if __name__ == "__main__":
    main()
