"""Quality, space and search time at a fixed number of vectors per document, by several ways to pool.

    python benchmarks/compression.py path/to/debian --other path/to/scifact [--vectors 8 16 32] [--json results.json]

Both folders are collections in BEIR layout. Documents are encoded once by all-MiniLM-L6-v2 without training, 384
dimensions per token, with the attention that each token receives. Ward's method, attention-guided clustering and Ward's
method weighted by attention need no training. `AttentionPooling` is distilled from the unpooled vectors with the
queries of the first collection's qrels/train.tsv, without relevance judgements and without the test queries; on the
second collection it is measured as it is, and once more after training on that collection's documents and sentences of
them. Search is exact; times are medians for one query. `--cache` keeps the encoded documents for the next run.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _common import make_run, median_ms, parse_options, sample

from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, evaluate, load_beir
from latelier.models import DEFAULT_MODEL, ColBERT, pool_tokens
from latelier.models.pooling import recorded_attention
from latelier.scores import colbert_scores, top_k
from latelier.training import distill_pooling

MEASURES = ["nDCG@10", "Success@1"]
BATCH = 16
TIMED = 20  # queries to time


class Encoded(NamedTuple):
    """A sample of a collection, its encoded documents and queries, and the attention of each document token."""

    name: str
    collection: Collection
    ids: list[str]
    texts: list[str]
    documents: TokenEmbeddings
    attention: np.ndarray
    queries: TokenEmbeddings


def encode_documents(model: ColBERT, texts: list[str]) -> tuple[TokenEmbeddings, np.ndarray]:
    """Return token vectors in float16, and the attention that each token receives in the last layer."""
    vectors: list[Any] = [None] * len(texts)
    attention: list[Any] = [None] * len(texts)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    with torch.inference_mode(), recorded_attention(model) as recorder:
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            features = model.tokenize([texts[i] for i in rows], is_query=False)
            mask = features["attention_mask"].bool()
            found, received = model(features)["token_embeddings"], recorder.received(mask)
            for i, own, weights, used in zip(rows, found, received, mask, strict=True):
                vectors[i], attention[i] = own[used].half(), weights[used].numpy()
    return TokenEmbeddings.from_list(vectors), np.concatenate(attention)


def load(model: ColBERT, folder: Path, documents: int, queries: int, cache: Path | None) -> Encoded:
    collection = load_beir(folder, on_problem="skip")
    ids = sample(collection, documents)
    chosen = sorted(collection.queries)
    random.Random(0).shuffle(chosen)
    chosen = chosen[:queries]
    collection = Collection(
        collection.documents, {q: collection.queries[q] for q in chosen}, {q: collection.qrels[q] for q in chosen}
    )
    texts = collection.texts()
    own = [texts[id_] for id_ in ids]
    file = None if cache is None else cache / f"{folder.name}-{len(ids)}.safetensors"
    if file is not None and file.exists():
        vectors, attention = TokenEmbeddings.load(file), np.load(file.with_suffix(".npy"))
    else:
        vectors, attention = encode_documents(model, own)
        if file is not None:
            cache.mkdir(parents=True, exist_ok=True)
            vectors.save(file)
            np.save(file.with_suffix(".npy"), attention)
    encoded = model.encode_query(list(collection.queries.values()), packed=True)
    return Encoded(folder.name, collection, ids, own, vectors, attention, encoded)


def measure(data: Encoded, pooled: TokenEmbeddings, repeats: int) -> dict[str, Any]:
    """Return the measures of exact search in bfloat16, bytes in float16 and milliseconds per query in float32."""
    scores, places = top_k(data.queries.to("bfloat16"), pooled.to("bfloat16"), k=min(100, len(data.ids)))
    found = evaluate(make_run(data.collection, data.ids, scores, places), data.collection.qrels, MEASURES)
    single = pooled.to("float32")
    queries = [data.queries[i : i + 1] for i in range(min(TIMED, len(data.queries)))]
    timed = median_ms(repeats, {"all": lambda: [colbert_scores(query, single) for query in queries]})["all"]
    bytes_each = 2 * pooled.dim * pooled.num_tokens / len(pooled)
    return {**found, "vectors": pooled.num_tokens / len(pooled), "bytes": bytes_each, "ms": timed / len(queries)}


def distill(queries: TokenEmbeddings, documents: TokenEmbeddings, vectors: int, options: argparse.Namespace) -> ColBERT:
    """Return a model with a trained pooling, and print how long training took."""
    torch.manual_seed(0)
    model = ColBERT.from_dense(DEFAULT_MODEL, device="cpu").compress_documents(vectors)
    begin = time.perf_counter()
    distill_pooling(model, documents, queries, steps=options.steps, batch_size=options.batch)
    print(f"  {options.steps} steps for {vectors} vectors: {time.perf_counter() - begin:.0f} s", flush=True)
    return model


@torch.inference_mode()
def pool(model: ColBERT, documents: TokenEmbeddings) -> TokenEmbeddings:
    """Pool encoded documents by the pooling of a model, in batches of similar length."""
    pooling = model[-2].eval()
    order = np.argsort(documents.lengths, kind="stable")
    parts = []
    for start in range(0, len(order), 64):
        vectors, mask = documents[order[start : start + 64]].to("float32").pad()
        with torch.autocast("cpu", torch.bfloat16):
            out = pooling({"token_embeddings": vectors, "attention_mask": mask}, task="document")
        kept = out["attention_mask"]
        rows = torch.nn.functional.normalize(out["token_embeddings"].float()[kept], dim=-1)
        parts.append(TokenEmbeddings(rows, np.concatenate([[0], kept.sum(dim=1).cumsum(dim=0).numpy()])))
    return TokenEmbeddings.concatenate(parts)[np.argsort(order)]


def sentences(texts: list[str]) -> list[str]:
    """Return a random sentence of each text."""
    rng = random.Random(0)
    return [rng.choice(re.split(r"(?<=[.?!])\s+", text)) for text in texts]


def compare(first: Encoded, other: Encoded | None, queries: TokenEmbeddings, options: argparse.Namespace) -> list[Any]:
    rows: list[Any] = []

    def report(system: str, data: Encoded, pooled: TokenEmbeddings) -> None:
        rows.append({"system": system, "collection": data.name, **measure(data, pooled, options.repeats)})
        print(rows[-1], flush=True)

    collections = [first] if other is None else [first, other]
    for vectors in options.vectors:
        for data in collections:
            for method in ("ward", "attention", "attention-ward"):
                weights = None if method == "ward" else data.attention
                take = partial(pool_tokens, data.documents, num_vectors=vectors, method=method, weights=weights)
                report(method, data, take(protected_tokens=0))
        model = distill(queries, first.documents, vectors, options)
        for data in collections:
            report("AttentionPooling", data, pool(model, data.documents))
        if other is not None:
            own = model.encode_query(sentences(other.texts), packed=True)
            model = distill(own, other.documents, vectors, options)
            report("AttentionPooling, own documents", other, pool(model, other.documents))
    for data in collections:
        report("none", data, data.documents)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path)
    parser.add_argument("--vectors", type=int, nargs="+", default=[8, 16, 32], help="vectors per document")
    parser.add_argument("--documents", type=int, default=12000, help="documents of the sample (default: 12000)")
    parser.add_argument("--other-documents", type=int, default=5183)
    parser.add_argument("--queries", type=int, default=1500, help="test queries (default: 1500)")
    parser.add_argument("--training-queries", type=int, default=6000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--json", type=Path)
    options = parse_options(parser, default=False)
    model = ColBERT.from_dense(DEFAULT_MODEL, device="cpu")
    first = load(model, options.folder, options.documents, options.queries, options.cache)
    other = options.other and load(model, options.other, options.other_documents, options.queries, options.cache)
    training = load_beir(options.folder, "train")
    # Queries about documents that are not in the sample have no near document.
    known = sorted(q for q, judged in training.qrels.items() if not judged.keys().isdisjoint(first.ids))
    chosen = random.Random(0).sample(known, min(options.training_queries, len(known)))
    queries = model.encode_query([training.queries[q] for q in chosen], packed=True, precision="float16")
    for data in (first, other) if other else (first,):
        print(
            f"{data.name}: {len(data.documents):,} documents of {data.documents.lengths.mean():.0f} tokens, "
            f"{len(data.queries)} queries",
            flush=True,
        )
    rows = compare(first, other, queries, options)
    print(f"\n| collection | vectors | pooling | {' | '.join(MEASURES)} | bytes | ms |\n|" + " --- |" * 7)
    for row in sorted(rows, key=lambda row: (row["collection"], row["vectors"], row["nDCG@10"])):
        figures = " | ".join(f"{row[name]:.4f}" for name in MEASURES)
        print(
            f"| {row['collection']} | {row['vectors']:.1f} | {row['system']} | {figures} | {row['bytes']:,.0f} | ",
            end="",
        )
        print(f"{row['ms']:.1f} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
