"""`HaystackRetriever` and `HaystackRanker`: search and reranking as components of Haystack pipelines.

Needs the extra ``haystack``, which installs haystack-ai.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timezone
from os import PathLike, fspath
from typing import Any, Literal

from latelier.errors import InvalidArgumentError
from latelier.integrations.common import (
    RerankingModel,
    SharedFolder,
    SqlCondition,
    add_filter,
    combine,
    equals,
    find_documents,
    in_order,
    merge_search_options,
    metadata_field,
    negate,
    one_of,
    place_metadata,
)
from latelier.retrieve import Retriever
from latelier.retrieve.retriever import rank_texts
from latelier.utils.checks import check_count, describe
from latelier.utils.misc import needs_extra
from latelier.utils.values import INT64

with needs_extra("Searching from Haystack", "haystack"):
    from haystack import Document, component, default_to_dict
    from haystack.core.errors import SerializationError
    from haystack.document_stores.types import FilterPolicy, apply_filter_policy
    from haystack.errors import FilterError


@component
class HaystackRetriever:
    """A `latelier.retrieve.Retriever`, or the folder that one has filled, as a retriever component of Haystack.

    Each document has the text, the stored metadata, the score, and the id as str. Its metadata also has
    ``latelier_id``, the exact id, and in an index of passages ``latelier_start`` and ``latelier_end``, the place of the
    best passage in the text.

    Parameters
    ----------
    retriever
        Searches; whoever opened it closes it. Or a folder, which `warm_up` or the first search opens for reading, and
        `close` closes; a component with a folder can be serialised and copied.
    model, device, backend
        For a folder, as for `Retriever.open`.
    top_k
        Maximum number of documents.
    filters
        Filters on the metadata, in the form of Haystack's document stores.
    filter_policy
        Whether the filters of a run replace these or are merged with them.
    search_options
        Further arguments of `Retriever.search`: ``mode``, ``filter`` in SQL, ``parameters``, ``effort``, ... Documents
        have to pass both filters.

    Raises
    ------
    InvalidArgumentError
        If an argument has the wrong type or value.

    Examples
    --------
    >>> from latelier.retrieve import Retriever
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add([{"id": "a", "text": "Bananas.", "year": 2024}])
    >>> fruit = HaystackRetriever(retriever, top_k=3)
    >>> recent = {"field": "meta.year", "operator": ">", "value": 2020}
    >>> [document] = fruit.run("fruit", filters=recent)["documents"]
    >>> document.id, document.content
    ('a', 'Bananas.')
    """

    def __init__(
        self,
        retriever: Retriever | str | PathLike[str],
        *,
        model: str | None = None,
        device: str | None = None,
        backend: Literal["auto", "onnx", "torch"] = "auto",
        top_k: int = 10,
        filters: dict[str, Any] | None = None,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
        search_options: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(retriever, Retriever) and (model, device, backend) != (None, None, "auto"):
            raise InvalidArgumentError("model, device and backend are for a folder, not for an open Retriever.")
        self.top_k = check_count("top_k", top_k)
        self.filters = filters
        if isinstance(filter_policy, str):
            self.filter_policy = FilterPolicy.from_str(filter_policy)
        else:
            self.filter_policy = filter_policy
        self.search_options = merge_search_options(search_options)
        self._options = {"model": model, "device": device, "backend": backend}
        if isinstance(retriever, Retriever):
            self._path = None
        else:
            self._path = fspath(retriever)
        if self._path is None:
            self._searched: Any = retriever
        else:
            self._searched = SharedFolder(self._path, self._options)

    def warm_up(self) -> None:
        """Open the folder and its model, unless that is done; errors are those of `Retriever.open`."""
        self._opened()

    def close(self) -> None:
        """Close the folder, after the searches in it; the next `warm_up` or search opens it again.

        A retriever that was given stays open.
        """
        if self._path is not None:
            self._searched.close()

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of the component, as Haystack saves pipelines; it needs a folder for that."""
        if self._path is None:
            raise SerializationError(
                "HaystackRetriever was given an open Retriever, which cannot be serialised; give its folder."
            )
        return default_to_dict(
            self,
            retriever=self._path,
            **self._options,
            top_k=self.top_k,
            filters=self.filters,
            filter_policy=self.filter_policy.value,
            search_options=self.search_options,
        )

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        search_options: dict[str, Any] | None = None,
    ) -> dict[str, list[Document]]:
        """Find the best documents for a query.

        Parameters
        ----------
        query
            One query.
        filters, top_k, search_options
            Instead of those of the component; filters by its `filter_policy`, and of `search_options` each by itself.

        Returns
        -------
        dict
            ``documents``, best first.

        Raises
        ------
        haystack.errors.FilterError
            If the filters are malformed.
        LatelierError
            As `Retriever.search` does.
        """
        wanted = apply_filter_policy(self.filter_policy, self.filters, filters)
        count = {"k": self.top_k if top_k is None else check_count("top_k", top_k)}
        options = merge_search_options(count, self.search_options, search_options)
        retriever = self._opened()
        options = add_filter(options, haystack_filter(wanted) if wanted else None)
        results = find_documents(retriever, query, **options)
        documents = [
            Document(id=str(result.id), content=result.text, meta=place_metadata(result), score=result.score)
            for result in results
        ]
        return {"documents": documents}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        search_options: dict[str, Any] | None = None,
    ) -> dict[str, list[Document]]:
        """Do as `run` does, in a thread; the event loop goes on meanwhile.

        Parameters
        ----------
        query, filters, top_k, search_options
            As in `run`.

        Returns
        -------
        dict
            As of `run`.
        """
        found: dict[str, list[Document]] = await asyncio.to_thread(self.run, query, filters, top_k, search_options)
        return found

    def _opened(self) -> Retriever:
        if self._path is None:
            return self._searched
        return self._searched.opened()


