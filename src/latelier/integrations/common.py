"""Opening, searching, options."""

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

__all__ = [
    "END_KEY",
    "ID_KEY",
    "SCORE_KEY",
    "START_KEY",
    "OpenedRetriever",
    "RerankingModel",
    "SharedFolder",
    "add_filter",
    "check_ids",
    "find_documents",
    "merge_search_options",
    "place_metadata",
    "result_text",
]

# Keys of their own, so that metadata such as {"id": ..., "score": ...} stays as it is stored.
ID_KEY, SCORE_KEY, START_KEY, END_KEY = "latelier_id", "latelier_score", "latelier_start", "latelier_end"
_KEYS = (ID_KEY, SCORE_KEY, START_KEY, END_KEY)


def find_documents(retriever: Retriever, query: str, **options: Any) -> Sequence[Result]:
    """Search for one query, whose documents are to have ids that differ as str.

    `query`: one query: frameworks do not check that it is a text; `**options`: arguments of
    `latelier.retrieve.Retriever.search`.

    Examples
    --------
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add([("a", "Bananas."), ("b", "The moon.")])
    >>> [found] = find_documents(retriever, "fruit", k=1)
    >>> found.id
    'a'
    """
    if not isinstance(query, str):
        raise InvalidArgumentError(f"received {describe(query)} as the query; expected one text.")
    results = retriever.search(query, **options)
    check_ids(results)
    return results


def place_metadata(result: Result) -> dict[str, Any]:
    """Return a document's metadata, with its exact id and the place of its passage.

    Returns: the stored metadata; ``latelier_id``, an int or a str, while ids of other packages are str; and of a
    passage ``latelier_start`` and ``latelier_end``, in characters. Stored values of these keys and of
    ``latelier_score`` are left out: they are of an earlier search, whose documents were indexed with all their
    metadata.

    Examples
    --------
    >>> place_metadata(Result(7, 1.5, "Bananas.", {"id": "x"}, 10, 18))
    {'id': 'x', 'latelier_id': 7, 'latelier_start': 10, 'latelier_end': 18}
    """
    place = {} if result.start is None else {START_KEY: result.start, END_KEY: result.end}
    stored = {key: value for key, value in result.metadata.items() if key not in _KEYS}
    return {**stored, ID_KEY: result.id, **place}


def result_text(result: Result) -> str:
    """Return the text of a document.

    Raises `LatelierError` if the index has no text of it.

    Examples
    --------
    >>> result_text(Result("a", 1.5, None, {}))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    latelier.errors.LatelierError: the document 'a' was stored without its text; ...
    """
    if result.text is None:
        raise LatelierError(
            f"the document {result.id!r} was stored without its text; store it with its text, as Retriever.update does."
        )
    return result.text


def check_ids(results: Sequence[Result]) -> None:
    """Check that the ids of documents differ as str, which is what other packages compare.

    Examples
    --------
    >>> results = [Result(id, 1.5, "Pears.", {}) for id in (7, "7")]
    >>> check_ids(results)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: the query finds documents with the ids 7 and '7', ...
    """
    seen: dict[str, Any] = {}
    for result in results:
        other = seen.setdefault(str(result.id), result.id)
        if other != result.id:
            raise InvalidArgumentError(
                f"the query finds documents with the ids {other!r} and {result.id!r}, which are one id here, where ids "
                "are str; use other ids."
            )


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

        Parameters
        ----------
        path, model, device, backend
            As for `Retriever.open`.
        **options
            The other arguments of this class.

        Returns
        -------
        LangChainRetriever or LlamaIndexRetriever
            Ready to search.

        Raises
        ------
        LatelierError
            As `Retriever.open` does.
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
    """What a user gives as the model of a reranker. A copy loads its own, also one of `pickle`.

    `model`, `device`, `options`: as for `latelier.retrieve.model.given_model`.

    Examples
    --------
    >>> import copy
    >>> model = RerankingModel("all-MiniLM-L6-v2", "cpu", None)
    >>> copy.deepcopy(model).loaded is model.loaded
    False
    """

    def __init__(self, model: Any, device: str | None, options: dict[str, Any] | None) -> None:
        self._given = model, device, options
        self._lock = threading.Lock()
        self._loaded: QueryModel | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RerankingModel, self._given

    @property
    def loaded(self) -> QueryModel:
        """The model, loaded on first use; errors are those of `latelier.retrieve.model.given_model`."""
        with self._lock:
            if self._loaded is None:
                self._loaded = given_model(*self._given)
            return self._loaded


def merge_search_options(*levels: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge arguments of `latelier.retrieve.Retriever.search`; later ones replace earlier ones.

    `*levels`: from general to special; None has no arguments. A ``filter`` comes with its own ``parameters``.

    Examples
    --------
    >>> own = {"k": 5, "filter": "year > ?", "parameters": (2020,)}
    >>> merge_search_options(own, {"k": 3})
    {'k': 3, 'filter': 'year > ?', 'parameters': (2020,)}
    >>> merge_search_options(own, {"filter": "lang = 'en'"})
    {'k': 5, 'filter': "lang = 'en'"}
    """
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
    """Add a condition to the filter of a search, so that both have to hold.

    `options`: arguments of `latelier.retrieve.Retriever.search`; returns: the arguments.

    Examples
    --------
    >>> own = {"filter": "year > ?", "parameters": (2020,)}
    >>> add_filter(own, SqlCondition("lang = ?", ("en",)))
    {'filter': ['year > ?', 'lang = ?'], 'parameters': (2020, 'en')}
    """
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
    """A folder that a `Retriever` has filled, which several threads search. A copy opens it by itself.

    `options`: arguments of `Retriever.open`.
    """

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self._given = path, options
        self._changed = threading.Condition()
        self._retriever: Retriever | None = None
        self._running: Counter[Retriever] = Counter()

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedFolder, self._given

    @contextmanager
    def opened(self) -> Iterator[Retriever]:
        """Return the retriever, which stays open within the ``with`` block.

        Raises `LatelierError`: as `Retriever.open` does.
        """
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
