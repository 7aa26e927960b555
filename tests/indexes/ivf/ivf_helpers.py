"""Collections that resemble text, and what is measured of an index of them."""

from dataclasses import replace

import numpy as np

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf import lists as lists_module

DIM = 32
EARLY = replace(indexes.IVF._thresholds, train_tokens=1000, train_documents=1, small=0, append_tokens=100)


def collection(count, seed=0, topics=60, dim=DIM):
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).standard_normal((topics, dim))
    documents = []
    for _ in range(count):
        own = centers[rng.choice(topics, 4, replace=False)]
        tokens = own[rng.integers(0, 4, rng.integers(5, 30))] + 0.7 * rng.standard_normal(dim)
        tokens = tokens + 0.5 * rng.standard_normal(tokens.shape)
        documents.append((tokens / np.linalg.norm(tokens, axis=1, keepdims=True)).astype("float32"))
    queries = []
    for document in documents[:: max(1, count // 25)]:
        query = document[rng.choice(len(document), 5)] + 0.15 * rng.standard_normal((5, dim)).astype("float32")
        queries.append(query / np.linalg.norm(query, axis=1, keepdims=True))
    return documents, TokenEmbeddings.from_list(queries)


def lists_of(index):
    arrays = index._storage.snapshot().ann_data
    return None if arrays is None else lists_module.InvertedLists.from_arrays(arrays)


def recall(index, queries, k=10, **options):
    names = {name: options.pop(name) for name in ("filter", "parameters") if name in options}
    exact = index.search(queries, k, effort="exact", **names)
    found = index.search(queries, k, **names, **options)
    assert [len(row) for row in found] == [len(row) for row in exact]
    common = [len({hit.id for hit in row} & {hit.id for hit in best}) for row, best in zip(found, exact, strict=True)]
    return sum(common) / max(1, sum(map(len, exact)))


def check_lists(index):
    lists, snapshot = lists_of(index), index._storage.snapshot()
    numbers = np.concatenate([part.segment.row_ids[part.positions] for part in snapshot.parts()])
    assert (np.diff(lists.numbers) > 0).all()
    living = np.flatnonzero(np.isin(lists.numbers, numbers))
    assert np.isin(living, lists.documents).all()
    assert lists.offsets[-1] == len(lists.documents)
    for first, last in zip(lists.offsets[:-1], lists.offsets[1:], strict=True):
        assert (np.diff(lists.documents[first:last]) > 0).all()
