"""Parse the documents that users give to a retriever: texts, pairs and records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.indexes import Id
from latelier.indexes.catalog.metadata import encode_metadata
from latelier.indexes.catalog.values import as_id
from latelier.utils.checks import cut, describe, short
from latelier.utils.files import check_unicode

__all__ = ["InputDocument", "merge_metadata", "parse_document", "parse_documents"]


class InputDocument(NamedTuple):
    r"""One document to store; ``id`` is None if the user gave none, ``title`` is put before the text.

    Examples
    --------
    >>> InputDocument("a", "The capital of France.", {}, "Paris").with_title()
    'Paris The capital of France.'
    >>> InputDocument("a", "# Paris\nThe capital.", {}, "Paris").with_title()
    '# Paris\nThe capital.'
    """

    id: Id | None
    text: str
    metadata: dict[str, Any]
    title: str = ""

    def with_title(self, part: str | None = None) -> str:
        """Return the text, or a part of it, after the title; a part that begins with it as a heading stays as it is."""
        part = self.text if part is None else part
        if not self.title or _begins_with_heading(part, self.title):
            return part
        return f"{self.title} {part}".strip()


def _begins_with_heading(text: str, title: str) -> bool:
    """Whether a text begins with a title as a whole Markdown heading, of ``#`` or underlined."""
    title = re.escape(title)
    heading = rf"#+\s*{title}[ \t]*#*|{title}[ \t]*(?:\r\n|[\r\n]) {{0,3}}(?:=+|-+)"
    return re.match(rf"\s*(?:{heading})[ \t]*(?:[\r\n]|\Z)", text) is not None


def parse_documents(documents: Any) -> Iterator[InputDocument]:
    """Yield documents while the iterable is read; the error for an invalid document names its position.

    Parameters
    ----------
    documents
        An iterable of texts, of ``(id, text)`` pairs, or of records: dicts with ``"text"``, optionally ``"id"`` (or
        BEIR's ``"_id"``) and ``"title"``, which is put before the text. All other keys are metadata; a dict under
        ``"metadata"`` is merged into it.

    Yields
    ------
    InputDocument
        Id, text and metadata of one document.

    Raises
    ------
    InvalidArgumentError
        If an item is none of these, its text is empty, or JSON cannot hold its metadata.

    Examples
    --------
    >>> record = {"_id": 7, "title": "Paris", "text": "Capital.", "year": 2024}
    >>> for document in parse_documents([("a", "Rome."), record]):
    ...     print(document)
    InputDocument(id='a', text='Rome.', metadata={}, title='')
    InputDocument(id=7, text='Capital.', metadata={'year': 2024}, title='Paris')
    """
    if isinstance(documents, (str, bytes, Mapping)) or not isinstance(documents, Iterable):
        raise InvalidArgumentError(
            f"received documents of type {type(documents).__name__}; expected an iterable of texts, of (id, text) "
            "pairs, or of dicts with 'id' and 'text'. For one document, give a list; for a dict of texts, its .items()."
        )
    for position, item in enumerate(documents):
        try:
            document = parse_document(item)
            # The index makes the same check, but after the chunk is encoded; files are checked while they are read.
            if document.metadata and document is not item:
                encode_metadata(document.metadata, position if document.id is None else document.id)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"documents[{position}]: {error}") from None
        yield document


def parse_document(item: Any) -> InputDocument:
    """Parse one document of any of the forms of `parse_documents`; its errors do not name the position."""
    if isinstance(item, InputDocument):
        return item
    if isinstance(item, str):
        return InputDocument(None, _checked_text(item, None), {})
    if isinstance(item, Mapping):
        return _parse_record(dict(item))
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return InputDocument(as_id(item[0]), _checked_text(item[1], item[0]), {})
    raise InvalidArgumentError(
        f"received {describe(item)}; expected a text, an (id, text) pair, or a dict with 'text'."
    )


def _parse_record(record: dict[str, Any]) -> InputDocument:
    if "text" not in record:
        keys = cut(", ".join(map(short, record)) or "none", 200)
        raise InvalidArgumentError(f"it has no 'text'; its keys are {keys}.")
    names = [name for name in ("id", "_id") if name in record]
    if len(names) > 1:
        raise InvalidArgumentError(
            f"it has both 'id' {short(record['id'])} and '_id' {short(record['_id'])}; give one."
        )
    id_ = as_id(record.pop(names[0])) if names else None
    text, title = record.pop("text"), record.pop("title", None)
    if title is not None and not isinstance(title, str):
        raise InvalidArgumentError(f"it has a title of type {type(title).__name__}; expected str.")
    document = InputDocument(id_, text, merge_metadata(record), title or "")
    _checked_text(document.with_title() if isinstance(text, str) else text, id_)
    return document


def merge_metadata(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record, those of a dict under ``"metadata"`` among them.

    Raises
    ------
    InvalidArgumentError
        If there is something else under ``"metadata"``, or a field is in both.

    Examples
    --------
    >>> merge_metadata({"year": 2024, "metadata": {"lang": "en"}})
    {'lang': 'en', 'year': 2024}
    """
    rest = dict(record)
    nested = rest.pop("metadata", None) or {}
    if not isinstance(nested, Mapping):
        raise InvalidArgumentError(
            f"it has metadata of type {type(nested).__name__}; expected a dict. A field of another kind needs another "
            "name."
        )
    twice = next((key for key in nested if key in rest), None)
    if twice is not None:
        raise InvalidArgumentError(f"it has the key {short(twice)} both at the top and in 'metadata'; give one.")
    return {**nested, **rest}


def _checked_text(value: Any, id_: Any) -> str:
    name = "the text" if id_ is None else f"the text of {short(id_)}"
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} is of type {type(value).__name__}; expected str.")
    if not value.strip():
        raise InvalidArgumentError(f"{name} is empty: nothing to index.")
    check_unicode(value, name)
    return value
