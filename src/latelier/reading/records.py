"""Documents as records: of Python values and tables in memory, and what the fields of a record are.

Files of records are in `latelier.reading.documents`, those that are one text each in `latelier.reading.files`.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from latelier.errors import EmptyTextError, InvalidArgumentError
from latelier.reading.rows import NAMES, Fault, OnProblem, Row, rows_of_table
from latelier.utils.checks import check_unicode, cut, describe, short
from latelier.utils.misc import warn_caller
from latelier.utils.values import Id, as_id, encode_fields, plain_value


class Part(NamedTuple):
    """A part of a text from `start` on: the headings above it, its page, and whether a passage has to begin there.

    `header`: what is put before each passage that begins in it besides, such as the names of the columns of a table;
    `time`: when it is said, in subtitles.
    """

    start: int
    headings: str = ""
    page: int | None = None
    is_apart: bool = False
    header: str = ""
    time: str = ""


class InputDocument(NamedTuple):
    """One document to store; what stands before the first of its `parts`, such as front matter, is not indexed.

    `image` is a picture as it was given, and a `Picture` once it is known that the model reads pictures. `unread` names
    what its file holds and no document of it does, such as "2 comments".
    """

    id: Id | None
    text: str
    metadata: dict[str, Any]
    title: str = ""
    parts: tuple[Part, ...] = ()
    image: Any = None
    unread: tuple[str, ...] = ()

    def values(self) -> list[Any]:
        """Return all but the picture in JSON's types, see `of_values`."""
        return [self.id, self.text, self.metadata, self.title, self.parts, self.unread]

    @classmethod
    def of_values(
        cls, id: Id | None, text: str, metadata: dict[str, Any], title: str, parts: Any, unread: list[str]
    ) -> InputDocument:
        """Return the document of its `values`."""
        return cls(id, text, metadata, title, tuple(Part(*part) for part in parts), unread=tuple(unread))


# Between the title of a document and the headings above a passage.
HEADINGS = " > "


class SkipReason(str, Enum):
    """Why a file, a folder, a record or a document was left out.

    Examples
    --------
    >>> SkipReason.EMPTY.value
    'empty'
    """

    EMPTY = "empty"  # it was read, and holds no text
    UNREAD = "unread"  # it was read, but for what the message names
    RECORDS = "records"  # it was read; some or all of its records, mails or pages cannot be stored
    TIME = "time"  # reading it took too long; it is not tried again until it changes
    UNREADABLE = "unreadable"  # it could not be listed or read
    EXCLUDED = "excluded"  # its kind, a link, an ignore file or a pattern leaves it out
    ID = "id"  # a document has its id already
    KEPT = "kept"  # what is stored of it is kept, as nobody knows yet whether it is gone


class Skipped(NamedTuple):
    """A file or folder that was left out as a whole or in part, or a record of a file (``FILE:LINE``).

    Examples
    --------
    >>> Skipped("a.md", "it is empty", SkipReason.EMPTY).reason.value
    'empty'
    """

    path: str
    message: str
    reason: SkipReason


class FieldsTaken:
    """What the records of a source were taken for so far: how many, and the fields of their ids and their texts."""

    def __init__(self) -> None:
        self.records = 0
        self.remark = ""
        self._ids: Counter[str | None] = Counter()
        self._texts: dict[str, None] = {}

    def add(self, id: str | None, texts: Iterable[str]) -> None:
        """Count a record."""
        self.records += 1
        self._ids[id] += 1
        self._texts |= dict.fromkeys(texts)

    def __iadd__(self, other: FieldsTaken) -> FieldsTaken:
        self.records += other.records
        self.remark = other.remark or self.remark
        self._ids += other._ids
        self._texts |= other._texts
        return self

    def __str__(self) -> str:
        ids = []
        for name, count in self._ids.most_common():
            share = f" of {count:,}"
            if count == self.records:
                share = ""
            if name is None:
                ids.append(f"no id{share}, so numbered")
            else:
                ids.append(f"id{share} from {name}")
        said = [f"{', '.join(ids)}, text from {' and '.join(self._texts)}", self.remark]
        plural = "s" * (self.records != 1)
        return "; ".join([f"{self.records:,} record{plural}", *filter(None, said)])


