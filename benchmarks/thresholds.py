"""What a threshold that `Retriever.estimate_threshold` has estimated from the documents alone does to judged queries.

    python benchmarks/thresholds.py path/to/scifact path/to/debian [--documents 2500] [--json results.json]
    python benchmarks/thresholds.py --weak path/to/cranfield path/to/cisi path/to/vaswani

The folders are collections in BEIR's layout; larger ones than --documents are sampled, judged documents first. The
model is all-MiniLM-L6-v2 without training. "found" is the share of the queries that find a document at the threshold
although their relevant documents are left out, so that nothing answers them: what `share` asks for. "precision" is the
share of relevant documents among the ten best that reach the threshold, and "recall" the share of the relevant
documents among the ten best that do; without a threshold, recall is 1.

With --weak: the share of 60 questions of each collection of which all ten results are weak (`Retriever.learn_weak`), in
its own documents, where it should be 0, and in those of the others, where it should be 1; by vectors and by keywords.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Literal

import numpy as np

from latelier.evaluation import load_beir
from latelier.retrieve import Retriever

SHARES = (0.05, 0.1, 0.2, 0.5)
ASKED = 60  # questions of a collection, with --weak
DEEP, K = 50, 10  # hits read, so that one of them is not relevant; hits that a user sees


def measure(folder: Path, documents: int, queries: int) -> list[dict[str, float | str]]:
    """Return a row for each share, and one without a threshold."""
    collection = load_beir(folder, split="test")
    asked = list(collection.qrels)[:queries]
    relevant = {query: {id for id, grade in collection.qrels[query].items() if grade > 0} for query in asked}
    judged = set().union(*relevant.values())
    others = [id for id in collection.documents if id not in judged]
    chosen = np.random.default_rng(0).permutation(len(others))[: max(0, documents - len(judged))]
    kept = [*(id for id in collection.documents if id in judged), *(others[i] for i in sorted(chosen))]
    retriever = Retriever("all-MiniLM-L6-v2", device="cpu")
    retriever.add([{"id": id, **collection.documents[id]} for id in kept])
    found = retriever.search([collection.queries[query] for query in asked], k=DEEP, mode="vectors", min_mean_score=-1)
    pairs = [
        [(hit.id in relevant[query], hit.mean_score) for hit in hits] for query, hits in zip(asked, found, strict=True)
    ]
    best_wrong = np.array([next((mean for is_right, mean in row if not is_right), 0.0) for row in pairs])
    seen = [pair for row in pairs for pair in row[:K]]
    right = [mean for is_right, mean in seen if is_right]
    rows: list[dict[str, float | str]] = [
        {"collection": folder.name, "documents": len(kept), "precision": len(right) / len(seen), "recall": 1.0}
    ]
    for share in SHARES:
        threshold = retriever.estimate_threshold(share)
        at = threshold.min_mean_score
        staying = [is_right for is_right, mean in seen if mean >= at]
        rows.append(
            {
                "collection": folder.name,
                "share": share,
                "threshold": at,
                "low": threshold.low,
                "high": threshold.high,
                "found": float((best_wrong >= at).mean()),
                "precision": sum(staying) / max(1, len(staying)),
                "recall": sum(staying) / len(right),
            }
        )
    return rows


def share_of_weak(retriever: Retriever, questions: list[str], mode: Literal["vectors", "keywords"]) -> float:
    """Return the share of questions of which all results are weak."""
    spread = np.linspace(0, len(questions) - 1, min(ASKED, len(questions))).astype(int)
    found = retriever.search([questions[i] for i in spread], k=K, mode=mode)
    return float(np.mean([all(result.weak for result in results) for results in found]))


def measure_weak(folders: list[Path]) -> list[dict[str, float | str]]:
    """Return for each collection and mode its bar, and the shares of weak questions of all collections."""
    collections = {folder.name: load_beir(folder, split="test") for folder in folders}
    questions = {name: [own.queries[query] for query in own.qrels] for name, own in collections.items()}
    rows: list[dict[str, float | str]] = []
    for name, collection in collections.items():
        retriever = Retriever("all-MiniLM-L6-v2", device="cpu")
        retriever.add({"id": id, **document} for id, document in collection.documents.items())
        bars = retriever.learn_weak()
        for mode, bar in (("vectors", bars.vectors), ("keywords", bars.words)):
            row: dict[str, float | str] = {"collection": name, "mode": mode, "bar": str(bar)}
            row |= {other: share_of_weak(retriever, asked, mode) for other, asked in questions.items()}
            rows.append(row)
            print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", type=Path)
    parser.add_argument("--documents", type=int, default=2500)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--weak", action="store_true")
    options = parser.parse_args()
    results = measure_weak(options.collections) if options.weak else []
    for folder in () if options.weak else options.collections:
        rows = measure(folder, options.documents, options.queries)
        results += rows
        print("| collection | share | threshold | found | precision | recall |\n| --- | --- | --- | --- | --- | --- |")
        for row in rows:
            first = [row["collection"], *(f"{row[name]:.2f}" if name in row else "" for name in ("share",))]
            at = f"{row['threshold']:.3f} ({row['low']:.3f} to {row['high']:.3f})" if "threshold" in row else "none"
            figures = [f"{row[name]:.3f}" if name in row else "" for name in ("found", "precision", "recall")]
            print(f"| {' | '.join(map(str, [*first, at, *figures]))} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
