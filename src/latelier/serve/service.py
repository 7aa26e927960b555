"""`Service`: one index behind a server; its searches go in batches, its writes one after the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from latelier.errors import CorruptedIndexError, StorageError
from latelier.indexes import Hit
from latelier.kernels.threads import limited_threads, thread_count
from latelier.retrieve import Result, Retriever
from latelier.retrieve.searching import Search, find_batch
from latelier.serve.batching import Batcher
from latelier.serve.errors import QueueFullError, RequestTimeoutError
from latelier.serve.limits import Limits
from latelier.serve.metrics import Metrics
from latelier.serve.request_time import seconds_left

__all__ = ["SearchAnswer", "Service"]

T = TypeVar("T")
Work: TypeAlias = "Callable[[], Any]"

# Queries that are encoded and searched together. More would make the first of them wait for the last.
_BATCH_QUERIES = 32
# Clients that were answered together ask again within about this time.
_GATHER_SECONDS = 0.003
# Texts that are ranked before it is looked whether anybody waits for the ranking still: about a batch of the model.
_RANKED_TEXTS = 32


@dataclass(frozen=True)
class SearchAnswer:
    """The results of each query of a search, and the milliseconds that its stages took."""

    results: list[list[Result]]
    milliseconds: dict[str, float]


class _Call(NamedTuple):
    search: Search
    arrived: float


class Service:
    """One index behind a server.

    Searches that wait at the same time are encoded and searched together. Writes wait in a queue of their own, and one
    at a time is encoded and committed, so that an answered write is on disk. Look-ups have a third queue, and rankings
    of texts that are in no index a fourth. Everything else that may take longer, such as explaining, has a fifth, so
    that it delays none of these.

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
        self._searches: Batcher[_Call, SearchAnswer] = Batcher(
            self._search,
            name=f"search-{name}",
            threads=_search_threads(retriever),
            max_batch=_BATCH_QUERIES,
            max_waiting=limits.waiting_queries,
            gather_seconds=_GATHER_SECONDS,
        )
        self._writes = self._queue("write", limits.waiting_writes)
        self._look_ups = self._queue("look-up", limits.waiting_queries)
        self._rankings = self._queue("ranking", limits.waiting_writes)
        self._others = self._queue("other", limits.waiting_writes)
        metrics.watch(
            name,
            lambda: len(retriever),
            {"searches": lambda: self._searches.waiting, "writes": lambda: self._writes.waiting},
        )

    async def __aenter__(self) -> Service:
        for batcher in (self._searches, self._writes, self._look_ups, self._rankings, self._others):
            await self._stack.enter_async_context(batcher)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish what has been accepted, unless an exception ends it."""
        await self._stack.__aexit__(kind, error, trace)

    async def search(self, search: Search) -> SearchAnswer:
        """Search one or several queries with the same options.

        Parameters
        ----------
        search
            At least one query, and the arguments of `Retriever.search`.

        Returns
        -------
        SearchAnswer
            The results; the milliseconds of ``"queue"``, of the stages ``"encode"``, ``"search"`` and ``"read"`` of the
            batch that it was part of, and ``"total"``.

        Raises
        ------
        QueueFullError
            If too many queries wait.
        RequestTimeoutError
            If the search takes too long.
        LatelierError
            If the search fails.
        """
        begin = perf_counter()
        answer: SearchAnswer = await self._within(self._searches.submit(_Call(search, begin), len(search.queries)))
        answer.milliseconds["total"] = _milliseconds(perf_counter() - begin)
        return answer

    async def write(self, change: Callable[[Retriever], T]) -> T:
        """Call a function that changes the index, after those that wait already; it has committed when this returns."""
        work = self._writes.submit(lambda: change(self.retriever))
        return await self._within(work, "A change that had begun is still made.")

    async def look_up(self, question: Callable[[Retriever], T]) -> T:
        """Call a function that reads the index quickly, without the model, in a thread."""
        return await self._within(self._look_ups.submit(lambda: question(self.retriever)))

    async def is_readable(self) -> bool:
        """Whether the files of the index can be read; while too many requests wait to try, they are taken to be."""
        try:
            await self.look_up(len)
        except QueueFullError:  # a busy server is no broken one
            return True
        except (StorageError, CorruptedIndexError):
            return False
        return True

    async def ask(self, question: Callable[[Retriever], T]) -> T:
        """Call a function that reads the index and may take longer, in a thread."""
        return await self._within(self._others.submit(lambda: question(self.retriever)))

    async def rerank(self, query: str, texts: Sequence[str], k: int | None) -> list[Hit]:
        """Order texts as `Retriever.rerank` does, in a thread; it stops soon after nobody waits for it any more."""
        given_up = threading.Event()
        try:
            work = self._rankings.submit(lambda: self._rank(query, texts, k, given_up))
            return cast("list[Hit]", await self._within(work))
        finally:
            given_up.set()

    async def _within(self, answer: Any, otherwise: str = "Try again later, or ask for less.") -> Any:
        try:
            return await asyncio.wait_for(answer, seconds_left(self._limits.seconds))
        except asyncio.TimeoutError:
            raise RequestTimeoutError(
                f"the request took longer than {self._limits.seconds} seconds. {otherwise}"
            ) from None

    def _queue(self, kind: str, waiting: int) -> Batcher[Work, Any]:
        name = f"{kind}-{self.name}"
        return Batcher(lambda works: [work() for work in works], name=name, max_batch=1, max_waiting=waiting)

    def _rank(self, query: str, texts: Sequence[str], k: int | None, given_up: threading.Event) -> list[Hit]:
        """Order texts by their scores, which are computed in parts; none if it has been given up."""
        scores: dict[str, float] = {}
        # Texts of about the same length fill the model's batches best, and equal ones have equal scores.
        waiting = sorted(set(texts), key=lambda text: (len(text), text))
        for first in range(0, len(waiting), _RANKED_TEXTS):
            if given_up.is_set():
                return []
            part = waiting[first : first + _RANKED_TEXTS]
            scores |= {part[int(hit.id)]: hit.score for hit in self.retriever.rerank(query, part)}
        return sorted((Hit(i, scores[text]) for i, text in enumerate(texts)), key=lambda hit: -hit.score)[:k]

    def _search(self, calls: list[_Call]) -> list[SearchAnswer | Exception]:
        """Answer a batch of calls."""
        begin = perf_counter()
        milliseconds: dict[str, float] = {}

        def count(stage: str, seconds: float) -> None:
            self._metrics.stage(self.name, stage, seconds)
            milliseconds[stage] = _milliseconds(seconds)

        @contextmanager
        def measured(stage: str) -> Iterator[None]:
            start = perf_counter()
            yield
            count(stage, perf_counter() - start)

        self._metrics.batch(self.name, sum(len(call.search.queries) for call in calls))
        count("queue", begin - min(call.arrived for call in calls))
        retriever = self.retriever
        try:
            with limited_threads(thread_count() // max(1, self._searches.batches)):
                found = find_batch(retriever.query_model, retriever.index, [call.search for call in calls], measured)
        except Exception as error:  # noqa: BLE001 (what one call of a batch makes fail must not fail the others)
            return [error] if len(calls) == 1 else [self._search([call])[0] for call in calls]
        return [
            each
            if isinstance(each, Exception)
            else SearchAnswer(each, {**milliseconds, "queue": _milliseconds(begin - call.arrived)})
            for call, each in zip(calls, found, strict=True)
        ]


def _search_threads(retriever: Retriever) -> int:
    """Return how many batches are answered at a time.

    A batch on one core takes less processor time than on several, since no thread waits for another. A model in torch
    encodes one batch at a time, in all threads.
    """
    return thread_count() if retriever.query_model.encoder is not None else 1


def _milliseconds(seconds: float) -> float:
    return round(1e3 * seconds, 3)