class Position:
    """How far a file was read, which may be opened more than once."""

    def __init__(self) -> None:
        self._file: Any = None
        self._size = 0

    def opened(self, file: Any) -> None:
        """Note that a file is being read, opened for bytes."""
        with suppress(OSError, ValueError, AttributeError):  # a pipe has no size and no position
            self._size = os.fstat(file.fileno()).st_size if file.seekable() else 0
            self._file = file

    def share(self) -> float | None:
        """Return which part of its bytes was read; None if that is not known."""
        if not self._size:
            return None
        if self._file.closed:
            return 1.0
        return min(self._file.tell() / self._size, 1.0)


class FileDocuments:
    """Documents that are read from files: records, or with `are_texts` files that are one text each.

    `skipped` names each file, line or row that was left out so far, `taken` says which fields of its records were taken
    for what; `path` is that of a file or folder that can be read again, `options` are those of reading it, as a text.
    """

    def __init__(
        self,
        documents: Iterator[InputDocument],
        skipped: list[Skipped],
        path: Path | None = None,
        *,
        are_texts: bool = False,
        taken: FieldsTaken | None = None,
    ) -> None:
        self._documents = documents
        self.taken = taken or FieldsTaken()
        self.skipped = skipped
        self.path = path
        self.are_texts = are_texts
        self.options = ""
        self.position = Position()

    def share(self) -> float | None:
        """Return which part of the file was read so far, 0 to 1, by its bytes; None if that is not known."""
        return self.position.share()

    def __iter__(self) -> Iterator[InputDocument]:
        yield from self._documents
        if self.skipped and self.path:
            first = self.skipped[0]
            if self.are_texts:
                warn_caller(f"{first.path}: {first.message}")
                return
            plural = "" if len(self.skipped) == 1 else "s"
            warn_caller(f"left out {len(self.skipped):,} record{plural}; the first is {first.path}: {first.message}")


def parse_documents(documents: Any) -> Iterator[InputDocument]:
    """Yield documents while the iterable is read, see `Retriever.add`; errors name the position."""
    rows = _table_rows(documents)
    if isinstance(documents, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise InvalidArgumentError(
            f"received documents of type {type(documents).__name__}; expected an iterable of texts, of (id, text) "
            "pairs, or of dicts with 'id' and 'text'. For one document, give a list; for a dict of texts, its .items()."
        )
    for position, item in enumerate(rows):
        try:
            document = parse_document(item, position)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"documents[{position}]: {error.fact}", advice=error.advice) from None
        yield document


def _table_rows(documents: Any) -> Any:
    """Return the rows of a table of pandas, polars, pyarrow or DuckDB as records; any other iterable as it is.

    Of a data set of ir_datasets, its documents.
    """
    if hasattr(documents, "docs_iter"):
        return documents.docs_iter()
    rows: Iterable[dict[str, Any]]
    if hasattr(documents, "itertuples"):
        if documents.index.names == [None]:
            frame = documents
        else:
            frame = documents.reset_index()
        names = list(frame.columns)
        rows = (dict(zip(names, row, strict=True)) for row in frame.itertuples(index=False, name=None))
    elif hasattr(documents, "n_chunks"):  # of polars alone
        rows = documents.iter_rows(named=True)
    elif hasattr(documents, "to_batches") or (
        hasattr(documents, "__arrow_c_stream__") and (hasattr(documents, "schema") or hasattr(documents, "columns"))
    ):
        rows = rows_of_table(documents)
    else:
        return documents
    return (
        dict.fromkeys({"text"} & {*map(str, row)})
        | {str(name): plain_value(value) for name, value in row.items() if not _is_missing(value)}
        for row in rows
    )


