"""What the integrations share: opening, searching, and frameworks' filters as SQL.

SQL has a third truth value, NULL, where a document lacks a field. Other packages have two, so `negate` counts NULL as
false first; in the other conditions NULL has the same effect as false.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes.fields import RESERVED, fold_name
from latelier.retrieve import Result, Retriever
from latelier.retrieve.choice import Asked
from latelier.retrieve.query_model import QueryModel, open_model
from latelier.utils.misc import Closing
from latelier.utils.values import dump_json

if TYPE_CHECKING:
    from typing_extensions import Self


class SqlCondition(NamedTuple):
    """An SQL expression and the values of its ``?``, as `Retriever.search` takes them: ``"year" = ?``, ``(2024,)``."""

    sql: str
    parameters: tuple[Any, ...] = ()


def metadata_field(*keys: str) -> SqlCondition:
    """Return a metadata value by its key, or by the keys of nested dicts."""
    if len(keys) == 1 and fold_name(keys[0]) not in RESERVED:
        return SqlCondition('"' + keys[0].replace('"', '""') + '"')
    # The columns of these names hold the id, the text and all of the metadata.
    return SqlCondition("json_extract(metadata, ?)", ("$" + "".join(f'."{key}"' for key in keys),))


def equals(field: SqlCondition, value: Any) -> SqlCondition:
    """Return whether a field has a value: a number, text, bool, list or dict; None: whether it is missing or null."""
    if value is None:
        return SqlCondition(f"{field.sql} IS NULL", field.parameters)
    # A list is stored as JSON text.
    if isinstance(value, (list, tuple, dict)):
        plain = dump_json(value)
    else:
        plain = value
    return SqlCondition(f"{field.sql} = ?", (*field.parameters, plain))


def in_order(field: SqlCondition, operator: Literal["<", "<=", ">", ">="], value: float | str) -> SqlCondition:
    """Return whether a field is of the type of a value, number or text, and below or above it.

    Without the check of the type, SQL would have every text above every number.
    """
    if isinstance(value, str):
        types = "'text'"
    else:
        types = "'integer', 'real'"
    twice = (*field.parameters, *field.parameters)
    return SqlCondition(f"(typeof({field.sql}) IN ({types}) AND {field.sql} {operator} ?)", (*twice, value))


def one_of(field: SqlCondition, values: Sequence[Any]) -> SqlCondition:
    """Return whether a field has one of some values, as of `equals`."""
    plain = [dump_json(value) if isinstance(value, (list, tuple, dict)) else value for value in values]
    given = [value for value in plain if value is not None]
    listed = SqlCondition(f"{field.sql} IN ({', '.join('?' * len(given))})", (*field.parameters, *given))
    if len(given) == len(plain):
        return listed
    return combine("OR", [listed, equals(field, None)])


def holds_element(field: SqlCondition, value: Any) -> SqlCondition:
    """Return whether a list holds a value, or a text holds a part."""
    sql, given = field
    is_list = f"iif(json_valid({sql}), {sql} GLOB '[[]*', 0)"
    inside = SqlCondition(
        f"EXISTS (SELECT 1 FROM json_each(iif({is_list}, {sql}, '[]')) WHERE value = ?)", (*given * 3, value)
    )
    if not isinstance(value, str):
        return inside
    part = SqlCondition(f"(typeof({sql}) = 'text' AND NOT {is_list} AND instr({sql}, ?) > 0)", (*given * 4, value))
    return combine("OR", [inside, part])


def is_empty(field: SqlCondition) -> SqlCondition:
    """Return whether a field is missing, null, an empty text or an empty list."""
    return SqlCondition(f"ifnull({field.sql}, '') IN ('', '[]')", field.parameters)


def combine(operator: Literal["AND", "OR"], conditions: Sequence[SqlCondition]) -> SqlCondition:
    """Return whether all conditions hold, or one does."""
    if len(conditions) == 1:
        return conditions[0]
    parameters = tuple(value for condition in conditions for value in condition.parameters)
    return SqlCondition(f"({f' {operator} '.join(condition.sql for condition in conditions)})", parameters)


def negate(condition: SqlCondition) -> SqlCondition:
    """Return whether a condition does not hold, which includes documents without its field."""
    return SqlCondition(f"(ifnull({condition.sql}, 0) = 0)", condition.parameters)


# Keys of their own, so that metadata such as {"id": ..., "score": ...} stays as it is stored.
ID_KEY = "latelier_id"
SCORE_KEY = "latelier_score"
START_KEY = "latelier_start"
END_KEY = "latelier_end"
_KEYS = (ID_KEY, SCORE_KEY, START_KEY, END_KEY)


def find_documents(retriever: Retriever, query: str, **options: Any) -> Sequence[Result]:
    """Search for one query, whose documents have to have ids that differ as str."""
    results = retriever.search(query, **options)
    check_text_ids(results)
    return results


def check_text_ids(results: Sequence[Result]) -> None:
    """Check that the ids of results differ as str."""
    seen: dict[str, Any] = {}
    for result in results:
        other = seen.setdefault(str(result.id), result.id)
        if other != result.id:
            raise InvalidArgumentError(
                f"the query finds documents with the ids {other!r} and {result.id!r}, which are one id here, where ids "
                "are str; use other ids."
            )


def place_metadata(result: Result) -> dict[str, Any]:
    """Return a document's metadata, with ``latelier_id``, its exact id, and of a passage its place, in characters.

    Stored values of these keys and of the score are left out: they are of an earlier search, whose documents were
    indexed with all their metadata.
    """
    if result.start is None:
        place = {}
    else:
        place = {START_KEY: result.start, END_KEY: result.end}
    stored = {key: value for key, value in result.metadata.items() if key not in _KEYS}
    return {**stored, ID_KEY: result.id, **place}


def result_text(result: Result) -> str:
    """Return the text of a document; raise `LatelierError` if the index has none of it."""
    if result.text is None:
        raise LatelierError(
            f"the document {result.id!r} was stored without its text; store it with its text, as Retriever.update does."
        )
    return result.text


class OpenedRetriever(Closing):
    """A part of classes that are constructed with a `Retriever`, as their argument and attribute ``retriever``."""

    if TYPE_CHECKING:  # an annotation of the class itself would be a field of pydantic's models
        retriever: Retriever

    _is_own: bool = False  # whether `open` has opened the retriever

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        model: str | PathLike[str] | None = None,
        device: str | None = None,
        backend: Literal["auto", "onnx", "torch"] = "auto",
        **options: Any,
    ) -> Self:
        """Open a folder that a `Retriever` has filled, for reading; `close` or a ``with`` block closes it.

        `path`, `model`, `device` and `backend` are as for `Retriever.open`, `**options` the other arguments of this
        class.
        """
        opened = Retriever.open(path, model=model, device=device, backend=backend, read_only=True)
        try:
            retriever = cls(retriever=opened, **options)  # type: ignore[call-arg]
        except BaseException:
            opened.close()
            raise
        retriever._is_own = True
        return retriever

    def close(self) -> None:
        """Close the index that `open` has opened; a retriever that was given stays open."""
        if self._is_own:
            self.retriever.close()


class RerankingModel:
    """The model of a reranker, given as for `Retriever`; a copy, also one by pickle, loads its own."""

    def __init__(self, model: Any, device: str | None, options: dict[str, Any] | None) -> None:
        self._given = model, device, options

    def __reduce__(self) -> tuple[Any, ...]:
        return RerankingModel, self._given

    @cached_property
    def loaded(self) -> QueryModel:
        """The model, loaded on first use."""
        model, device, options = self._given
        return open_model(Asked(model, options or {}, device))


def merge_search_options(*levels: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge keywords of `Retriever.search`, from general to special; a ``filter`` comes with its own ``parameters``."""
    merged: dict[str, Any] = {}
    for level in levels:
        given = level or {}
        if "filter" in given:
            merged.pop("parameters", None)
        merged.update(given)
    return merged


