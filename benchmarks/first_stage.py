"""Candidates by one vector per document, then MaxSim: recall and nDCG@10 by the number of candidates.

    python benchmarks/first_stage.py path/to/scifact path/to/debian [--figure first_stage.svg] [--json results.json]

The folders are collections in BEIR's layout; larger ones than --documents are sampled, judged documents first. The
model is all-MiniLM-L6-v2 without training (384 dimensions). The first stage takes the documents with the largest inner
products with the query's vector, compared with every document, and MaxSim orders them. Recall@10 is the share of the
ten best documents by MaxSim of all that are among the candidates. Below is the same for `IVF` with its defaults, which
reads token vectors from the start.

Milliseconds are medians of queries one at a time: making a query's vector and comparing it with all documents, without
the time of the encoder; and MaxSim of the candidates. Documents per second are those whose token vectors become one
vector. Both are CPU time, which other work on the machine changes little; set OMP_NUM_THREADS=1. The token vectors and
the exact scores are kept in --cache, shared with `quality.py`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import MEASURE
from _encodings import Encoded, load_encoded

from latelier.evaluation import evaluate
from latelier.indexes import IVF, FixedDimensionalEncodings, MeanVectors, SingleVectors
from latelier.scores import colbert_scores
from latelier.utils.files import cache_folder

CANDIDATES = (10, 20, 50, 100, 200, 500, 1000)
K = 10
CHUNK = 1000  # documents scored or added at once
TIMED = 30  # queries timed one at a time
# The first three encodings have the parameters that the paper found best for vectors of 128 dimensions.
SYSTEMS: tuple[SingleVectors, ...] = (
    MeanVectors(),
    *(FixedDimensionalEncodings(k_sim=k, d_proj=d) for k, d in ((3, 8), (5, 8), (5, 16), (2, 16), (2, 64), (3, 64))),
    FixedDimensionalEncodings(k_sim=3, d_proj=64, d_final=2560),
)
COLOURS = ("#3f7fbf", "#d9822b", "#4c9f50", "#c05a8e", "#8a6fc0")


def label(system: SingleVectors) -> str:
    if not isinstance(system, FixedDimensionalEncodings):
        return "mean vector"
    sketch = f", d_final {system.d_final:,}" if system.d_final else ""
    return f"FDE, k_sim {system.k_sim}, d_proj {system.d_proj}{sketch}"


def exact_scores(data: Encoded, cache: Path) -> np.ndarray:
    """Return MaxSim of all queries and documents, from the cache if it is there."""
    place = cache / f"{data.name}-{len(data.texts)}-{len(data.queries)}-maxsim.npy"
    if not place.exists():
        starts = range(0, len(data.documents), CHUNK)
        queries = data.queries.to("float32")
        np.save(
            place,
            np.concatenate(
                [colbert_scores(queries, data.documents[start : start + CHUNK]).numpy() for start in starts], axis=1
            ),
        )
    return np.load(place)


def largest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the largest numbers of each row, largest first."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def ndcg(data: Encoded, exact: np.ndarray, found: np.ndarray) -> float:
    """Return nDCG@10 of documents ``(queries, candidates)`` that MaxSim orders."""
    ids = list(data.texts)
    rows = zip(data.collection.queries, found, exact, strict=True)
    run = {query: {ids[place]: float(scores[place]) for place in places} for query, places, scores in rows}
    return float(evaluate(run, data.collection.qrels, [MEASURE])[MEASURE])


def by_candidates(data: Encoded, exact: np.ndarray, found: np.ndarray) -> dict[str, list[float]]:
    """Return recall@10 and nDCG@10 of the first candidates, for each number of `CANDIDATES`."""
    best = largest(exact, K)
    recall = [
        statistics.mean(np.isin(own, row[:count]).mean() for own, row in zip(best, found, strict=True))
        for count in CANDIDATES
    ]
    return {"recall": recall, "ndcg": [ndcg(data, exact, found[:, :count]) for count in CANDIDATES]}


def measure(system: SingleVectors, data: Encoded, exact: np.ndarray) -> dict[str, Any]:
    system.encode_documents(data.documents[:10])  # draws the random matrices
    begin = time.process_time()
    documents = system.encode_documents(data.documents)
    rate = len(documents) / (time.process_time() - begin)
    times = []
    for query in range(min(TIMED, len(data.queries))):
        begin = time.process_time()
        scores = documents @ system.encode_queries(data.queries[query : query + 1])[0]
        np.argpartition(-scores, CANDIDATES[-1])
        times.append(1e3 * (time.process_time() - begin))
    found = largest(system.encode_queries(data.queries) @ documents.T, CANDIDATES[-1])
    return {
        **by_candidates(data, exact, found),
        "size": documents.shape[1],
        "bytes": documents.itemsize * documents.shape[1],
        "ms": statistics.median(times),
        "documents_per_second": rate,
    }


def measure_index(data: Encoded, exact: np.ndarray) -> dict[str, Any]:
    """Return the figures of `IVF` with its defaults."""
    ids = list(data.texts)
    with tempfile.TemporaryDirectory(prefix="latelier-first-stage-") as folder, IVF(folder, keywords=False) as index:
        for start in range(0, len(ids), CHUNK):
            index.add(range(start, min(start + CHUNK, len(ids))), data.documents[start : start + CHUNK].to("float32"))
        hits = index.search(data.queries.to("float32"), K)
        found = np.array([[hit.id for hit in row] for row in hits])
        times = []
        for query in range(min(TIMED, len(data.queries))):
            begin = time.process_time()
            index.search(data.queries[query : query + 1].to("float32"), K)
            times.append(1e3 * (time.process_time() - begin))
        size = index.statistics().bytes / len(ids)
    recall = statistics.mean(np.isin(own, row).mean() for own, row in zip(largest(exact, K), found, strict=True))
    return {"recall": recall, "ndcg": ndcg(data, exact, found), "bytes": size, "ms": statistics.median(times)}


def rerank_times(data: Encoded, exact: np.ndarray) -> list[float]:
    """Return the milliseconds of MaxSim of a query with each number of candidates, their copying included."""
    found = largest(exact, CANDIDATES[-1])
    medians = []
    for count in CANDIDATES:
        times = []
        for query in range(min(TIMED, len(data.queries))):
            begin = time.process_time()
            colbert_scores(data.queries[query : query + 1], data.documents[found[query, :count]])
            times.append(1e3 * (time.process_time() - begin))
        medians.append(statistics.median(times))
    return medians


def print_table(data: Encoded, results: dict[str, dict[str, Any]], index: dict[str, Any], rerank: list[float]) -> None:
    counts = " | ".join(f"{count:,}" for count in CANDIDATES)
    print(f"\n### {data.name}: recall@10 / {MEASURE} by number of candidates\n")
    print(f"| vectors | dim | {counts} | bytes | ms | documents/s |\n|" + " --- |" * (len(CANDIDATES) + 5))
    for name, own in results.items():
        pairs = zip(own["recall"], own["ndcg"], strict=True)
        cells = " | ".join(f"{recall:.3f} / {ndcg:.3f}" for recall, ndcg in pairs)
        print(
            f"| {name} | {own['size']:,} | {cells} | {own['bytes']:,} | {own['ms']:.1f} "
            f"| {own['documents_per_second']:,.0f} |"
        )
    print(f"| ms of MaxSim | | {' | '.join(f'{ms:.1f}' for ms in rerank)} | | | |")
    print(
        f"\nIVF, default: recall@10 {index['recall']:.3f}, {MEASURE} {index['ndcg']:.3f}, {index['bytes']:,.0f} bytes "
        f"per document, {index['ms']:.1f} ms. All documents: {MEASURE} {index['exact']:.3f}.",
        flush=True,
    )


def draw(rows: dict[str, Any], target: Path) -> None:
    """Draw recall@10 over the number of candidates, one panel per collection."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    grey = "#808080"  # readable on white and on black
    plt.rcParams.update({"svg.hashsalt": "latelier", "svg.fonttype": "none", "font.size": 9})
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    plt.rcParams.update(dict.fromkeys(names, grey))
    figure, panels = plt.subplots(1, len(rows), figsize=(8, 3.4), sharey=True, layout="constrained", squeeze=False)
    shown = [label(system) for system in SYSTEMS if not getattr(system, "d_final", None)]
    for panel, (name, row) in zip(panels[0], rows.items(), strict=True):
        colours = (COLOURS * len(shown))[: len(shown)]
        styles = ["-"] * len(COLOURS) + ["--"] * len(shown)
        for system, colour, style in zip(shown, colours, styles, strict=False):
            own = row["results"][system]
            text = f"{system} ({own['size']:,})"
            panel.plot(CANDIDATES, own["recall"], style, marker="o", markersize=3, color=colour, label=text)
        panel.axhline(row["index"]["recall"], color=grey, linestyle=":", label="IVF, default")
        panel.set(xscale="log", xticks=CANDIDATES, xlabel="candidates", title=name)
        panel.set_xticklabels([str(count) for count in CANDIDATES])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("recall@10")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(target, metadata={"Date": None}, transparent=True)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--split", default="test")
    parser.add_argument("--documents", type=int, default=12_000, help="documents of a sample (default: 12000)")
    parser.add_argument("--queries", type=int, default=300, help="queries of a sample (default: 300)")
    parser.add_argument("--cache", type=Path, default=cache_folder() / "quality")
    parser.add_argument("--figure", type=Path, help="draw recall by number of candidates into this file (.svg)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    if not options.folders:
        print("skipped: give folders in BEIR layout", file=sys.stderr)
        return
    torch.set_num_threads(1)
    rows = {}
    for folder in options.folders:
        data = load_encoded(folder, options.split, options.documents, options.queries, options.cache)
        exact = exact_scores(data, options.cache)
        index = measure_index(data, exact)
        index["exact"] = ndcg(data, exact, largest(exact, K))
        rerank = rerank_times(data, exact)
        results = {label(system): measure(system, data, exact) for system in SYSTEMS}
        print_table(data, results, index, rerank)
        rows[data.name] = {"results": results, "index": index, "rerank_ms": rerank}
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
