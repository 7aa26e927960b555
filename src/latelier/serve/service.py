"""Queues, batches, limits, request time, metrics."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from time import perf_counter
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from latelier.errors import CorruptedIndexError, LatelierError, StorageError
from latelier.indexes import Hit
from latelier.kernels.threads import limited_threads, thread_count
from latelier.retrieve import Result, Retriever
from latelier.retrieve.retriever import Search, search_batch
from latelier.serve.errors import QueueFullError, RequestTimeoutError, StoppingError, TooLargeError
from latelier.utils.checks import check_count

__all__ = ["Batcher", "Limits", "Metrics", "SearchAnswer", "Service", "begin_request", "seconds_left"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass
class _QueuedCall(Generic[Item, Answer]):
    item: Item
    size: int
    future: asyncio.Future[Answer]


class Batcher(Generic[Item, Answer]):
    """Answers calls in batches, as many at a time as there are threads.

    While all threads answer a batch, the calls that arrive wait; the thread that is free first takes its share of them
    together. If its last batch held several calls and fewer wait now, it waits `gather_seconds` first, since clients
    that were answered together ask again at about the same time. A single client never waits for others. `answer`:
    called in one of the threads with the items of a batch; returns one answer per item, or an exception to raise. An
    exception that it raises itself is raised in every call of the batch. `threads`: number of threads. A batch takes at
    most the share of one thread in all calls that wait or are being answered, so that all threads have about the same
    to do. `max_batch`: maximum size of a batch; a single call may be larger. `max_waiting`: maximum size of all calls
    that wait; further calls are rejected. `gather_seconds`: how long to wait for more calls.
    """

    def __init__(
        self,
        answer: Callable[[list[Item]], Sequence[Answer | Exception]],
        *,
        name: str,
        threads: int = 1,
        max_batch: int,
        max_waiting: int,
        gather_seconds: float = 0.0,
    ) -> None:
        self._answer, self._max_batch, self._max_waiting = answer, max_batch, max_waiting
        self._gather_seconds, self._count = gather_seconds, threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting: deque[_QueuedCall[Item, Answer]] = deque()
        self._answered: list[int] = []  # sizes of the batches that are being answered
        self._arrived, self._idle = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False

    @property
    def batches(self) -> int:
        """The number of batches that are being answered."""
        return len(self._answered)

    @property
    def waiting(self) -> int:
        """The size of all calls that wait for a batch."""
        return _size(self._waiting)

    async def submit(self, item: Item, size: int = 1) -> Answer:
        """Return the answer for one item.

        `size`: how much of a batch it fills, such as its number of queries; raises `QueueFullError` if too many calls
        wait already; raises `StoppingError` if the batcher is closing.
        """
        if self._is_closing:
            raise StoppingError("the server is stopping; try again later.")
        if self._waiting and self.waiting + size > self._max_waiting:
            raise QueueFullError(f"{self.waiting} requests are waiting, as many as may; try again later.")
        call: _QueuedCall[Item, Answer] = _QueuedCall(item, size, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._idle.clear()
        self._arrived.set()
        return await call.future

    async def __aenter__(self) -> Batcher[Item, Answer]:
        self._idle.set()
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._count)]
        return self

    async def __aexit__(self, kind: type[BaseException] | None = None, *error: object) -> None:
        """Answer what has been accepted, and stop; stop at once if an exception, such as a cancellation, ends it."""
        self._is_closing = True
        is_finished = False
        try:
            if kind is None:
                await self._idle.wait()
                is_finished = True
        finally:
            for task in self._tasks:
                task.cancel()
            # A batch that is being answered would have to end first.
            self._threads.shutdown(wait=is_finished, cancel_futures=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        """Answer one batch after the other in one of the threads."""
        loop, expected = asyncio.get_running_loop(), 0
        while True:
            await self._arrived.wait()
            if self._gather_seconds and self.waiting < expected:
                await asyncio.sleep(self._gather_seconds)
            batch = self._take()
            size = _size(batch)
            expected = size if len(batch) > 1 else 0
            if batch:
                self._answered.append(size)
                try:
                    await self._serve(loop, batch)
                finally:
                    self._answered.remove(size)
            if not self._waiting:
                self._arrived.clear()
                if not self._answered:
                    self._idle.set()

    async def _serve(self, loop: asyncio.AbstractEventLoop, batch: list[_QueuedCall[Item, Answer]]) -> None:
        answers: Sequence[Any]
        try:
            answers = await loop.run_in_executor(self._threads, self._answer, [call.item for call in batch])
        except Exception as error:  # noqa: BLE001 (each call raises it)
            answers = [error] * len(batch)
        for call, answer in zip(batch, answers, strict=True):
            if call.future.done():
                continue  # its client has gone, or its time is over
            if isinstance(answer, Exception):
                call.future.set_exception(answer)
            else:
                call.future.set_result(answer)

    def _share(self) -> int:
        """Return the maximum size of the next batch."""
        calls = self.waiting + sum(self._answered)
        return min(self._max_batch, -(-calls // self._count))

    def _take(self) -> list[_QueuedCall[Item, Answer]]:
        """Remove the calls of the next batch; those that nobody waits for any more are left out."""
        batch: list[_QueuedCall[Item, Answer]] = []
        size, most = 0, self._share()
        while self._waiting and (not batch or size + self._waiting[0].size <= most):
            call = self._waiting.popleft()
            if not call.future.done():
                batch.append(call)
                size += call.size
        return batch


def _size(calls: Iterable[_QueuedCall[Any, Any]]) -> int:
    return sum(call.size for call in calls)


@dataclass(frozen=True)
class Limits:
    """What a server accepts.

    Parameters
    ----------
    body_bytes
        Size of the body of a request.
    batch
        Number of queries, documents or ids in a request.
    characters
        Length of one text.
    hits
        Number of documents per query, and of those that a hybrid or reranking search compares if its `depth` is given.
    waiting_queries, waiting_writes
        How many queries, and how many other requests of each kind, wait for their turn; further ones are answered with
        429. Look-ups, which are quick, count as queries do. The other kinds are writes, rankings of documents that are
        in no index, and questions such as why a document is not found.
    seconds
        How long a request may take, its body included; then it is answered with 503, or with 408 if its body has not
        arrived. A write that has begun is still finished.

    Examples
    --------
    >>> Limits(batch=64).batch
    64
    """

    body_bytes: int = 16 << 20
    batch: int = 512
    characters: int = 200_000
    hits: int = 1000
    waiting_queries: int = 2048
    waiting_writes: int = 64
    seconds: int = 60

    def __post_init__(self) -> None:
        for field in fields(self):
            check_count(field.name, getattr(self, field.name))

    def check_batch(self, count: int) -> None:
        """Raise `TooLargeError` for a request with too many queries, documents or ids."""
        if count > self.batch:
            raise TooLargeError(f"received {count:,} at once; this server takes at most {self.batch:,}: send less.")

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise `TooLargeError` for a text that is too long."""
        longest = max(map(len, texts), default=0)
        if longest > self.characters:
            raise TooLargeError(
                f"received a text of {longest:,} characters; this server takes at most {self.characters:,}."
            )

    def check_hits(self, k: int, depth: int | None = None) -> None:
        """Raise `TooLargeError` for too many documents per query."""
        if k > self.hits:
            raise TooLargeError(f"received k={k:,}; this server returns at most {self.hits:,} documents per query.")
        if depth is not None and depth > self.hits:
            raise TooLargeError(f"received depth={depth:,}; this server compares at most {self.hits:,} documents.")


