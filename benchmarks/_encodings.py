"""Encoded collections for `quality.py`: token vectors and mean-pooled vectors of one pass, cached on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from _common import sample
from torch.nn.functional import normalize

from latelier.embeddings import TokenEmbeddings
from latelier.evaluation import Collection, load_beir
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.models.engines import inference, prefers_bfloat16
from latelier.utils import batch_by_tokens
from latelier.utils.batching import select_rows, used_positions

__all__ = ["Encoded", "load_encoded"]

_BATCH_TOKENS = 2048
_CHUNK = 1000  # texts tokenised at once


class Encoded(NamedTuple):
    """A collection, or a sample of one, and its vectors.

    `total` is the number of documents of the whole collection, `texts` the id and text of each document encoded,
    `documents` and `queries` their token vectors in float16, `pooled` and `pooled_queries` the normalised mean of each
    text's token vectors in float32, `(texts, dim)`.
    """

    name: str
    total: int
    texts: dict[str, str]
    collection: Collection
    documents: TokenEmbeddings
    queries: TokenEmbeddings
    pooled: np.ndarray
    pooled_queries: np.ndarray


def load_encoded(folder: Path, split: str, documents: int, queries: int, cache: Path) -> Encoded:
    """Return a collection and its vectors, from the cache if they are there.

    At most `documents` documents are taken, judged ones first, and at most `queries` queries.
    """
    collection = load_beir(folder, split, on_problem="skip")
    texts = collection.texts()
    total, name = len(texts), folder.resolve().name
    if total > documents:
        texts = {id_: texts[id_] for id_ in sample(collection, documents)}
    place = cache / f"{name}-{split}-{len(texts)}"
    if not (place / "done.json").exists():
        place.mkdir(parents=True, exist_ok=True)
        model = ColBERT.from_dense(DEFAULT_MODEL, device="cpu")
        for side, own in (("document", texts), ("query", collection.queries)):
            vectors, means = _encode(model, list(own.values()), side)
            vectors.save(place / f"{side}.safetensors")
            np.save(place / f"{side}.npy", means)
        (place / "done.json").write_text(json.dumps({"model": DEFAULT_MODEL, "texts": len(texts)}), encoding="utf-8")
    (documents_, queries_), (pooled, pooled_queries) = (
        [load(place / f"{side}{end}") for side in ("document", "query")]
        for load, end in ((TokenEmbeddings.load, ".safetensors"), (np.load, ".npy"))
    )
    ids = list(collection.queries)
    chosen = np.sort(np.random.default_rng(0).permutation(len(ids))[:queries])
    kept = {ids[i]: collection.queries[ids[i]] for i in chosen}
    collection = Collection(collection.documents, kept, {query: collection.qrels[query] for query in kept})
    return Encoded(name, total, texts, collection, documents_, queries_[chosen], pooled, pooled_queries[chosen])


def _encode(model: ColBERT, texts: list[str], side: str) -> tuple[TokenEmbeddings, np.ndarray]:
    """Return the token vectors of texts in float16, and the normalised mean of each text's vectors."""
    parts, pooled = [], []
    model.eval()
    for start in range(0, len(texts), _CHUNK):
        features = model.tokenize(texts[start : start + _CHUNK], is_query=side == "query")
        used = used_positions(features)
        lengths = used.sum(dim=1)
        rows: list[torch.Tensor | None] = [None] * len(lengths)
        means: list[torch.Tensor | None] = [None] * len(lengths)
        dtype = "bfloat16" if prefers_bfloat16(int(lengths.sum()), model.device, model.dtype) else None
        with inference(model.device, dtype):
            for chosen in batch_by_tokens(lengths.numpy(), _BATCH_TOKENS):
                batch = select_rows(features, used, chosen)
                encoded = model[0](batch)
                mask = batch["attention_mask"].bool()
                for row, vectors, own in zip(chosen, encoded["token_embeddings"].float(), mask, strict=True):
                    rows[row] = normalize(vectors[own], dim=-1).half()
                    means[row] = normalize(vectors[own].mean(dim=0), dim=-1)
        parts.append(TokenEmbeddings.from_list(rows))
        pooled += means
        print(f"  {start + len(lengths):,} of {len(texts):,} {side} texts", flush=True)
    return TokenEmbeddings.concatenate(parts), torch.stack(pooled).numpy()
