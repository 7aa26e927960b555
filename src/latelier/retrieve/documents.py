"""Reading what users hand to a retriever as documents: texts, pairs or records, checked before anything is encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.indexes import Id
from latelier.indexes.catalog.values import as_id
from latelier.utils.describing import cut, describe, short
from latelier.utils.reading import check_unicode

__all__ = ["Document", "read_document", "read_documents"]


class Document(NamedTuple):
    """One document to store; ``id`` is None where the user gave none."""

    id: Id | None
    text: str
    metadata: dict[str, Any]


def read_documents(documents: Any) -> Iterator[Document]:
    """Yield documents as they come; an invalid one raises when it is reached, with its position.

    Parameters
    ----------
    documents
        An iterable of texts, of ``(id, text)`` pairs, or of records: dicts with ``"text"``, optionally ``"id"`` (or
        BEIR's ``"_id"``) and ``"title"``, which is put before the text. All other keys are metadata; a dict under
        ``"metadata"`` is merged into it.

    Raises
    ------
    InvalidArgumentError
        If an item is none of these, or its text is empty.

    Examples
    --------
    >>> list(read_documents([("a", "Rome."), {"_id": 7, "title": "Paris", "text": "Capital.", "year": 2024}]))
    [Document(id='a', text='Rome.', metadata={}), Document(id=7, text='Paris Capital.', metadata={'year': 2024})]
    """
    if isinstance(documents, (str, bytes, Mapping)) or not isinstance(documents, Iterable):
        raise InvalidArgumentError(
            f"received documents of type {type(documents).__name__}; expected an iterable of texts, of (id, text) "
            "pairs, or of dicts with 'id' and 'text'. Put one document into a list; of a dict of texts, give .items()."
        )
    for position, item in enumerate(documents):
        try:
            document = read_document(item)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"documents[{position}]: {error}") from None
        yield document


def read_document(item: Any) -> Document:
    """Read one document of any of the forms; the error leaves it to the caller to say which one it was."""
    if isinstance(item, Document):
        return item
    if isinstance(item, str):
        return Document(None, _text(item, None), {})
    if isinstance(item, Mapping):
        return _read_record(dict(item))
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return Document(as_id(item[0]), _text(item[1], item[0]), {})
    raise InvalidArgumentError(
        f"received {describe(item)}; expected a text, an (id, text) pair, or a dict with 'text'."
    )


def _read_record(record: dict[str, Any]) -> Document:
    names = [name for name in ("id", "_id") if name in record]
    if len(names) > 1:
        raise InvalidArgumentError(
            f"it has both 'id' {short(record['id'])} and '_id' {short(record['_id'])}; give one."
        )
    id_ = as_id(record.pop(names[0])) if names else None
    if "text" not in record:
        keys = cut(", ".join(map(short, record)) or "none", 200)
        raise InvalidArgumentError(f"it has no 'text'; its keys are {keys}.")
    text, title = record.pop("text"), record.pop("title", None)
    if title is not None and not isinstance(title, str):
        raise InvalidArgumentError(f"it has a title of type {type(title).__name__}; expected str.")
    if title and isinstance(text, str):
        text = f"{title} {text}".strip()
    nested = record.pop("metadata", None) or {}
    if not isinstance(nested, Mapping):
        raise InvalidArgumentError(f"it has metadata of type {type(nested).__name__}; expected a dict.")
    twice = sorted(set(nested) & set(record))
    if twice:
        raise InvalidArgumentError(f"it has {short(twice[0])} as a key of its own and in 'metadata'; give it once.")
    return Document(id_, _text(text, id_), {**nested, **record})


def _text(value: Any, id_: Any) -> str:
    name = "the text" if id_ is None else f"the text of {short(id_)}"
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} is of type {type(value).__name__}; expected str.")
    if not value.strip():
        raise InvalidArgumentError(f"{name} is empty: nothing to index.")
    check_unicode(value, name)
    return value