def add_filter(options: Mapping[str, Any], condition: SqlCondition | None) -> dict[str, Any]:
    """Add a condition to the filter in keywords of `Retriever.search`, so that both have to hold."""
    if condition is None:
        return dict(options)
    filters = options.get("filter")
    parameters = options.get("parameters", ())
    if isinstance(parameters, Mapping):
        raise InvalidArgumentError(
            f"received filters, and search options with the named parameters {', '.join(map(repr, parameters))}; give "
            "the values of ? in a tuple."
        )
    if filters is None:
        both = []
    elif isinstance(filters, str):
        both = [filters]
    else:
        both = list(filters)
    return {**options, "filter": [*both, condition.sql], "parameters": (*parameters, *condition.parameters)}


class SharedFolder:
    """A folder that a `Retriever` has filled, opened on first use; a copy opens it by itself."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self._given = path, options
        self._lock = threading.Lock()
        self._retriever: Retriever | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedFolder, self._given

    def opened(self) -> Retriever:
        """Return the retriever, for reading."""
        with self._lock:
            if self._retriever is None:
                path, options = self._given
                self._retriever = Retriever.open(path, read_only=True, **options)
            return self._retriever

    def close(self) -> None:
        """Close the folder; the next use opens it again."""
        with self._lock:
            if self._retriever is not None:
                self._retriever.close()
            self._retriever = None
