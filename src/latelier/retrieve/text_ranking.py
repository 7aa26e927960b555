"""`rank_texts`: texts that are in no index, ordered by their MaxSim score for a query."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.indexes import Hit
from latelier.retrieve.queries import checked_queries
from latelier.retrieve.query_model import QueryModel
from latelier.utils.checks import check_count, describe
from latelier.utils.misc import progress_bar

__all__ = ["rank_texts"]

_BATCH_SIZE = 32  # texts of maximum length per batch, as in `Retriever.add`


def rank_texts(model: QueryModel, query: str, texts: Iterable[str], k: int | None) -> list[Hit]:
    """Order texts by their score for a query; see `latelier.retrieve.Retriever.rerank`.

    Parameters
    ----------
    model
        Encodes the query and the texts.
    query
        One query.
    texts
        The texts.
    k
        Maximum number of texts to return; None returns all.

    Returns
    -------
    list of Hit
        Positions and scores, best first.
    """
    if not isinstance(query, str):
        raise InvalidArgumentError(f"received {describe(query)} as the query; expected one text.")
    if isinstance(texts, str):
        raise InvalidArgumentError("received one text to rank; expected a list of texts.")
    check_count("k", k, optional=True)
    documents = checked_queries(texts, "texts")
    vectors = model.encode_queries(checked_queries(query))
    if not documents:
        return []
    from latelier.scores import colbert_scores  # imports torch, which a search does without

    with progress_bar(shown=False) as bar:
        embeddings = model.encode_documents(documents, batch_size=_BATCH_SIZE, bar=bar)
    scores = np.asarray(colbert_scores(vectors, embeddings))[0]
    return [Hit(int(i), float(scores[i])) for i in np.argsort(-scores, kind="stable")[:k]]