@component
class HaystackRanker:
    """Orders documents of any retriever by MaxSim, as a ranker component of Haystack.

    The documents that come out are copies with the new score.

    Parameters
    ----------
    model
        A name or folder for `latelier.models.load`, or the folder of an exported encoder, which `warm_up` or the first
        run loads; None for all-MiniLM-L6-v2. Or a `latelier.models.ColBERT`, such as ``retriever.model``, with which
        the component cannot be serialised.
    device, model_options
        For a model given by name, as for `latelier.retrieve.Retriever`.
    top_k
        Maximum number of documents; None: all.

    Raises
    ------
    InvalidArgumentError
        If an argument has the wrong type or value, or a document has no text.

    Examples
    --------
    >>> from haystack import Document
    >>> texts = ["The moon is far.", "Bananas are healthy."]
    >>> documents = [Document(content=text) for text in texts]
    >>> ranker = HaystackRanker(device="cpu", top_k=1)
    >>> [best] = ranker.run("fruit", documents)["documents"]
    >>> best.content
    'Bananas are healthy.'
    """

    def __init__(
        self,
        model: Any = None,
        *,
        device: str | None = None,
        model_options: Mapping[str, Any] | None = None,
        top_k: int | None = None,
    ) -> None:
        self.top_k = check_count("top_k", top_k, optional=True)
        self._model = model
        self._device = device
        if model_options is None:
            self._model_options = None
        else:
            self._model_options = dict(model_options)
        self._encoder = RerankingModel(model, device, self._model_options)

    def warm_up(self) -> None:
        """Load the model, unless that is done."""
        _ = self._encoder.loaded

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of the component, as Haystack saves pipelines; it needs a name of its model for that."""
        if not isinstance(self._model, (str, PathLike, type(None))):
            raise SerializationError(
                f"HaystackRanker was given a {type(self._model).__name__}, which cannot be serialised; give its name "
                "or its folder."
            )
        if self._model is None:
            name = None
        else:
            name = fspath(self._model)
        options = {"device": self._device, "model_options": self._model_options, "top_k": self.top_k}
        return default_to_dict(self, model=name, **options)

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """Order documents by their score for a query.

        Parameters
        ----------
        query
            One query.
        documents
            The documents.
        top_k
            Instead of that of the component.

        Returns
        -------
        dict
            ``documents``, best first; equal scores in the order of `documents`.
        """
        texts: list[Any] = [document.content for document in documents]
        ranked = rank_texts(self._encoder.loaded, query, texts, self.top_k if top_k is None else top_k)
        return {"documents": [replace(documents[int(hit.id)], score=hit.score) for hit in ranked]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Do as `run` does, in a thread; the event loop goes on meanwhile.

        Parameters
        ----------
        query, documents, top_k
            As in `run`.

        Returns
        -------
        dict
            As of `run`.
        """
        ranked: dict[str, list[Document]] = await asyncio.to_thread(self.run, query, documents, top_k)
        return ranked


_ID = SqlCondition("id")
_INTEGER = re.compile("0|-?[1-9][0-9]*")
_COMPARISONS = ("==", "!=", ">", ">=", "<", "<=", "in", "not in")


def haystack_filter(filters: Mapping[str, Any]) -> SqlCondition:
    """Translate filters: a comparison, ``{"field", "operator", "value"}``, or ``{"operator", "conditions"}``.

    Dates, datetimes and texts that `datetime.fromisoformat` reads are compared as points in time, in UTC where they
    name no time zone. Ids are str in Haystack: ``"7"`` is also the document 7. Documents without the field of a
    comparison fulfil ``!=`` and ``not in`` only.
    """
    if "field" in filters:
        return _comparison(filters)
    return _operation(filters)