def _is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN, or what pandas has for a missing time or value."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def parse_document(item: Any, position: int | str, *, with_image: bool = True) -> InputDocument:
    """Return one document of any form; errors name its position only in place of an id.

    `with_image`: whether a field ``image`` is a picture; else it is metadata.
    """
    if isinstance(item, InputDocument):
        return item
    if isinstance(item, str):
        return InputDocument(None, _checked_text(item, None), {})
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return InputDocument(as_id(item[0]), _checked_text(item[1], item[0]), {})
    record = _as_record(item)
    image = record.get("image") if with_image else None
    if isinstance(image, (str, bytes, os.PathLike)) or hasattr(image, "getbands"):
        del record["image"]
    else:
        image = None
    if image is not None:
        record = {**record, "text": record.get("text") or ""}
    if "text" not in record:
        raise InvalidArgumentError(f"it has no 'text'; its keys are {_listed(record)}.", advice="name-fields")
    own = id_field(record)
    if own is None:
        id_ = None
    else:
        id_ = as_id(record[own])
    text = joined_text(record.pop("text"))
    title = joined_text(record.pop("title", None))
    if title is not None and not isinstance(title, str):
        raise InvalidArgumentError(f"it has a title of type {type(title).__name__}; expected str.")
    rest = {name: value for name, value in record.items() if name not in (own, "id", "_id")}
    # The index makes the same check, but after the chunk is encoded.
    metadata = encode_fields(_merged_metadata(rest), position if id_ is None else id_)[1]
    document = InputDocument(id_, text, metadata, title or "", image=image)
    titled = text
    if title and isinstance(text, str):
        titled = f"{title} {text}"
    if image is None or text != "":
        _checked_text(titled, id_)
    return document


def joined_text(value: Any) -> Any:
    """Return a text that is given as a list of its sentences or paragraphs, each on a line; others as they are."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, str) for each in value):
        return "\n".join(value)
    return value


def id_names(names: Iterable[Any]) -> list[str]:
    """Return those of the fields of a record, or of the columns of a table, that are its id."""
    lowered = {name: name.lower() for name in names if isinstance(name, str)}
    own = [name for name, lower in lowered.items() if lower in NAMES["id"]]
    return own or [name for name, lower in lowered.items() if lower in NAMES["document_id"]]


def id_field(record: Mapping[str, Any]) -> str | None:
    """Return the field of the id of a record, if one has a value."""
    given = id_names(name for name, value in record.items() if value is not None)
    if len(given) > 1:
        values = " and ".join(f"{short(name)} {short(record[name])}" for name in given[:2])
        raise InvalidArgumentError(f"it has both {values}; give one as 'id'.", advice="name-fields")
    if given:
        return given[0]
    return None


def irds_record(document: Any) -> dict[str, Any]:
    """Return the record of a document of ir_datasets, without its markup; other fields of it are metadata."""
    record: dict[str, Any] = {name: value for name, value in document._asdict().items() if name != "marked_up_doc"}
    if "text" not in record:  # a title or a body, which are in its default text
        record = {name: value for name, value in record.items() if name not in ("title", "body")}
        record["text"] = document.default_text()
    return record


def _as_record(item: Any) -> dict[str, Any]:
    """Return a dict with ``text``, of a dict or of a document of LangChain, LlamaIndex, Haystack or ir_datasets."""
    if hasattr(item, "doc_id") and hasattr(item, "default_text"):
        return irds_record(item)
    if hasattr(item, "page_content"):
        return {"id": item.id, "text": item.page_content, "metadata": item.metadata}
    if hasattr(item, "node_id") and hasattr(item, "get_content"):
        return {"id": item.node_id, "text": item.get_content(), "metadata": item.metadata}
    if hasattr(item, "content") and hasattr(item, "meta"):
        return {"id": item.id, "text": item.content, "metadata": item.meta}
    if not hasattr(item, "keys"):  # a mapping, or a row of a database
        raise InvalidArgumentError(
            f"received {describe(item)}; expected a text, an (id, text) pair, or a dict with 'text'."
        )
    return plain_record(item)


def plain_record(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its text at the top, also as Elasticsearch, Qdrant, Solr and Anserini write it."""
    record = dict(item)
    if "text" in record:
        return record
    added = record.get("add")
    if isinstance(added, Mapping) and isinstance(added.get("doc"), Mapping):
        return dict(added["doc"])
    for outer in ("_source", "payload"):
        inner = record.get(outer)
        if isinstance(inner, Mapping) and (outer == "_source" or "text" in inner):
            return {key: record[key] for key in ("_id", "id") if key in record} | dict(inner)
    if "contents" in record:
        record["text"] = record.pop("contents")
    return record


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
    if id_ is None:
        name = "the text"
    else:
        name = f"the text of {short(id_)}"
    if not isinstance(value, (str, type(None))):
        raise InvalidArgumentError(f"{name} is of type {type(value).__name__}; expected str.")
    if value is None or not value.strip():
        raise EmptyTextError(f"{name} is empty: nothing to index.")
    check_unicode(value, name)
    return value


