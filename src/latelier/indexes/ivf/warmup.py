"""Compiling all kernels of an index ahead of their first use, into the cache that later processes read."""

from __future__ import annotations

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.ivf.document_table import Table
from latelier.indexes.ivf.filling import fill_cells
from latelier.indexes.ivf.search import Scope, search_one
from latelier.indexes.ivf.search_parameters import Knobs
from latelier.indexes.ivf.training import train_centroids
from latelier.indexes.storage.segments import Part, Segment, document_arrays

__all__ = ["compile_kernels"]

_DOCUMENTS, _TOKENS, _DIM = 64, 8, 32


def compile_kernels() -> int:
    """Encode, train, fill and search once, on a few random documents.

    Returns
    -------
    int
        How many documents were found: all of them.

    Examples
    --------
    >>> compile_kernels()
    64
    """
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((_DOCUMENTS * _TOKENS, _DIM), dtype="float32")
    lengths = [_TOKENS] * _DOCUMENTS
    embeddings = TokenEmbeddings(vectors, np.arange(0, len(vectors) + 1, _TOKENS))
    codec, numbers = Codec(8, _DIM), np.arange(_DOCUMENTS)
    arrays = {**document_arrays(numbers, numbers.tolist(), lengths), **codec.encode(embeddings)}
    part = Part(Segment(arrays), numbers)
    codec.decode(part)
    table = Table([part], codec, np.zeros(0, dtype="int64"))
    half = _DOCUMENTS // 2
    some = fill_cells(train_centroids(table, numbers), table, numbers[:half])
    cells = fill_cells(some.centroids, Table([part], codec, numbers[:half]), numbers[half:], some)
    scope = Scope(Table([part], codec, cells.numbers), cells, np.zeros(0, dtype="uint8"), numbers)
    search_one(scope, vectors[:4], 1, Knobs(nprobe=4, candidates=12, rerank=11))
    return len(search_one(scope, vectors[:4], _DOCUMENTS, Knobs(4, 12, 11, exact=True)).numbers)
