"""Ranking of late interaction without training, compared with the pooled vector of the same encoder.

    python benchmarks/untrained.py path/to/scifact [--split test] [--documents 300] [--json results.json]

The folder is a collection in BEIR layout (corpus.jsonl, queries.jsonl, qrels/test.tsv). Every system searches
all documents exactly. The encoder is all-MiniLM-L6-v2.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from _common import make_run, parse_options
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize

from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, evaluate, load_beir
from latelier.models import DEFAULT_MODEL, ColBERT, Recipe
from latelier.models.location import resolve_name
from latelier.scores import colbert_scores

MEASURES = ("nDCG@10", "R@100", "Success@1")


def pooled(documents: list[str], queries: list[str], length: int) -> torch.Tensor:
    model = SentenceTransformer(resolve_name(DEFAULT_MODEL), device="cpu")
    model.max_seq_length = length
    document_vectors = model.encode(documents, convert_to_tensor=True, normalize_embeddings=True)
    return model.encode(queries, convert_to_tensor=True, normalize_embeddings=True) @ document_vectors.T


def encode(model: ColBERT, documents: list[str], queries: list[str]) -> tuple[TokenEmbeddings, TokenEmbeddings]:
    return model.encode_query(queries, packed=True), model.encode_document(documents, packed=True)


def project(model: ColBERT, embeddings: TokenEmbeddings) -> TokenEmbeddings:
    """Apply a model's head to the normalised token vectors of its encoder; equals `model.encode`, without the encoder.

    The head is linear and its output is normalised, so it does not matter that the inputs are normalised, too.
    """
    with torch.no_grad():
        return TokenEmbeddings(normalize(model[1].linear(embeddings.vectors), dim=1), embeddings.offsets)


def systems(documents: list[str], queries: list[str], length: int) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    options = {"device": "cpu", "max_length_document": length}

    def untrained() -> torch.Tensor:
        vectors.extend(encode(ColBERT.from_dense(DEFAULT_MODEL, **options), documents, queries))
        return colbert_scores(*vectors)

    def projected(projection: str) -> torch.Tensor:
        model = ColBERT.from_dense(DEFAULT_MODEL, projection, 128, **options)
        if projection == "pca":
            model.fit_projection(documents[:1000])
        return colbert_scores(*(project(model, side) for side in vectors))

    def recipe() -> torch.Tensor:
        expanded.extend(encode(ColBERT(DEFAULT_MODEL, **options), documents, queries))
        return colbert_scores(*expanded)

    def attending() -> torch.Tensor:
        model = ColBERT(DEFAULT_MODEL, recipe=Recipe(attend_to_expansion=True), **options)
        return colbert_scores(model.encode_query(queries, packed=True), expanded[1])

    vectors: list[TokenEmbeddings] = []
    expanded: list[TokenEmbeddings] = []
    yield "pooled vector", lambda: pooled(documents, queries, length)
    yield "from_dense, 384 dims", untrained
    yield "from_dense, orthogonal 128", lambda: projected("orthogonal")
    yield "from_dense, PCA 128", lambda: projected("pca")
    yield "fresh ColBERT(...), not trained", recipe
    yield "the same, attending to [MASK]", attending


def measure(collection: Collection, length: int) -> list[dict[str, float | str]]:
    ids, documents = zip(*collection.texts().items(), strict=True)
    rows = []
    for name, compute in systems(list(documents), list(collection.queries.values()), length):
        begin = time.perf_counter()
        best = compute().topk(min(100, len(ids)), dim=1)
        run = make_run(collection, ids, best.values, best.indices)
        seconds = time.perf_counter() - begin
        row = {"system": name, **evaluate(run, collection.qrels, MEASURES), "seconds": round(seconds, 1)}
        print("  ".join(f"{v:7.4f}" if isinstance(v, float) else f"{v:32}" for v in row.values()), flush=True)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="test")
    parser.add_argument("--documents", type=int, default=300, help="maximum document length in tokens")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parse_options(parser)
    collection = load_beir(options.folder, options.split, on_problem="skip")
    print(collection)
    print("  ".join([f"{'system':32}", *MEASURES, "seconds"]))
    rows = measure(collection, options.documents)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