# Records in which a field that need not be in each of them has to appear once: enough to tell a field that few records
# have from a misspelt one, before anything is encoded.
_FIRST_RECORDS = 100


class DocumentFields(NamedTuple):
    """The names of the fields that documents are made of; ``meta.year`` is a field inside of another one.

    By default, the id is what `id_names` finds, the text ``text``, the title ``title``, and all others are metadata.
    The fields of a text are joined by line ends.
    """

    id: str | None = None
    text: tuple[str, ...] = ()
    title: str | None = None
    metadata: tuple[str, ...] | None = None

    @classmethod
    def of(cls, id: Any, text: Any, title: Any, metadata: Any) -> DocumentFields:
        """Return the fields that a user names: single names, or for text and metadata several."""
        fields = cls(
            None if id is None else _names("id", id)[0],
            () if text is None else _names("text", text),
            None if title is None else _names("title", title)[0],
            None if metadata is None else _names("metadata", metadata),
        )
        roles = [name for name in (id, title, *fields.text) if name is not None]
        twice = next((name for name in roles if roles.count(name) > 1), None)
        if twice is not None:
            raise InvalidArgumentError(
                f"received the field {short(twice)} for two of id, text and title; name it once."
            )
        return fields

    @property
    def are_named(self) -> bool:
        """Whether any field is named, so that records have to be converted by `select`."""
        return self != DocumentFields()

    @property
    def single_names(self) -> list[str]:
        """All fields that are named."""
        return [name for name in (self.id, *self.text, self.title, *(self.metadata or ())) if name is not None]

    @property
    def text_names(self) -> tuple[str, ...]:
        """The fields of the text."""
        return self.text or ("text",)

    def id_columns(self, names: Iterable[str]) -> list[str]:
        """Those of the columns of a table that are the id."""
        if self.id is not None:
            return [self.id]
        return id_names(names)

    def columns_of(self, names: list[str]) -> list[str]:
        """Those of the columns of a table that are needed."""
        if self.metadata is None:
            return names
        needed = {*self.id_columns(names), *self.text_names, self.title or "title", *self.metadata}
        return [name for name in names if name in needed]

    def taken_of(self, item: Any) -> tuple[str | None, list[str]]:
        """Return the field of the id of a record, and those of its text, title first."""
        if not isinstance(item, Mapping):
            if isinstance(item, str):
                return None, ["each line"]
            return "the first value", ["the second value"]
        title = self.title or "title"
        texts = [title] * bool(item.get(title))
        if not self.text and "text" not in item:
            texts += [name for name in ("contents", "_source", "payload", "add") if name in item][:1]
        else:
            texts += self.text_names
        id = self.id or id_field(item)
        return id and repr(id), [repr(name) for name in texts]

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

    def select(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with the keys ``id``, ``title``, ``text`` and ``metadata``, as `parse_document` takes it."""
        plain = plain_record(item)
        record = {**flat_record(item), **plain}
        for name in (self.id, *self.text):
            if name is not None and name not in record:
                raise InvalidArgumentError(f"it has no field {short(name)}; its fields are {_listed(item)}.")
        selected: dict[str, Any] = {"text": _joined({name: record.get(name) for name in self.text_names})}
        ids = self.id_columns(name for name, value in record.items() if value is not None)
        selected |= {name if self.id is None else "id": record[name] for name in ids if name in record}
        selected["title"] = record.get(self.title or "title")
        if self.metadata is None:
            unnamed: set[str] = set()
            if self.id is None:
                unnamed = {"id", "_id"}
            roles = {*ids, *unnamed, *self.text_names, self.title or "title"}
            used = roles | {name.split(".")[-1] for name in roles - item.keys()} | ({"id", "text"} - item.keys())
            selected["metadata"] = _merged_metadata({name: plain[name] for name in plain if name not in used})
        else:
            names = [name for name in self.metadata if name in record]
            selected["metadata"] = {name if name in item else name.split(".")[-1]: record[name] for name in names}
        return selected

    def checked_records(self, rows: Iterable[Row | Fault], source: str) -> Iterator[Row | Fault]:
        """Yield records, after a check that each named field is in one of the first hundred."""
        remaining = iter(rows)
        first = list(itertools.islice(remaining, _FIRST_RECORDS))
        if first:
            records = [row.values for row in first if isinstance(row, Row) and isinstance(row.values, Mapping)]
            keys = [key for record in records for key in {**plain_record(record), **flat_record(record)}]
            self.check_names(keys, f"{source}: its first records have")
        return itertools.chain(first, remaining)


def flat_record(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the fields inside of its fields beside them: ``_source.body``."""
    nested = [(name, value) for name, value in item.items() if isinstance(value, Mapping)]
    return {**item, **{f"{name}.{inner}": each for name, value in nested for inner, each in flat_record(value).items()}}


def _names(option: str, value: Any) -> tuple[str, ...]:
    names: tuple[Any, ...] = (None,)
    if isinstance(value, str):
        names = (value,)
    elif isinstance(value, Sequence):
        names = tuple(value)
    if not all(isinstance(name, str) and name for name in names):
        raise InvalidArgumentError(f"received {describe(value)} as {option}; expected the name of a field or several.")
    return names


def _joined(parts: Mapping[str, Any]) -> Any:
    """Return the texts of several fields on lines of their own; None and empty ones are left out."""
    parts = {name: joined_text(value) for name, value in parts.items()}
    if len(parts) == 1:
        if (only := next(iter(parts.values()))) is None:
            return ""
        return only
    for name, value in parts.items():
        if not (value is None or isinstance(value, str)):
            raise InvalidArgumentError(f"its field {short(name)} is of type {type(value).__name__}; expected str.")
    return "\n".join(value for value in parts.values() if value)


def _listed(record: Mapping[str, Any]) -> str:
    return cut(", ".join(map(short, record)) or "none", 200)


Pages: TypeAlias = Literal["texts", "images"]


class Reading(NamedTuple):
    """How a file is read: names of fields, encoding and delimiter (None: detected), faulty records, pages."""

    fields: DocumentFields = DocumentFields()
    encoding: str | None = None
    delimiter: str | None = None
    on_problem: OnProblem = "stop"
    pages: Pages = "texts"

    def check_of_text(self, source: str) -> None:
        """Refuse names of fields for a file that is no records."""
        if self.fields.are_named:
            raise InvalidArgumentError(
                f"received names of fields for {source}, which is one text; fields are those of jsonl, csv and parquet."
            )
