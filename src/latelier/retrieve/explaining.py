"""Explain the score of a stored document: encode the query, read the document's vectors, and tokenise both texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes import Id, Index
from latelier.indexes.catalog.values import as_id
from latelier.retrieve.explanation import Explanation, explain_alignment
from latelier.retrieve.queries import checked_queries
from latelier.retrieve.query_model import QueryModel
from latelier.retrieve.stored_documents import StoredDocuments
from latelier.retrieve.tokenized_text import TokenizedText
from latelier.scores.alignment import align
from latelier.utils.describing import describe

__all__ = ["best_part", "explain_document"]


def explain_document(model: QueryModel, index: Index, query: str, id: Id) -> Explanation:
    """Explain the score of one document: see `Retriever.explain`.

    Parameters
    ----------
    model
        The model that filled the index.
    index
        The index.
    query
        One query.
    id
        A document of the index; if it is stored as passages, the best of them is explained.

    Returns
    -------
    Explanation
        The terms of the score.

    Raises
    ------
    InvalidArgumentError
        If the query is not a text, or empty, or no document can have this id.
    UnknownIdError
        If the document is not in the index.
    LatelierError
        If the document was stored without its text, or its tokens were pooled.
    """
    if not isinstance(query, str):
        raise InvalidArgumentError(f"received {describe(query)} to explain; expected one query, a text.")
    id = as_id(id)
    vectors = model.encode_queries(checked_queries(query))[0]
    with index.snapshot():
        part = best_part(index, vectors, id)
        document, text = index.get_embeddings([part])[0], index.get([part])[0].text
    if text is None:
        raise LatelierError(f"document {id!r} was stored without its text, so its tokens are unknown.")
    found = _tokenize(model, text, is_query=False)
    if len(found.tokens) != len(document):
        raise LatelierError(
            f"document {id!r} has {len(document)} rows, but its text has {len(found.tokens)} tokens for this model; "
            "documents with pooled tokens cannot be explained."
        )
    asked = _tokenize(model, query, is_query=True)
    return explain_alignment(id, align(vectors, document), asked, found, model.special_tokens, model.join)


def best_part(index: Index, query: Any, id: Id) -> Id:
    """Return the id under which the index stores a document, or the best of its passages for a query.

    Parameters
    ----------
    index
        The index.
    query
        Vectors of the query, ``(tokens, dim)``.
    id
        Id of the document; one that is not in the index is returned as it is.
    """
    parts = StoredDocuments(index).parts(id)
    if len(parts) <= 1:
        return parts[0] if parts else id
    scores = [float(align(query, document).similarities.sum()) for document in index.get_embeddings(parts)]
    return parts[int(np.argmax(scores))]


def _tokenize(model: QueryModel, text: str, *, is_query: bool) -> TokenizedText:
    tokens = model.tokens(text, is_query=is_query)
    return TokenizedText(text, tokens, model.token_ranges(text, is_query=is_query))
