"""Quality, time and space of keywords, vectors and both together, on several test collections.

    python benchmarks/quality.py path/to/scifact path/to/cranfield ... [--figure quality.svg] [--json results.json]

The folders are collections in BEIR's layout. Larger ones than --documents are sampled, judged documents first. The
model is all-MiniLM-L6-v2 without training: its token vectors (384 dimensions, at most 350 tokens of a document) for
late interaction, and their mean, one vector per text, for comparison. Milliseconds are the median of queries searched
one at a time on one thread, without the time of encoding the query. Bytes are those of the index's
folder per document, without the texts. BM25 is the index's own, and bm25s's on the same words.

Vectors, runs and times are kept in --cache, so that a second call measures only what is new; --again measures all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _encodings import Encoded, load_encoded

from latelier.evaluation import Comparison, compare, evaluate
from latelier.indexes import IVF, Flat, Index
from latelier.indexes.words import document_terms, query_terms
from latelier.utils.files import cache_folder

MEASURES = ("nDCG@10", "R@100")
K = 100
CHUNK = 1000  # documents added at once
# The rows of the table.
SYSTEMS = (
    *("BM25", "BM25 (bm25s)", "one vector", "MaxSim float32", "MaxSim 8 bits", "MaxSim 4 bits", "MaxSim 2 bits"),
    *("MaxSim 1 bits", "IVF", "BM25, then MaxSim", "hybrid, scores", "hybrid, ranks"),
)
DEFAULT = ("MaxSim 8 bits", "IVF", "BM25", "BM25 (bm25s)", "BM25, then MaxSim", "hybrid, scores", "hybrid, ranks")
PAIRS = [("IVF", "hybrid, scores"), ("IVF", "hybrid, ranks"), ("BM25", "IVF")]
COLOURS = ("#3f7fbf", "#d9822b", "#4c9f50", "#c05a8e", "#8a6fc0")

TIMED = 30  # queries searched one at a time
BATCH = 64  # of the others

Search = Callable[[range], list[dict[str, float]]]


class System(NamedTuple):
    """A way to search: its name, the scores of the best documents for queries by position, and bytes per document."""

    name: str
    search: Search
    size: float


def index_folder(
    data: Encoded, folder: Path, make: Callable[..., Index], *, texts: bool = False, **options: Any
) -> Index:
    """Return a new index of the documents; `texts` gives it their texts, and so a keyword index."""
    index = make(folder, **options)
    ids = list(data.texts)
    for start in range(0, len(ids), CHUNK):
        chosen = ids[start : start + CHUNK]
        own = [data.texts[id_] for id_ in chosen] if texts else None
        index.add(chosen, data.documents[start : start + CHUNK].to("float32"), own)
    return index


def bytes_per_document(folder: Path, data: Encoded) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / len(data.texts)


def by_vectors(index: Index, data: Encoded, **options: Any) -> Search:
    def search(positions: range) -> list[dict[str, float]]:
        queries = data.queries[positions.start : positions.stop].to("float32")
        return [{hit.id: hit.score for hit in hits} for hits in index.search(queries, K, **options)]

    return search


def by_means(data: Encoded) -> Search:
    ids = list(data.texts)

    def search(positions: range) -> list[dict[str, float]]:
        scores = data.pooled_queries[positions.start : positions.stop] @ data.pooled.T
        best = np.argpartition(-scores, K, axis=1)[:, :K]
        return [{ids[i]: float(row[i]) for i in places} for row, places in zip(scores, best, strict=True)]

    return search


def keyword_bytes(data: Encoded, folder: Path) -> float:
    """Return the bytes per document of the keyword index: what two indexes without and with one differ by."""
    sizes = []
    for keywords in (False, True):
        place = folder.with_name(f"keywords-{keywords}")
        with Flat(place, keywords=keywords) as index:
            index.add(list(data.texts), [np.ones((1, 1), dtype="float32")] * len(data.texts), list(data.texts.values()))
        sizes.append(bytes_per_document(place, data))
    return sizes[1] - sizes[0]


def by_mode(index: Index, data: Encoded, mode: str, **options: Any) -> Search:
    texts = list(data.collection.queries.values())

    def search(positions: range) -> list[dict[str, float]]:
        given: dict[str, Any] = {"texts": texts[positions.start : positions.stop]}
        if mode != "keywords":
            given["queries"] = data.queries[positions.start : positions.stop].to("float32")
        return [{hit.id: hit.score for hit in hits} for hits in index.search(k=K, mode=mode, **given, **options)]

    return search


def by_bm25s(data: Encoded) -> Search:
    """BM25 of the same words with the same formula, up to the factor k1 + 1."""
    import bm25s

    ids = list(data.texts)
    peer = bm25s.BM25(method="robertson", k1=1.2, b=0.75)
    peer.index([document_terms(text, "porter") for text in data.texts.values()], show_progress=False)
    asked = [query_terms(text, "porter") for text in data.collection.queries.values()]
    known = [[term for term in terms for _ in range(terms[term]) if term in peer.vocab_dict] for terms in asked]

    def search(positions: range) -> list[dict[str, float]]:
        found, scores = peer.retrieve([known[position] for position in positions], k=K, show_progress=False)
        return [
            {ids[i]: float(score) for i, score in zip(places, row, strict=True) if score > 0}
            for places, row in zip(found, scores, strict=True)
        ]

    return search


def exact_systems(data: Encoded, folder: Path) -> Iterator[System]:
    yield System("one vector", by_means(data), 4.0 * data.pooled.shape[1])


def flat_systems(data: Encoded, folder: Path) -> Iterator[System]:
    with index_folder(data, folder, Flat) as index:
        yield System("MaxSim float32", by_vectors(index, data), bytes_per_document(folder, data))


def ivf_systems(data: Encoded, folder: Path, nbits: int) -> Iterator[System]:
    with index_folder(data, folder, IVF, nbits=nbits, keywords=False) as index:
        size = bytes_per_document(folder, data)
        yield System(f"MaxSim {nbits} bits", by_vectors(index, data, effort="exact"), size)


def default_systems(data: Encoded, folder: Path) -> Iterator[System]:
    keywords = keyword_bytes(data, folder)
    with index_folder(data, folder, IVF, texts=True) as index:
        own = sum(len(text.encode()) for text in data.texts.values()) / len(data.texts)
        both = bytes_per_document(folder, data) - own
        yield System("MaxSim 8 bits", by_vectors(index, data, effort="exact"), both - keywords)
        yield System("IVF", by_vectors(index, data), both - keywords)
        yield System("BM25", by_mode(index, data, "keywords"), keywords)
        yield System("BM25 (bm25s)", by_bm25s(data), keywords)
        yield System("BM25, then MaxSim", by_mode(index, data, "rerank"), both)
        yield System("hybrid, scores", by_mode(index, data, "hybrid", fusion="relative"), both)
        yield System("hybrid, ranks", by_mode(index, data, "hybrid", fusion="rrf"), both)


# Systems that share an index: their names, and what builds the index in a folder and yields them.
GROUPS: list[tuple[tuple[str, ...], Callable[[Encoded, Path], Iterator[System]]]] = [
    (DEFAULT, default_systems),
    (("one vector",), exact_systems),
    (("MaxSim float32",), flat_systems),
    *(((f"MaxSim {nbits} bits",), partial(ivf_systems, nbits=nbits)) for nbits in (4, 2, 1)),
]


def measure(system: System, data: Encoded) -> dict[str, Any]:
    """Return the run of a system, milliseconds per query (median) and bytes per document."""
    queries = list(data.collection.queries)
    system.search(range(1))
    found, times = [], []
    for position in range(min(TIMED, len(queries))):
        begin = time.perf_counter()
        found += system.search(range(position, position + 1))
        times.append(1e3 * (time.perf_counter() - begin))
    for start in range(len(found), len(queries), BATCH):
        found += system.search(range(start, min(start + BATCH, len(queries))))
    run = dict(zip(queries, found, strict=True))
    return {"run": run, "ms": statistics.median(times), "bytes": system.size}


def measure_collection(data: Encoded, cache: Path, again: bool) -> dict[str, dict[str, Any]]:
    """Return system name to its results; those in the cache are not measured again."""
    place = cache / "runs" / f"{data.name}-{len(data.texts)}-{len(data.collection.queries)}"
    place.mkdir(parents=True, exist_ok=True)
    files = {name: place / f"{name}.json" for name in SYSTEMS}
    for names, build in GROUPS:
        if not again and all(files[name].exists() for name in names):
            continue
        with tempfile.TemporaryDirectory(prefix="latelier-quality-") as folder:
            for system in build(data, Path(folder) / "index"):
                files[system.name].write_text(json.dumps(measure(system, data)), encoding="utf-8")
                print(f"  {data.name}: {system.name}", flush=True)
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}


def summary(results: dict[str, dict[str, Any]], data: Encoded) -> dict[str, dict[str, float]]:
    return {
        name: {
            **evaluate(found["run"], data.collection.qrels, MEASURES),
            "ms": found["ms"],
            "bytes": found["bytes"],
        }
        for name, found in results.items()
    }


def print_table(rows: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print collection to system to figures as one table; the last columns are means over the collections."""
    names = list(rows)
    print(f"\n| nDCG@10 / R@100 | {' | '.join(names)} | mean | ms | bytes |\n|" + " --- |" * (len(names) + 4))
    for system in next(iter(rows.values())):
        found = [rows[name][system] for name in names]
        means = {key: statistics.mean(each[key] for each in found) for key in (*MEASURES, "ms", "bytes")}
        cells = [f"{each['nDCG@10']:.3f} / {each['R@100']:.3f}" for each in (*found, means)]
        print(f"| {system} | {' | '.join(cells)} | {means['ms']:.1f} | {means['bytes']:,.0f} |")


