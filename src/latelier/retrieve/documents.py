"""The forms in which users give documents, and the names of the fields that records are made of."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from latelier.errors import InvalidArgumentError
from latelier.indexes import Id
from latelier.indexes.store.rows import encode_metadata
from latelier.indexes.values import as_id
from latelier.utils.checks import cut, describe, short
from latelier.utils.files import check_unicode


class InputDocument(NamedTuple):
    """One document to store; ``id`` is None if the user gave none, ``title`` is put before the text."""

    id: Id | None
    text: str
    metadata: dict[str, Any]
    title: str = ""

    def with_title(self, part: str | None = None) -> str:
        """Return the text, or a part of it, after the title; a part that begins with it as a heading stays as it is."""
        part = self.text if part is None else part
        if not self.title:
            return part
        title = re.escape(self.title)
        heading = rf"#+\s*{title}[ \t]*#*|{title}[ \t]*(?:\r\n|[\r\n]) {{0,3}}(?:=+|-+)"  # of Markdown
        if re.match(rf"\s*(?:{heading})[ \t]*(?:[\r\n]|\Z)", part):
            return part
        return f"{self.title} {part}".strip()


def parse_documents(documents: Any) -> Iterator[InputDocument]:
    """Yield documents while the iterable is read, see `Retriever.add`; the error for an invalid one has its position.

    Of a record, a dict under ``"metadata"`` is merged with the other keys.
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
            raise InvalidArgumentError(f"documents[{position}]: {error.fact}", advice=error.advice) from None
        yield document


def parse_document(item: Any) -> InputDocument:
    """Return one document of any form; errors do not name its position."""
    if isinstance(item, InputDocument):
        return item
    if isinstance(item, str):
        return InputDocument(None, _checked_text(item, None), {})
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return InputDocument(as_id(item[0]), _checked_text(item[1], item[0]), {})
    if not isinstance(item, Mapping):
        raise InvalidArgumentError(
            f"received {describe(item)}; expected a text, an (id, text) pair, or a dict with 'text'."
        )
    record = dict(item)
    if "text" not in record:
        raise InvalidArgumentError(f"it has no 'text'; its keys are {_listed(record)}.")
    if "id" in record and "_id" in record:
        raise InvalidArgumentError(
            f"it has both 'id' {short(record['id'])} and '_id' {short(record['_id'])}; give one."
        )
    name = next((name for name in ("id", "_id") if name in record), None)
    id_ = None if name is None else as_id(record.pop(name))
    text, title = record.pop("text"), record.pop("title", None)
    if title is not None and not isinstance(title, str):
        raise InvalidArgumentError(f"it has a title of type {type(title).__name__}; expected str.")
    document = InputDocument(id_, text, _merged_metadata(record), title or "")
    _checked_text(document.with_title() if isinstance(text, str) else text, id_)
    return document


def _merged_metadata(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record, those of a dict under ``"metadata"`` among them."""
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


T = TypeVar("T")

# Records in which a field that need not be in each of them has to appear once: enough to tell a field that few records
# have from a misspelt one, before anything is encoded.
_FIRST_RECORDS = 100


class DocumentFields(NamedTuple):
    """The names of the fields that documents are made of.

    By default, the id is ``id`` or ``_id``, the text ``text``, the title ``title``, and all others are metadata. The
    fields of a text are joined by line ends.
    """

    id: str | None = None
    text: tuple[str, ...] = ()
    title: str | None = None
    metadata: tuple[str, ...] | None = None

    @property
    def are_named(self) -> bool:
        """Whether any field is named, so that records have to be converted by `select`."""
        return self != DocumentFields()

    @property
    def text_names(self) -> tuple[str, ...]:
        """The fields of the text."""
        return self.text or ("text",)

    @property
    def columns(self) -> list[str] | None:
        """The columns of a table that are needed, if there are any; None: all."""
        if self.metadata is None:
            return None
        ids = ("id", "_id") if self.id is None else (self.id,)
        return [*dict.fromkeys([*ids, *self.text_names, self.title or "title", *self.metadata])]

    def check_names(self, found: Iterable[str], where: str) -> None:
        """Check that all named fields, and those of the text, are among those of a table or of some records."""
        known = dict.fromkeys(found)
        single = [name for name in (self.id, self.title) if name is not None]
        unknown = [name for name in (*single, *self.text_names, *(self.metadata or ())) if name not in known]
        if unknown:
            listed = cut(", ".join(known) or "none", 200)
            raise InvalidArgumentError(
                f"{where} no field {short(unknown[0])}; the fields are: {listed}.", advice="name-fields"
            )

    def select(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with the keys ``id``, ``title``, ``text`` and ``metadata``, as `parse_document` takes it."""
        rest = dict(record)
        selected: dict[str, Any] = {}
        for name in (self.id, *self.text):
            if name is not None and name not in rest:
                raise InvalidArgumentError(f"it has no field {short(name)}; its fields are {_listed(rest)}.")
        for key in ("id", "_id") if self.id is None else (self.id,):
            if key in rest:
                selected[key if self.id is None else "id"] = rest.pop(key)
        if (title := rest.pop(self.title or "title", None)) is not None:
            selected["title"] = title
        selected["text"] = _joined({name: rest.pop(name, None) for name in self.text_names})
        if self.metadata is None:
            selected["metadata"] = _merged_metadata(rest)
        else:
            selected["metadata"] = {name: record[name] for name in self.metadata if name in record}
        return selected

    def checked_records(self, records: Iterable[tuple[int, T]], source: str) -> Iterator[tuple[int, T]]:
        """Yield numbered records, after a check that each named field is in one of the first hundred."""
        remaining = iter(records)
        first = list(itertools.islice(remaining, _FIRST_RECORDS))
        if first:
            keys = [key for _, record in first if isinstance(record, Mapping) for key in record]
            self.check_names(keys, f"{source}: its first records have")
        return itertools.chain(first, remaining)


def as_fields(id: Any, text: Any, title: Any, metadata: Any) -> DocumentFields:
    """Return the fields that a user names: single names, or for text and metadata several."""
    for name, value in (("id", id), ("title", title)):
        if not (value is None or (isinstance(value, str) and value)):
            raise InvalidArgumentError(f"received {describe(value)} as {name}; expected the name of a field, or None.")
    fields = DocumentFields(id, _names("text", text) or (), title, _names("metadata", metadata))
    roles = [name for name in (id, title, *fields.text) if name is not None]
    twice = next((name for name in roles if roles.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgumentError(f"received the field {short(twice)} for two of id, text and title; name it once.")
    return fields


def _names(option: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else (None,)
    if not all(isinstance(name, str) and name for name in names):
        raise InvalidArgumentError(f"received {describe(value)} as {option}; expected the name of a field or several.")
    return names  # type: ignore[return-value]  # checked above


def _joined(parts: Mapping[str, Any]) -> Any:
    """Return the texts of several fields on lines of their own; None and empty ones are left out."""
    if len(parts) == 1:
        return "" if (only := next(iter(parts.values()))) is None else only
    for name, value in parts.items():
        if not (value is None or isinstance(value, str)):
            raise InvalidArgumentError(f"its field {short(name)} is of type {type(value).__name__}; expected str.")
    return "\n".join(value for value in parts.values() if value)


def _listed(record: Mapping[str, Any]) -> str:
    return cut(", ".join(map(short, record)) or "none", 200)