def _operation(filters: Mapping[str, Any]) -> SqlCondition:
    _require(filters, "operator", "conditions")
    operator = filters["operator"]
    given = filters["conditions"]
    if operator not in ("AND", "OR", "NOT"):
        raise FilterError(f"received the operator {describe(operator)}; expected 'AND', 'OR' or 'NOT'.")
    if not isinstance(given, (list, tuple)) or not given:
        raise FilterError(f"received {describe(given)} as conditions; expected a list that is not empty.")
    conditions = [haystack_filter(condition) for condition in given]
    combined = combine("OR" if operator == "OR" else "AND", conditions)
    if operator == "NOT":
        return negate(combined)
    return combined


def _require(filters: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if key not in filters:
            raise FilterError(f"'{key}' key missing in {describe(filters)}; a comparison needs 'field' too.")


def _comparison(filters: Mapping[str, Any]) -> SqlCondition:
    _require(filters, "operator", "value")
    operator = filters["operator"]
    value = filters["value"]
    if operator not in _COMPARISONS:
        raise FilterError(f"received the operator {describe(operator)}; expected one of {', '.join(_COMPARISONS)}.")
    field = _field(filters["field"])
    if operator in ("in", "not in") and not isinstance(value, list):
        raise FilterError(f"received {describe(value)} as the value of '{operator}'; expected a list.")
    if operator in ("in", "not in", "==", "!="):
        found = _one_of(field, value if isinstance(value, list) and "in" in operator else [value])
        if operator in ("not in", "!="):
            return negate(found)
        return found
    return _in_order(field, operator, value)


def _field(name: str) -> SqlCondition:
    if name == "id":
        return _ID
    if name == "content":
        return SqlCondition("text")
    # As in Haystack, names without "meta." are metadata keys too.
    return metadata_field(*name.removeprefix("meta.").split("."))


def _one_of(field: SqlCondition, values: list[Any]) -> SqlCondition:
    plain = [value.isoformat() if isinstance(value, date) else value for value in values]
    if field == _ID:
        plain += [int(value) for value in plain if _spells_integer(value)]
    if len(plain) == 1:
        found = equals(field, plain[0])
    else:
        found = one_of(field, plain)
    times = [time for time in map(_utc_time, values) if time is not None]
    if not times:
        return found
    listed = ", ".join(["julianday(?)"] * len(times))
    return combine("OR", [found, _compare_times(field, f"IN ({listed})", times)])


def _spells_integer(id: Any) -> bool:
    """Whether an id of Haystack is that of a document with an int as its id."""
    # Python does not convert integers of thousands of digits, and an index has none beyond 64 bits.
    return isinstance(id, str) and len(id) <= 20 and bool(_INTEGER.fullmatch(id)) and int(id) in INT64


def _in_order(field: SqlCondition, operator: Any, value: Any) -> SqlCondition:
    if value is None:
        return SqlCondition("0")  # nothing is above or below None
    time = _utc_time(value)
    if time is not None:
        return _compare_times(field, f"{operator} julianday(?)", [time])
    if not isinstance(value, (int, float)):
        raise FilterError(f"received {describe(value)} for '{operator}'; expected a number or an ISO 8601 date.")
    return in_order(field, operator, value)


def _compare_times(field: SqlCondition, comparison: str, times: list[str]) -> SqlCondition:
    """Return whether a field is a text of a date that SQLite reads, and the comparison holds for its point in time."""
    # SQLite also reads numbers, 'now', a time of day alone and 31 February: none of them is the day that it is read as.
    day = f"substr({field.sql}, 1, 10)"
    is_date = f"date({day}, '+0 days') = {day}"
    return SqlCondition(f"({is_date} AND julianday({field.sql}) {comparison})", (*field.parameters * 3, *times))


def _utc_time(value: Any) -> str | None:
    """Return a date, or a text of one, in the form that SQLite reads; None for other values."""
    if isinstance(value, date):
        text = value.isoformat()
    elif isinstance(value, str) and value[:4].isdigit() and value[4:5] == "-":
        text = value.replace("Z", "+00:00")  # Python 3.10 does not read Z
    else:
        return None
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo:
            aware = time
        else:
            aware = time.replace(tzinfo=timezone.utc)
        return aware.astimezone(timezone.utc).isoformat()
    except (ValueError, OverflowError):  # the first or last day that Python knows may have no time in UTC
        return None
