"""Compilation of all kernels of an index before their first use, into the disk cache that later processes read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import Codec, DocumentTable
from latelier.indexes.ivf.lists import append_documents, build_lists
from latelier.indexes.ivf.parameters import SearchParameters
from latelier.indexes.ivf.search import Scope, search_query
from latelier.indexes.ivf.training import train_centroids
from latelier.indexes.store.segments import Part, Segment

__all__ = ["compile_kernels"]

# More documents than are reranked without the sign stage, see `most_without_signs`.
_DOCUMENTS, _TOKENS, _DIM = 128, 8, 32


def compile_kernels() -> int:
    """Encode, train, build, append and search in each way, on a few random documents."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((_DOCUMENTS * _TOKENS, _DIM), dtype="float32")
    lengths = [_TOKENS] * _DOCUMENTS
    embeddings = TokenEmbeddings(vectors, np.arange(0, len(vectors) + 1, _TOKENS))
    codec, numbers = Codec(8, _DIM), np.arange(_DOCUMENTS)
    part = Part(Segment.build(numbers, numbers.tolist(), lengths, codec.encode(embeddings)), numbers)
    codec.decode(part)
    table = DocumentTable([part], codec, np.zeros(0, dtype="int64"))
    half = _DOCUMENTS // 2
    some = build_lists(train_centroids(table, numbers), table, numbers[:half])
    lists = append_documents(some, DocumentTable([part], codec, numbers[:half]), numbers[half:])
    scope = Scope(DocumentTable([part], codec, lists.numbers), lists, np.zeros(0, dtype="uint8"), numbers)
    probing = SearchParameters(nprobe=4, candidates=12, rerank=11)
    search_query(scope, vectors[:4], 1, probing)
    search_query(scope, vectors[:4], 1, replace(probing, candidates=_DOCUMENTS, rerank=None))
    return len(search_query(scope, vectors[:4], _DOCUMENTS, replace(probing, exact=True)).numbers)
