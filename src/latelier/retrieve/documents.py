"""Parse the documents that users give to a retriever, and group them into chunks with ids.

Each chunk is stored in one transaction, so memory stays bounded, and an interrupted call keeps the finished chunks. Ids
are checked before the texts are encoded, which takes a thousand times longer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, Literal, NamedTuple, TypeAlias

from latelier.errors import DuplicateIdError, InvalidArgumentError
from latelier.indexes import Id, Index
from latelier.indexes.catalog.values import as_id
from latelier.utils import check_count
from latelier.utils.describing import cut, describe, short
from latelier.utils.progress import progress_bar
from latelier.utils.reading import check_unicode

__all__ = ["DocumentChunk", "InputDocument", "OnExisting", "document_chunks", "parse_document", "parse_documents"]

# What to do with a document if its id is in the index.
OnExisting: TypeAlias = Literal["raise", "replace", "skip"]


class InputDocument(NamedTuple):
    """One document to store; ``id`` is None if the user gave none."""

    id: Id | None
    text: str
    metadata: dict[str, Any]


class DocumentChunk(NamedTuple):
    """The documents of one transaction, and the progress bar to update."""

    ids: list[Id]
    texts: list[str]
    metadata: list[dict[str, Any]]
    progress: Any


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
        If an item is none of these, or its text is empty.

    Examples
    --------
    >>> record = {"_id": 7, "title": "Paris", "text": "Capital.", "year": 2024}
    >>> for document in parse_documents([("a", "Rome."), record]):
    ...     print(document)
    InputDocument(id='a', text='Rome.', metadata={})
    InputDocument(id=7, text='Paris Capital.', metadata={'year': 2024})
    """
    if isinstance(documents, (str, bytes, Mapping)) or not isinstance(documents, Iterable):
        raise InvalidArgumentError(
            f"received documents of type {type(documents).__name__}; expected an iterable of texts, of (id, text) "
            "pairs, or of dicts with 'id' and 'text'. For one document, give a list; for a dict of texts, its .items()."
        )
    for position, item in enumerate(documents):
        try:
            document = parse_document(item)
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


def document_chunks(
    documents: Iterable[Any], index: Index, size: int, *, on_existing: OnExisting, show_progress: bool
) -> Iterator[DocumentChunk]:
    """Parse documents and yield them in chunks, with ids that the index accepts.

    Parameters
    ----------
    documents
        As in `parse_documents`.
    index
        The index that will store them.
    size
        Documents per chunk.
    on_existing
        For an id that is in the index: raise an error, replace the stored document, or skip the new one.
    show_progress
        Show a progress bar on standard error.

    Yields
    ------
    DocumentChunk
        Up to `size` documents; chunks of which all documents are skipped are left out.

    Raises
    ------
    InvalidArgumentError
        If a document is invalid; the message names its position.
    DuplicateIdError
        If an id is given twice in a chunk, or is in the index already.
    """
    check_count("chunk_size", size)
    parsed = enumerate(parse_documents(documents))
    total = len(documents) if isinstance(documents, Sized) else None
    with progress_bar(shown=show_progress, total=total, desc="Indexing", unit=" documents") as progress:
        while given := list(itertools.islice(parsed, size)):
            chunk = given if on_existing != "skip" else _not_in(index, given)
            progress.update(len(given) - len(chunk))
            if chunk:
                ids = _chunk_ids(chunk, index, on_existing)
                texts, metadata = [d.text for _, d in chunk], [d.metadata for _, d in chunk]
                yield DocumentChunk(ids, texts, metadata, progress)


def _parse_record(record: dict[str, Any]) -> InputDocument:
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
        raise InvalidArgumentError(f"it has the key {short(twice[0])} both at the top and in 'metadata'; give one.")
    return InputDocument(id_, _checked_text(text, id_), {**nested, **record})


def _checked_text(value: Any, id_: Any) -> str:
    name = "the text" if id_ is None else f"the text of {short(id_)}"
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} is of type {type(value).__name__}; expected str.")
    if not value.strip():
        raise InvalidArgumentError(f"{name} is empty: nothing to index.")
    check_unicode(value, name)
    return value


def _not_in(index: Index, given: list[tuple[int, InputDocument]]) -> list[tuple[int, InputDocument]]:
    """Return the documents that are not in the index."""
    for position, document in given:
        if document.id is None:
            raise InvalidArgumentError(
                f"documents[{position}] has no id, so skip_existing (--resume) cannot tell whether it is in the index; "
                "give (id, text) pairs or dicts."
            )
    return [(position, document) for position, document in given if document.id not in index]


def _chunk_ids(chunk: list[tuple[int, InputDocument]], index: Index, on_existing: OnExisting) -> list[Id]:
    """Return the ids of a chunk; documents without an id get the integers after the largest one in the index."""
    numbers: Iterator[int] | None = None
    positions: dict[Id, int] = {}
    for position, document in chunk:
        id_ = document.id
        if id_ is None:
            if on_existing == "replace":
                raise InvalidArgumentError(
                    f"documents[{position}]: update needs an id; give (id, text) pairs or dicts."
                )
            numbers = numbers or itertools.count(_next_number(index))
            id_ = next(numbers)
        if id_ in positions:
            raise DuplicateIdError(
                f"documents[{position}]: id {short(id_)} is given twice; documents[{positions[id_]}] has it too."
            )
        if on_existing == "raise" and id_ in index:
            raise DuplicateIdError(
                f"documents[{position}]: id {short(id_)} is in the index already; update(...), or --update on the "
                "command line, replaces documents; skip_existing=True, or --resume, keeps the stored ones."
            )
        positions[id_] = position
    return list(positions)


def _next_number(index: Index) -> int:
    return 1 + max((id_ for id_ in index.ids() if isinstance(id_, int)), default=-1)
