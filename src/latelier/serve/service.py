"""`Service`: one index behind a server; its searches go in batches, its writes one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

from latelier.retrieve import Result, Retriever
from latelier.serve.batching import Batcher
from latelier.serve.errors import RequestTimeoutError
from latelier.serve.limits import Limits
from latelier.serve.metrics import Metrics

__all__ = ["SearchAnswer", "SearchCall", "Service"]

T = TypeVar("T")
Work: TypeAlias = "Callable[[], Any]"

# Queries that are encoded and searched together. More would make the first of them wait for the last.
_BATCH_QUERIES = 64
# Clients that were answered together ask again within about this time.
_GATHER_SECONDS = 0.003


@dataclass(frozen=True)
class SearchCall:
    """The queries of one request, and the options that `Retriever.search` takes."""

    queries: Sequence[Any]
    options: dict[str, Any]

    @property
    def key(self) -> str:
        """Equal for calls that one search can answer."""
        return repr((isinstance(self.queries[0], str), sorted(self.options.items())))


@dataclass(frozen=True)
class SearchAnswer:
    """The results of a call, and the milliseconds of each stage of its batch."""

    results: list[list[Result]]
    milliseconds: dict[str, float]


class Service:
    """One index behind a server.

    Searches that wait at the same time are encoded and searched together. Writes wait in a queue of their own, and one
    at a time is encoded and committed, so that an answered write is on disk. Everything else that may take longer, such
    as explaining, has a third queue, so that it delays neither.

    Parameters
    ----------
    name
        Name of the index in addresses.
    retriever
        Searches and fills it.
    limits
        How many calls wait, and for how long.
    metrics
        Where batches and stages are counted.
    """

    def __init__(self, name: str, retriever: Retriever, limits: Limits, metrics: Metrics) -> None:
        self.name, self.retriever = name, retriever
        self._limits, self._metrics, self._stack = limits, metrics, AsyncExitStack()
        self._searches: Batcher[SearchCall, SearchAnswer] = Batcher(
            self._search,
            name=f"search-{name}",
            max_batch=_BATCH_QUERIES,
            max_waiting=limits.waiting_queries,
            gather_seconds=_GATHER_SECONDS,
        )
        self._writes = self._queue("write")
        self._others = self._queue("other")
        metrics.watch(
            name,
            lambda: len(retriever),
            {"searches": lambda: self._searches.waiting, "writes": lambda: self._writes.waiting},
        )

    async def __aenter__(self) -> Service:
        for batcher in (self._searches, self._writes, self._others):
            await self._stack.enter_async_context(batcher)
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Finish what has been accepted."""
        await self._stack.aclose()

    async def search(self, queries: Sequence[Any], options: dict[str, Any]) -> SearchAnswer:
        """Search one or several queries with the same options.

        Parameters
        ----------
        queries
            Texts, or matrices of token vectors.
        options
            The arguments of `Retriever.search`.

        Raises
        ------
        QueueFullError
            If too many queries wait.
        RequestTimeoutError
            If the search takes too long.
        LatelierError
            If the search fails.
        """
        return await self._within(self._searches.submit(SearchCall(queries, options), len(queries)))

    async def write(self, change: Callable[[Retriever], T]) -> T:
        """Call a function that changes the index, after those that wait already; it has committed when this returns."""
        return await self._within(self._writes.submit(lambda: change(self.retriever)))

    async def ask(self, question: Callable[[Retriever], T]) -> T:
        """Call a function that reads the index, in a thread."""
        return await self._within(self._others.submit(lambda: question(self.retriever)))

    async def _within(self, answer: Any) -> Any:
        try:
            return await asyncio.wait_for(answer, self._limits.seconds)
        except asyncio.TimeoutError:
            raise RequestTimeoutError(
                f"the request took longer than {self._limits.seconds} seconds. A change that had begun is still made."
            ) from None

    def _queue(self, kind: str) -> Batcher[Work, Any]:
        name, waiting = f"{kind}-{self.name}", self._limits.waiting_writes
        return Batcher(lambda works: [work() for work in works], name=name, max_batch=1, max_waiting=waiting)

    def _search(self, calls: list[SearchCall]) -> list[SearchAnswer | Exception]:
        """Answer a batch of calls: one search for all calls with the same options."""
        groups: dict[str, list[int]] = {}
        for i, call in enumerate(calls):
            groups.setdefault(call.key, []).append(i)
        answers: dict[int, SearchAnswer | Exception] = {}
        self._metrics.batch(self.name, sum(len(call.queries) for call in calls))
        for members in groups.values():
            queries = [query for i in members for query in calls[i].queries]
            try:
                found = self._search_together(queries, calls[members[0]].options)
            except Exception as error:  # noqa: BLE001 (each call of the group raises it)
                answers.update(dict.fromkeys(members, error))
                continue
            rows = iter(found.results)
            for i in members:
                answers[i] = SearchAnswer([next(rows) for _ in calls[i].queries], found.milliseconds)
        return [answers[i] for i in range(len(calls))]

    def _search_together(self, queries: list[Any], options: dict[str, Any]) -> SearchAnswer:
        begin = perf_counter()
        find = self.retriever.search if isinstance(queries[0], str) else self._search_by_vectors
        with self._metrics.stage(self.name, "search"):
            results = find(queries, **options)
        return SearchAnswer(results, {"search": round(1e3 * (perf_counter() - begin), 3)})

    def _search_by_vectors(self, queries: list[Any], **options: Any) -> list[list[Result]]:
        index = self.retriever.index
        with index.snapshot():  # no document is removed between the search and the reading of its text
            hits = index.search(queries, **options)
            records = {record.id: record for record in index.get({hit.id for found in hits for hit in found})}
        return [
            [Result(hit.id, hit.score, records[hit.id].text, records[hit.id].metadata) for hit in found]
            for found in hits
        ]
