"""Explain the scores of stored documents: encode the query, read the documents' vectors, and tokenise all texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes import Id, Index
from latelier.indexes.catalog.values import as_id, as_ids
from latelier.retrieve.explanation import Explanation, explain_alignment
from latelier.retrieve.queries import checked_queries
from latelier.retrieve.query_model import QueryModel
from latelier.retrieve.stored_documents import StoredDocuments
from latelier.retrieve.tokenized_text import TokenizedText
from latelier.scores.alignment import align
from latelier.utils.checks import describe

__all__ = ["best_part", "explain_document", "explain_documents"]


def explain_document(model: QueryModel, index: Index, query: str, id: Id) -> Explanation:
    """Explain the score of one document: see `Retriever.explain` and `explain_documents`."""
    return explain_documents(model, index, query, [as_id(id)])[0]


def explain_documents(model: QueryModel, index: Index, query: str, ids: Sequence[Id]) -> list[Explanation]:
    """Explain the scores of some documents for one query, which is encoded once.

    Parameters
    ----------
    model
        The model that filled the index.
    index
        The index.
    query
        One query.
    ids
        Documents of the index; of one that is stored as passages, the best passage is explained.

    Returns
    -------
    list of Explanation
        The terms of the score of each document.

    Raises
    ------
    InvalidArgumentError
        If the query is not a text, or empty, or no document can have one of the ids.
    UnknownIdError
        If a document is not in the index.
    LatelierError
        If a document was stored without its text, or its tokens were pooled.
    """
    if not isinstance(query, str):
        raise InvalidArgumentError(f"received {describe(query)} to explain; expected one query, a text.")
    wanted, vectors = as_ids(ids), model.encode_queries(checked_queries(query))[0]
    asked = _tokenize(model, query, is_query=True)
    with index.snapshot():
        parts = [best_part(index, vectors, id) for id in wanted]
        documents, records = index.get_embeddings(parts), index.get(parts)
    return [
        _explain(model, id, record.text, vectors, document, asked)
        for id, document, record in zip(wanted, documents, records, strict=True)
    ]


def _explain(
    model: QueryModel, id: Id, text: str | None, query: Any, document: Any, asked: TokenizedText
) -> Explanation:
    """Explain a document from its text and its vectors."""
    if text is None:
        raise LatelierError(f"document {id!r} was stored without its text, so its tokens are unknown.")
    found = _tokenize(model, text, is_query=False)
    if len(found.tokens) != len(document):
        raise LatelierError(
            f"document {id!r} has {len(document)} rows, but its text has {len(found.tokens)} tokens for this model; "
            "documents with pooled tokens cannot be explained."
        )
    return explain_alignment(id, align(query, document), asked, found, model.special_tokens, model.join)


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
