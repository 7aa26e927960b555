"""Whether the rounding of stored vectors keeps a document from being found: ranks by vectors encoded again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import LatelierError
from latelier.indexes import IVF, Cause, Change, Flat, Id, Index
from latelier.indexes.ivf.code_layout import BITS
from latelier.indexes.recall import exact_scores
from latelier.retrieve.query_model import QueryModel

__all__ = ["find_quantisation_loss", "rounds_vectors", "scores_when_stored"]

# Documents that are encoded again, a few seconds on a CPU: those ranked best, down to twice the document's rank.
_MOST_ENCODED, _FURTHER = 200, 2


def rounds_vectors(index: Index) -> bool:
    """Whether an index stores vectors with less than single precision."""
    return index.nbits is not None or index.dtype != "float32"


def scores_when_stored(index: Index, query: TokenEmbeddings, documents: TokenEmbeddings) -> np.ndarray:
    """Return the scores that documents would have in an index, after the rounding of their vectors.

    Parameters
    ----------
    index
        The index; it is left as it is.
    query
        One query.
    documents
        Vectors of documents.

    Returns
    -------
    numpy.ndarray
        ``(documents,)``.

    Examples
    --------
    >>> one = TokenEmbeddings.from_list([[[0.6, 0.8]]])
    >>> scores_when_stored(Flat(), one, one).round(3)
    array([1.])
    >>> scores_when_stored(IVF(nbits=1), one, one).round(3)
    array([0.99])
    """
    documents = documents.to("numpy")
    if not rounds_vectors(index):
        return exact_scores(query, documents)[0]
    nbits: Any = index.nbits
    with Flat(dtype="float16") if nbits is None else IVF(nbits=nbits) as stored:
        stored.add(range(len(documents)), documents)
        return exact_scores(query, stored.get_embeddings(range(len(documents))))[0]


def find_quantisation_loss(
    model: QueryModel, index: Index, query: TokenEmbeddings, id: Id, rank: int, arguments: Mapping[str, Any]
) -> tuple[Cause, tuple[Change, ...]] | None:
    """Return the cause and the changes if a document would be found by the vectors as the model encodes them.

    Parameters
    ----------
    model
        Encodes documents.
    index
        An index that rounds vectors.
    query
        One query.
    id, rank
        The document, and its rank by the stored vectors.
    arguments
        The arguments of the search.

    Raises
    ------
    LatelierError
        If the documents ranked near it cannot be encoded again; the message says why.
    """
    if rank > _MOST_ENCODED:
        raise LatelierError(f"its rank is {rank:,}, and only {_MOST_ENCODED} documents are encoded again.")
    k, count = arguments["k"], min(_MOST_ENCODED, _FURTHER * rank + arguments["k"])
    exact = {**arguments, "k": count, **({} if index.nbits is None else {"effort": "exact"})}
    hits = index.search(query, **exact)[0]
    ids = [hit.id for hit in hits]
    if id not in ids:  # an approximate search without `effort`
        return None
    vectors = _encode_again(model, index, ids)
    scores = exact_scores(query, vectors)[0]
    mine = ids.index(id)
    by_floats = 1 + int(np.count_nonzero(scores > scores[mine]))
    if by_floats > k:
        return None
    last = float(np.sort(scores)[-min(k, len(scores))])
    text = (
        f"by vectors that are not rounded it has rank {by_floats} and scores {scores[mine]:.3f} (the last hit then "
        f"{last:.3f}); by the stored ones rank {rank} and {hits[mine].score:.3f}"
    )
    details = {"rank": by_floats, "score": float(scores[mine]), "last_score": last, "encoded": len(ids)}
    return Cause("quantised", text, details), _finer(index, vectors, query, mine, k)


def _encode_again(model: QueryModel, index: Index, ids: list[Id]) -> TokenEmbeddings:
    """Return the vectors of stored documents as the model encodes their texts."""
    texts = [record.text for record in index.get(ids)]
    if None in texts:
        raise LatelierError(
            f"document {ids[texts.index(None)]!r}, which is ranked near it, was stored without its text."
        )
    vectors = model.encode_documents([str(text) for text in texts], batch_size=8).to("numpy")
    changed = np.flatnonzero(np.asarray(vectors.lengths) != np.asarray(index.get_embeddings(ids).lengths))
    if len(changed):
        raise LatelierError(
            f"the vectors of document {ids[changed[0]]!r}, which is ranked near it, are not those of its text."
        )
    return vectors


def _finer(index: Index, vectors: TokenEmbeddings, query: TokenEmbeddings, mine: int, k: int) -> tuple[Change, ...]:
    """Return the smallest number of bits with which the document is found among those encoded again."""
    bits: list[Any] = sorted(each for each in BITS if index.nbits is not None and each > index.nbits)
    for nbits in bits:
        with IVF(nbits=nbits) as finer:
            finer.add(range(len(vectors)), vectors)
            if mine in [hit.id for hit in finer.search(query, k, effort="exact")[0]]:
                return (Change({"nbits": nbits}, "index"),)
    return (Change({"kind": "flat", "dtype": "float32"}, "index"),)
