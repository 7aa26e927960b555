"""What the adapters share: opening, searching, ids and metadata of results, options."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.integrations.conditions import SqlCondition
from latelier.retrieve import Result, Retriever
from latelier.retrieve.model import QueryModel, given_model
from latelier.utils.checks import describe

if TYPE_CHECKING:
    from typing_extensions import Self


# Keys of their own, so that metadata such as {"id": ..., "score": ...} stays as it is stored.
ID_KEY, SCORE_KEY, START_KEY, END_KEY = "latelier_id", "latelier_score", "latelier_start", "latelier_end"
_KEYS = (ID_KEY, SCORE_KEY, START_KEY, END_KEY)


def find_documents(retriever: Retriever, query: str, **options: Any) -> Sequence[Result]:
    """Search for one query, whose documents have to have ids that differ as str; frameworks do not check its type."""
    if not isinstance(query, str):
        raise InvalidArgumentError(f"received {describe(query)} as the query; expected one text.")
    results = retriever.search(query, **options)
    seen: dict[str, Any] = {}
    for result in results:
        other = seen.setdefault(str(result.id), result.id)
        if other != result.id:
            raise InvalidArgumentError(
                f"the query finds documents with the ids {other!r} and {result.id!r}, which are one id here, where ids "
                "are str; use other ids."
            )
    return results


def place_metadata(result: Result) -> dict[str, Any]:
    """Return a document's metadata, with ``latelier_id``, its exact id, and of a passage its place, in characters.

    Stored values of these keys and of the score are left out: they are of an earlier search, whose documents were
    indexed with all their metadata.
    """
    place = {} if result.start is None else {START_KEY: result.start, END_KEY: result.end}
    stored = {key: value for key, value in result.metadata.items() if key not in _KEYS}
    return {**stored, ID_KEY: result.id, **place}


def result_text(result: Result) -> str:
    """Return the text of a document; raise `LatelierError` if the index has none of it."""
    if result.text is None:
        raise LatelierError(
            f"the document {result.id!r} was stored without its text; store it with its text, as Retriever.update does."
        )
    return result.text


class OpenedRetriever:
    """A part of classes that are constructed with a `Retriever`, as their argument and attribute ``retriever``."""

    if TYPE_CHECKING:  # an annotation of the class itself would be a field of pydantic's models
        retriever: Retriever

    # What `open` returned, and not a copy of it, closes the retriever. A model of pydantic accepts such an attribute if
    # its name begins with "_".
    _opened: weakref.ref[Self] | None = None

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
        retriever._opened = weakref.ref(retriever)
        return retriever

    def close(self) -> None:
        """Close the index that `open` has opened; a retriever that was given stays open, as does that of a copy."""
        if self._opened is None:
            return
        opened = self._opened()
        if opened is None or opened is self:  # None: only copies are left
            self.retriever.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class RerankingModel:
    """The model of a reranker, given as for `given_model`; a copy, also one by pickle, loads its own."""

    def __init__(self, model: Any, device: str | None, options: dict[str, Any] | None) -> None:
        self._given = model, device, options
        self._lock = threading.Lock()
        self._loaded: QueryModel | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RerankingModel, self._given

    @property
    def loaded(self) -> QueryModel:
        """The model, loaded on first use."""
        with self._lock:
            if self._loaded is None:
                self._loaded = given_model(*self._given)
            return self._loaded


def merge_search_options(*levels: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge keywords of `Retriever.search`, from general to special; a ``filter`` comes with its own ``parameters``."""
    merged: dict[str, Any] = {}
    for level in levels:
        if not isinstance(level, (Mapping, type(None))):
            raise InvalidArgumentError(
                f"received {describe(level)} as search options; expected a dict of arguments of Retriever.search."
            )
        given = level or {}
        if "filter" in given:
            merged.pop("parameters", None)
        merged.update(given)
    return merged


def add_filter(options: Mapping[str, Any], condition: SqlCondition | None) -> dict[str, Any]:
    """Add a condition to the filter in keywords of `Retriever.search`, so that both have to hold."""
    if condition is None:
        return dict(options)
    filters, parameters = options.get("filter"), options.get("parameters", ())
    if isinstance(parameters, Mapping):
        raise InvalidArgumentError(
            f"received filters, and search options with the named parameters {', '.join(map(repr, parameters))}; give "
            "the values of ? in a tuple."
        )
    both = [] if filters is None else [filters] if isinstance(filters, str) else list(filters)
    return {**options, "filter": [*both, condition.sql], "parameters": (*parameters, *condition.parameters)}


class SharedFolder:
    """A folder that a `Retriever` has filled, which several threads search; a copy opens it by itself."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self._given = path, options
        self._changed = threading.Condition()
        self._retriever: Retriever | None = None
        self._running: Counter[Retriever] = Counter()

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedFolder, self._given

    @contextmanager
    def opened(self) -> Iterator[Retriever]:
        """Return the retriever, which stays open within the ``with`` block."""
        with self._changed:
            if self._retriever is None:
                path, options = self._given
                self._retriever = Retriever.open(path, read_only=True, **options)
            retriever = self._retriever
            self._running[retriever] += 1
        try:
            yield retriever
        finally:
            with self._changed:
                self._running[retriever] -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Close the folder when the blocks that use it have ended; a block that begins meanwhile opens it again."""
        with self._changed:
            retriever, self._retriever = self._retriever, None
            if retriever is None:
                return
            try:
                self._changed.wait_for(lambda: not self._running[retriever])
            finally:
                del self._running[retriever]
                retriever.close()
