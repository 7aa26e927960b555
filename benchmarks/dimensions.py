"""What fewer dimensions cost and save: bytes, milliseconds and ranking, by principal components or a random rotation.

    python benchmarks/dimensions.py path/to/scifact [--dims 256 192 128] [--documents 12000] [--queries 500]
        [--fitted 1000] [--embeddings folder] [--exact] [--json results.json]

The folder is a collection in BEIR layout (corpus.jsonl, queries.jsonl, qrels/test.tsv). Its documents, or a sample of
them which includes all judged ones, are encoded once by all-MiniLM-L6-v2 without training, in half precision; with
--embeddings they are kept in that folder for the next run. PCA is fitted on the first --fitted documents, as for an
index that is filled in order. Ranking is that of exact scores, and of `IVF` with 8 bits and default parameters, whose
searches are timed one query at a time: the processor time of one thread, which other work on the machine changes
little. All kernels are compiled before. --exact leaves `IVF` out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import MEASURE, make_run, parse_options, sample
from index import warm_up
from torch.nn.functional import normalize

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, evaluate, load_beir
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.models.construction import orthogonal_weight, principal_directions
from latelier.scores import colbert_scores

K = 10
CHUNK = 500  # documents that are projected and scored at a time
COLUMNS = {"kept": 3, "B/token": 0, "build s": 1, "ms": 2, "exact": 4, "IVF": 4}


def encode(
    collection: Collection, ids: list[str], name: str, folder: Path | None
) -> tuple[TokenEmbeddings, TokenEmbeddings]:
    """Return queries and documents in half precision, read from files in the folder if they are there."""
    texts, found = collection.texts(), []
    model: ColBERT | None = None
    for kind, asked in (("queries", list(collection.queries.values())), ("documents", [texts[id_] for id_ in ids])):
        path = folder and folder / f"{name}-{kind}.safetensors"
        if path and path.exists():
            embeddings = TokenEmbeddings.load(path)
            if len(embeddings) != len(asked):
                raise SystemExit(f"{path} holds {len(embeddings)} texts, not {len(asked)}; name another folder.")
        else:
            model = model or ColBERT.from_dense(DEFAULT_MODEL)
            method = model.encode_query if kind == "queries" else model.encode_document
            embeddings = method(asked, packed=True).to("float16").to("cpu")
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                embeddings.save(path)
        found.append(embeddings.to("torch"))
    return found[0], found[1]


def projections(documents: TokenEmbeddings, dims: list[int], fitted: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name of each system and its projection, ``(dim, native dim)``."""
    yield f"{documents.dim} (native)", torch.eye(documents.dim)
    sampled = normalize(documents[:fitted].vectors.double(), dim=1)
    directions = principal_directions(sampled.T @ sampled, documents.dim).float()
    for dim in dims:
        yield f"{dim} (PCA)", directions[:dim]
        yield f"{dim} (random)", orthogonal_weight(dim, documents.dim)


def project(embeddings: TokenEmbeddings, weight: torch.Tensor) -> tuple[TokenEmbeddings, float]:
    """Return the projected unit vectors, and the mean squared length that the projection keeps."""
    vectors = normalize(embeddings.vectors.float(), dim=1) @ weight.T
    return TokenEmbeddings(normalize(vectors, dim=1), embeddings.offsets), float(vectors.square().sum(1).mean())


def ndcg(collection: Collection, ids: list[str], scores: torch.Tensor, places: torch.Tensor) -> float:
    return float(evaluate(make_run(collection, ids, scores, places), collection.qrels, [MEASURE])[MEASURE])


def measure_exact(
    collection: Collection, ids: list[str], queries: TokenEmbeddings, documents: TokenEmbeddings, weight: torch.Tensor
) -> dict[str, float]:
    asked, parts, kept = project(queries, weight)[0], [], []
    for first in range(0, len(documents), CHUNK):
        part, share = project(documents[first : first + CHUNK], weight)
        parts.append(colbert_scores(asked, part))
        kept.append(share)
    best = torch.cat(parts, dim=1).topk(min(100, len(ids)), dim=1)
    return {"kept": statistics.mean(kept), "exact": ndcg(collection, ids, best.values, best.indices)}


def measure_index(
    collection: Collection, ids: list[str], queries: TokenEmbeddings, documents: TokenEmbeddings, weight: torch.Tensor
) -> dict[str, float]:
    asked, folder = project(queries, weight)[0].to("numpy"), Path(tempfile.mkdtemp(prefix="latelier-bench-"))
    parts = (project(documents[i : i + CHUNK], weight)[0].to("numpy") for i in range(0, len(documents), CHUNK))
    try:
        with indexes.IVF(folder / "index") as index:
            begin = time.perf_counter()
            index.add(range(len(documents)), parts)
            seconds = time.perf_counter() - begin
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            times, found = [], []
            for i in [*range(min(5, len(asked))), *range(len(asked))]:
                begin = time.thread_time()
                [hits] = index.search(asked[i : i + 1], K)
                times.append(1e3 * (time.thread_time() - begin))
                found.append(hits)
            found, times = found[-len(asked) :], times[-len(asked) :]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    places, scores = (torch.tensor(np.array([[hit[n] for hit in hits] for hits in found])) for n in range(2))
    return {
        "B/token": size / documents.num_tokens,
        "build s": seconds,
        "ms": statistics.median(times),
        "IVF": ndcg(collection, ids, scores, places),
    }


def measure(collection: Collection, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    ids = sample(collection, options.documents) if options.documents else list(collection.texts())
    name = options.folder.resolve().name
    queries, documents = encode(collection, ids, name, options.embeddings)
    if options.queries < len(queries):
        asked = list(collection.queries)[: options.queries]
        qrels = {query: collection.qrels[query] for query in asked}
        texts = {query: collection.queries[query] for query in asked}
        collection = Collection(collection.documents, texts, qrels)
        queries = queries[: options.queries]
    print(
        f"{name}: {len(documents):,} documents of {documents.lengths.mean():.0f} tokens, "
        f"{len(queries):,} queries of {queries.lengths.mean():.0f}; {MEASURE} of exact scores and of IVF"
    )
    for dims, weight in projections(documents, options.dims, options.fitted):
        row = measure_exact(collection, ids, queries, documents, weight)
        if not options.exact:
            row |= measure_index(collection, ids, queries, documents, weight)
        yield {"collection": name, "dims": dims, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="test")
    parser.add_argument("--dims", type=int, nargs="*", default=[256, 192, 128])
    parser.add_argument("--documents", type=int, help="sample this many documents")
    parser.add_argument("--queries", type=int, default=1 << 30, help="only the first of this many queries")
    parser.add_argument("--fitted", type=int, default=1000, help="number of documents that PCA is fitted on")
    parser.add_argument("--embeddings", type=Path, help="folder in which embeddings are kept")
    parser.add_argument("--exact", action="store_true", help="only exact scores, without the index")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parse_options(parser)
    torch.set_num_threads(1)
    rows = []
    collection = load_beir(options.folder, options.split, on_problem="skip")
    if not options.exact:
        warm_up()
    for number, row in enumerate(measure(collection, options)):
        if number == 0:
            print(f"{'dims':14}" + "".join(f"{name:>10}" for name in COLUMNS))
        cells = [f"{row[name]:10.{digits}f}" if name in row else f"{'':10}" for name, digits in COLUMNS.items()]
        print(f"{row['dims']:14}" + "".join(cells), flush=True)
        rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