def draw(rows: dict[str, dict[str, dict[str, float]]], target: Path) -> None:
    """Draw nDCG@10 of each system on each collection, and its mean over the bytes per document."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    grey = "#808080"  # readable on white and on black
    plt.rcParams.update({"svg.hashsalt": "latelier", "svg.fonttype": "none", "font.size": 9})
    plt.rcParams.update(dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color"), grey))
    plt.rcParams["ytick.color"] = grey
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    systems = list(next(iter(rows.values())))
    places = range(len(systems))
    for (name, found), colour in zip(rows.items(), COLOURS * len(rows), strict=False):
        axes.plot([found[system]["nDCG@10"] for system in systems], places, "o", color=colour, markersize=5, label=name)
    means = [statistics.mean(found[system]["nDCG@10"] for found in rows.values()) for system in systems]
    axes.plot(means, places, "|", color=grey, markersize=16, markeredgewidth=2.5, label="mean")
    axes.set(yticks=places, yticklabels=systems, xlabel="nDCG@10")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=len(rows) + 1, frameon=False)
    figure.savefig(target, metadata={"Date": None}, transparent=True)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--split", default="test")
    parser.add_argument("--documents", type=int, default=12_000, help="documents of a sample (default: 12000)")
    parser.add_argument("--queries", type=int, default=300, help="queries of a sample (default: 300)")
    parser.add_argument("--cache", type=Path, default=cache_folder() / "quality")
    parser.add_argument("--again", action="store_true", help="measure the systems again; vectors are kept")
    parser.add_argument("--figure", type=Path, help="draw the table into this file (.svg)")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    if not options.folders:
        print("skipped: give folders in BEIR layout", file=sys.stderr)
        return
    torch.set_num_threads(1)
    rows, comparisons = {}, {}
    for folder in options.folders:
        data = load_encoded(folder, options.split, options.documents, options.queries, options.cache)
        sampled = f"a sample of {data.total:,}" if len(data.texts) < data.total else "all"
        print(
            f"{data.name}: {len(data.texts):,} documents ({sampled}) of {data.documents.lengths.mean():.0f} tokens, "
            f"{len(data.queries):,} queries of {data.queries.lengths.mean():.0f}",
            flush=True,
        )
        results = measure_collection(data, options.cache, options.again)
        rows[data.name] = summary(results, data)
        comparisons[data.name] = significance(results, data)
    print_table(rows)
    for name, compared in comparisons.items():
        for comparison in compared:
            print(f"\n{name}\n{comparison}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if options.figure:
        draw(rows, options.figure)


def significance(results: dict[str, dict[str, Any]], data: Encoded) -> list[Comparison]:
    """Compare each system of `PAIRS` with the one before it."""
    return [
        compare(results[a]["run"], results[b]["run"], data.collection.qrels, MEASURES, names=(a, b)) for a, b in PAIRS
    ]


if __name__ == "__main__":
    main()
