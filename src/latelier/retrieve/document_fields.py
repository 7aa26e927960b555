"""`DocumentFields`: which fields of a record, or columns of a table, are the id, the text, the title and metadata."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from latelier.errors import InvalidArgumentError
from latelier.retrieve.documents import merge_metadata
from latelier.utils.checks import cut, describe, short

__all__ = ["DocumentFields", "as_fields"]

T = TypeVar("T")

# Records in which a field that need not be in each of them has to appear once: enough to tell a field that few records
# have from a misspelt one, before anything is encoded.
_FIRST_RECORDS = 100


class DocumentFields(NamedTuple):
    r"""The names of the fields that documents are made of.

    Attributes
    ----------
    id
        Field of the id; None: ``id`` or ``_id``, if there is one.
    text
        Fields of the text, which are joined by line ends; none: ``text``.
    title
        Field of the title; None: ``title``, if there is one.
    metadata
        Fields of the metadata; None: all others.

    Examples
    --------
    >>> fields = DocumentFields("doi", ("abstract", "body"), metadata=("year",))
    >>> record = {"doi": "10/x", "abstract": "Short.", "body": "Long."}
    >>> fields.select({**record, "year": 2024, "pages": 7})
    {'id': '10/x', 'text': 'Short.\nLong.', 'metadata': {'year': 2024}}
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

    @property
    def names(self) -> tuple[str, ...]:
        """All names, without those of the default fields."""
        single = [name for name in (self.id, self.title) if name is not None]
        return tuple(dict.fromkeys([*single, *self.text, *(self.metadata or ())]))

    def check_names(self, found: Iterable[str], where: str) -> None:
        """Check that all named fields are among those of a table or of some records.

        Raises
        ------
        InvalidArgumentError
            If one is not; the message lists what there is.
        """
        known = list(dict.fromkeys(found))
        unknown = [name for name in (*self.names, *self.text_names) if name not in known]
        if unknown:
            listed = cut(", ".join(known) or "none", 200)
            raise InvalidArgumentError(
                f"{where} no field {short(unknown[0])}; the fields are: {listed}. Name others with id, text, title and "
                "metadata, or on the command line --id, --text, --title and --metadata."
            )

    def select(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with the keys ``id``, ``title``, ``text`` and ``metadata``, as `parse_document` takes it.

        Raises
        ------
        InvalidArgumentError
            If a field of the id or the text is missing, one of several fields of the text is not a text, or
            `merge_metadata` raises it.
        """
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
        selected["text"] = _joined([(name, rest.pop(name, None)) for name in self.text_names])
        if self.metadata is None:
            selected["metadata"] = merge_metadata(rest)
        else:
            selected["metadata"] = {name: record[name] for name in self.metadata if name in record}
        return selected

    def checked_records(self, records: Iterable[tuple[int, T]], source: str) -> Iterator[tuple[int, T]]:
        """Yield numbered records, after a check that each named field is in one of the first hundred.

        Raises
        ------
        InvalidArgumentError
            If a field is in none of them.
        """
        remaining = iter(records)
        first = list(itertools.islice(remaining, _FIRST_RECORDS))
        if first and self.are_named:
            keys = [key for _, record in first if isinstance(record, Mapping) for key in record]
            self.check_names(keys, f"{source}: its first records have")
        return itertools.chain(first, remaining)


def as_fields(id: Any, text: Any, title: Any, metadata: Any) -> DocumentFields:
    """Return the fields that a user names: single names, or for text and metadata several.

    Raises
    ------
    InvalidArgumentError
        If a name is not a text or is empty, or one field is to be two things.

    Examples
    --------
    >>> as_fields("doi", "body", None, ["year"])
    DocumentFields(id='doi', text=('body',), title=None, metadata=('year',))
    """
    for name, value in (("id", id), ("title", title)):
        if not (value is None or (isinstance(value, str) and value)):
            raise InvalidArgumentError(f"received {describe(value)} as {name}; expected the name of a field, or None.")
    texts = _names("text", text)
    fields = DocumentFields(id, texts or (), title, _names("metadata", metadata))
    roles = [name for name in (id, title, *fields.text) if name is not None]
    if len(set(roles)) < len(roles):
        twice = next(name for name in roles if roles.count(name) > 1)
        raise InvalidArgumentError(f"received the field {short(twice)} for two of id, text and title; name it once.")
    return fields


def _names(option: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else ()
    if not all(isinstance(name, str) and name for name in names) or not isinstance(value, (str, Sequence)):
        raise InvalidArgumentError(f"received {describe(value)} as {option}; expected the name of a field or several.")
    return names


def _joined(parts: list[tuple[str, Any]]) -> Any:
    """Return the texts of several fields on lines of their own; None and empty ones are left out."""
    if len(parts) == 1:
        return "" if parts[0][1] is None else parts[0][1]
    for name, value in parts:
        if not (value is None or isinstance(value, str)):
            raise InvalidArgumentError(f"its field {short(name)} is of type {type(value).__name__}; expected str.")
    return "\n".join(value for _, value in parts if value)


def _listed(record: Mapping[str, Any]) -> str:
    return cut(", ".join(map(short, record)) or "none", 200)