_END: ContextVar[float | None] = ContextVar("end of the request", default=None)


def begin_request(seconds: float) -> None:
    """Begin the time of the request that the current task handles."""
    _END.set(time.monotonic() + seconds)


def seconds_left(seconds: float) -> float:
    """Return how much of its time the current request has left; `seconds` where none has begun.

    Examples
    --------
    >>> seconds_left(60)
    60
    >>> begin_request(60)
    >>> 59 < seconds_left(60) <= 60
    True
    """
    end = _END.get()
    return seconds if end is None else max(0.0, end - time.monotonic())


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Counters and histograms of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "latelier_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._latency = Histogram(
            "latelier_request_seconds", "Time per request.", ["route"], buckets=_SECONDS, registry=self._registry
        )
        self._stages = Histogram(
            "latelier_stage_seconds",
            "Time of each stage of a batch.",
            ["index", "stage"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._batches = Histogram(
            "latelier_batch_queries", "Queries per batch.", ["index"], buckets=_QUERIES, registry=self._registry
        )
        self._waiting = Gauge(
            "latelier_waiting", "Queries or writes that wait.", ["index", "kind"], registry=self._registry
        )
        self._documents = Gauge("latelier_documents", "Documents in the index.", ["index"], registry=self._registry)
        self._counts: dict[str, Callable[[], int]] = {}  # of documents

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, route, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def batch(self, index: str, queries: int) -> None:
        """Count a batch of queries."""
        self._batches.labels(index).observe(queries)

    def stage(self, index: str, stage: str, seconds: float) -> None:
        """Count the time of a stage of a batch."""
        self._stages.labels(index, stage).observe(seconds)

    def watch(self, index: str, documents: Callable[[], int], waiting: dict[str, Callable[[], int]]) -> None:
        """Read some numbers of an index whenever the metrics are read."""
        self._counts[index] = documents
        for kind, count in waiting.items():
            self._waiting.labels(index, kind).set_function(count)

    def text(self) -> bytes:
        """Return everything in the text form of Prometheus, without the documents of an index that cannot be read."""
        for index, count in self._counts.items():
            try:
                self._documents.labels(index).set(count())
            except LatelierError:
                self._documents.remove(index)
        return generate_latest(self._registry)


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
    at a time is encoded and committed, so that an answered write is on disk. Everything else that may take longer, such
    as explaining, has a fifth, so that it delays none of these.
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
                found = search_batch(retriever, [call.search for call in calls], measured)
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
