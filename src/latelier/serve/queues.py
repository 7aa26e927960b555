"""What a server does with one index: its limits, its queues, the time of a request, and metrics."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from latelier.errors import CorruptedIndexError, LatelierError, StorageError
from latelier.indexes import Hit
from latelier.indexes.base import PathLike
from latelier.kernels.threads import limited_threads, thread_count
from latelier.retrieve import Results, Retriever
from latelier.serve.errors import (
    ExistingIndexError,
    FailedError,
    ForbiddenError,
    QueueFullError,
    RequestTimeoutError,
    StoppingError,
    UnknownIndexError,
)
from latelier.serve.limits import Limits, check_name
from latelier.serve.searches import Search, search_batch
from latelier.utils.checks import cut
from latelier.utils.misc import needs_extra

with needs_extra("Serving", "serve"):
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


T = TypeVar("T")

# Queries that are encoded and searched together. More would make the first of them wait for the last.
_BATCH_QUERIES = 32
# Clients that were answered together ask again within about this time.
_GATHER_SECONDS = 0.003
# Texts that are ranked in one turn, about a batch of the model: the reads that wait are answered between them.
_RANKED_TEXTS = 32


@dataclass(frozen=True)
class SearchAnswer:
    """The results of each query of a search, and the milliseconds that its stages took."""

    results: list[Results]
    milliseconds: dict[str, float]


class _Call(NamedTuple):
    search: Search
    arrived: float


class _Encoding(NamedTuple):
    texts: Sequence[str]
    is_query: bool


class IndexMaker:
    """Makes indexes in a folder, if the server has one for them, and serves them until it stops."""

    def __init__(
        self,
        services: dict[str, Service],
        stack: AsyncExitStack,
        limits: Limits,
        metrics: Metrics,
        folder: PathLike | None,
    ) -> None:
        self._services = services
        self._stack = stack
        self._limits = limits
        self._metrics = metrics
        self._folder = None if folder is None else Path(folder)
        self._lock = asyncio.Lock()

    async def make(self, name: str, model: Service) -> Service:
        """Make an empty index with the model of another one."""
        if self._folder is None:
            raise ForbiddenError("this server makes no indexes: it was started without a folder for new ones.")
        check_name(name)
        path = self._folder / name
        async with self._lock:
            if name in self._services or name.startswith(".") or path.exists():
                raise ExistingIndexError(f"the name {name!r} is taken; give another one.")

            def make() -> Retriever:
                encoders: Any = model.retriever.query_model
                made = Retriever(encoders, path)
                made.query_model.identity.store_in(made.index)
                return made

            retriever = await asyncio.to_thread(make)
            self._stack.callback(retriever.close)
            service = Service(name, retriever, self._limits, self._metrics)
            self._services[name] = await self._stack.enter_async_context(service)
        return service

    async def delete(self, service: Service) -> int:
        """Delete an index of the folder, and return how many documents it had."""
        place = getattr(service.retriever.index, "path", None)
        if self._folder is None or place is None or Path(place).resolve().parent != self._folder.resolve():
            raise ForbiddenError(
                f"the index {service.name!r} is not in the folder for new ones, and this server deletes no other."
            )
        if service.retriever.index.read_only:
            raise ForbiddenError(f"the index {service.name!r} is open for reading only.")
        async with self._lock:
            if self._services.pop(service.name, None) is None:
                raise UnknownIndexError(f"there is no index {service.name!r} any more.")
            self._metrics.forget(service.name)
            await service.finish()

            def delete() -> int:
                documents = len(service.retriever)
                service.retriever.close()
                # First out of sight, so that a crash leaves no index without some of its files.
                hidden = Path(place).with_name(f".deleted-{service.name}-{secrets.token_hex(4)}")
                Path(place).rename(hidden)
                shutil.rmtree(hidden)
                return documents

            return await asyncio.to_thread(delete)


class Service:
    """One index behind a server; searches that wait are answered together, writes are committed one by one."""

    def __init__(self, name: str, retriever: Retriever, limits: Limits, metrics: Metrics) -> None:
        self.name = name
        self.retriever = retriever
        self._limits = limits
        self._metrics = metrics
        self._stack = AsyncExitStack()
        # A batch on one core takes less processor time than on several, since no thread waits for another. A model in
        # torch encodes in all threads: a second batch is there so that a long question delays no search.
        if retriever.query_model.queries.encodes_in_parallel:
            threads = thread_count()
        else:
            threads = 1
        self._reads: Batcher[Any, Any] = Batcher(
            self._read,
            name=f"read-{name}",
            threads=max(2, threads),
            max_batch=_BATCH_QUERIES,
            max_waiting=limits.waiting_queries,
            gather_seconds=_GATHER_SECONDS,
        )
        self._writes: Batcher[Callable[[], Any], Any] = Batcher(
            lambda changes: [change() for change in changes],
            name=f"write-{name}",
            max_batch=1,
            max_waiting=limits.waiting_writes,
        )
        waiting = {"searches": lambda: self._reads.waiting, "writes": lambda: self._writes.waiting}
        metrics.watch(name, lambda: len(retriever), waiting)

    async def __aenter__(self) -> Service:
        await self._stack.enter_async_context(self._reads)
        await self._stack.enter_async_context(self._writes)
        return self

    async def __aexit__(self, *error: Any) -> None:
        """Finish what has been accepted, unless an exception ends it."""
        await self._stack.__aexit__(*error)

    async def finish(self) -> None:
        """Finish what has been accepted, and take no more."""
        await self._stack.aclose()

    async def search(self, search: Search) -> SearchAnswer:
        """Search one or several queries with those of others that wait; the times are those of its batch."""
        begin = perf_counter()
        answer: SearchAnswer = await self._within(self._reads.submit(_Call(search, begin), len(search.queries)))
        answer.milliseconds["total"] = _milliseconds(perf_counter() - begin)
        return answer

    async def ask(self, question: Callable[[Retriever], T]) -> T:
        """Call a function that reads the index, in a thread."""
        return cast("T", await self._within(self._reads.submit(lambda: question(self.retriever), alone=True)))

    async def write(self, change: Callable[[Retriever], T]) -> T:
        """Call a function that changes the index, after those that wait already; it has committed when this returns."""
        work = self._writes.submit(lambda: change(self.retriever))
        return cast("T", await self._within(work, "A change that had begun is still made."))

    async def look(self, question: Callable[[Retriever], T]) -> T:
        """Call a function that only reads a little, in a thread of its own: searches that wait do not delay it."""
        return cast("T", await self._within(asyncio.to_thread(question, self.retriever)))

    async def warm_up(self) -> None:
        """Search once, so that the first search of a client does not wait for what is loaded when it is first used."""

        def search() -> None:
            with suppress(LatelierError):  # an index that cannot be read says so when it is asked
                results = self.retriever.search("first search", k=1)
                str(results)

        await asyncio.to_thread(search)

    async def rerank(self, query: str, texts: Sequence[str], k: int | None, *, is_mean: bool = False) -> list[Hit]:
        """Order texts as `Retriever.rerank` does, in several turns; it ends with its request.

        `is_mean`: with the mean similarity of the query's tokens as the score, between 0 and 1.
        """

        async def rank() -> list[Hit]:
            scores: dict[str, float] = {}
            # Texts of about the same length fill the model's batches best, and equal ones have equal scores.
            waiting = sorted(set(texts), key=lambda text: (len(text), text))
            for first in range(0, len(waiting), _RANKED_TEXTS):
                part = waiting[first : first + _RANKED_TEXTS]
                hits = await self._reads.submit(lambda part=part: self.retriever.rerank(query, part), alone=True)
                tokens = hits.query_tokens if is_mean else 1
                scores |= {part[hit.id]: hit.score / tokens for hit in hits}
            if is_mean:  # the best similarity of a token may be below 0, or by rounding above 1
                scores = {text: min(1.0, max(0.0, score)) for text, score in scores.items()}
            return sorted((Hit(i, scores[text]) for i, text in enumerate(texts)), key=lambda hit: -hit.score)[:k]

        return cast("list[Hit]", await self._within(rank()))

    async def encode(self, texts: Sequence[str], *, is_query: bool) -> list[np.ndarray]:
        """Return one ``(tokens, dim)`` float32 array per text, encoded with those of other requests that wait."""

        async def encode() -> list[np.ndarray]:
            # Texts of about the same length fill the model's batches best; searches go on between the turns.
            order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
            found: dict[int, np.ndarray] = {}
            for first in range(0, len(order), _RANKED_TEXTS):
                turn = order[first : first + _RANKED_TEXTS]
                call = _Encoding([texts[i] for i in turn], is_query)
                found |= dict(zip(turn, await self._reads.submit(call, len(turn)), strict=True))
            return [found[i] for i in range(len(texts))]

        return cast("list[np.ndarray]", await self._within(encode()))

    async def is_readable(self) -> bool:
        """Whether the files of the index can be read; other reads do not delay it: busy is not broken."""
        try:
            await self._within(asyncio.to_thread(len, self.retriever))
        except (StorageError, CorruptedIndexError):
            return False
        return True

    async def _within(self, answer: Awaitable[Any], otherwise: str = "Try again later, or ask for less.") -> Any:
        try:
            return await asyncio.wait_for(answer, _seconds_left(self._limits.seconds))
        except asyncio.TimeoutError:
            raise RequestTimeoutError(
                f"the request took longer than {self._limits.seconds} seconds. {otherwise}"
            ) from None

    def _read(self, calls: Sequence[Any]) -> Sequence[Any]:
        """Answer a question alone, or searches and texts to encode that wait together."""
        if not isinstance(calls[0], (_Call, _Encoding)):
            return [calls[0]()]
        searches = [call for call in calls if isinstance(call, _Call)]
        answers: dict[int, Any] = dict(zip(map(id, searches), self._search(searches) if searches else (), strict=True))
        for is_query in (True, False):
            alike = [call for call in calls if isinstance(call, _Encoding) and call.is_query == is_query]
            answers |= dict(zip(map(id, alike), self._encode(alike) if alike else (), strict=True))
        return [answers[id(call)] for call in calls]

    def _encode(self, calls: Sequence[_Encoding]) -> list[Any]:
        model = self.retriever.query_model
        texts = [text for call in calls for text in call.texts]
        start = perf_counter()
        try:
            with limited_threads(thread_count() // max(1, self._reads.batches)):
                if calls[0].is_query:
                    encoded = model.encode_queries(texts)
                else:
                    encoded = model.encode_documents(texts, batch_size=_RANKED_TEXTS)
        except BaseException as error:  # noqa: BLE001 (as for searches)
            if len(calls) == 1:
                return [_answerable(error)]
            return [self._encode([call])[0] for call in calls]
        self._metrics.stage(self.name, "encode", perf_counter() - start)
        rows = iter(encoded.to("numpy").to("float32"))
        return [[next(rows) for _ in call.texts] for call in calls]

    def _search(self, calls: Sequence[_Call]) -> list[SearchAnswer | Exception]:
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
        try:
            with limited_threads(thread_count() // max(1, self._reads.batches)):
                found = search_batch(self.retriever, [call.search for call in calls], measured)
        except BaseException as error:  # noqa: BLE001 (what one call of a batch makes fail must not fail the others)
            if len(calls) == 1:
                return [_answerable(error)]
            return [self._search([call])[0] for call in calls]
        return [
            each
            if isinstance(each, Exception)
            else SearchAnswer(each, {**milliseconds, "queue": _milliseconds(begin - call.arrived)})
            for call, each in zip(calls, found, strict=True)
        ]


def _milliseconds(seconds: float) -> float:
    return round(1e3 * seconds, 3)


Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass
class _QueuedCall(Generic[Item, Answer]):
    item: Item
    size: int
    alone: bool
    future: asyncio.Future[Answer]


class Batcher(Generic[Item, Answer]):
    """Answers calls in batches, as many at a time as there are threads.

    A thread that is free takes its share of the calls that wait, at most `max_batch` together: all threads then have
    about the same to do. If its last batch held several calls and fewer wait now, it waits `gather_seconds` first:
    clients that were answered together ask again at about the same time. A single client never waits for others.
    `answer` is called in a thread with the items of a batch and returns an answer for each, or an exception to raise;
    whatever it raises itself is raised in every call of the batch, and the next batch is answered.
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
        self._answer = answer
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._gather_seconds = gather_seconds
        self._count = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting: deque[_QueuedCall[Item, Answer]] = deque()
        self._answered: list[int] = []  # sizes of the batches that are being answered
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
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

    async def submit(self, item: Item, size: int = 1, *, alone: bool = False) -> Answer:
        """Return the answer for one item: so much of a batch as `size` says, or a batch of its own if it is `alone`."""
        if self._is_closing:
            raise StoppingError("the server is stopping; try again later.")
        if self._waiting and self.waiting + size > self._max_waiting:
            raise QueueFullError(f"the queue is full ({self.waiting} waiting); try again later.")
        call: _QueuedCall[Item, Answer] = _QueuedCall(item, size, alone, asyncio.get_running_loop().create_future())
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
        loop = asyncio.get_running_loop()
        expected = 0
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
        items = [call.item for call in batch]
        answers = await loop.run_in_executor(self._threads, self._answered_or_failed, items)
        for call, answer in zip(batch, answers, strict=True):
            if call.future.done():
                continue  # its client has gone, or its time is over
            if isinstance(answer, Exception):
                call.future.set_exception(answer)
            else:
                call.future.set_result(answer)

    def _answered_or_failed(self, items: list[Item]) -> Sequence[Answer | Exception]:
        try:
            return self._answer(items)
        except BaseException as error:  # noqa: BLE001 (each call raises it)
            return [_answerable(error)] * len(items)

    def _take(self) -> list[_QueuedCall[Item, Answer]]:
        """Remove the calls of the next batch; those that nobody waits for any more are left out."""
        batch: list[_QueuedCall[Item, Answer]] = []
        share = min(self._max_batch, -(-(self.waiting + sum(self._answered)) // self._count))
        size = 0
        while self._waiting:
            call = self._waiting[0]
            if batch and (call.alone or batch[0].alone or size + call.size > share):
                break
            self._waiting.popleft()
            if not call.future.done():
                batch.append(call)
                size += call.size
        return batch


def _answerable(error: BaseException) -> Exception:
    """Return an error that a future takes, and that ends no task: a panic of a library in Rust is no `Exception`."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failed = FailedError(
        f"the server failed at this request with {type(error).__name__}: {cut(str(error), 300)}. Others are answered; "
        "this is a bug: please report it."
    )
    failed.__cause__ = error
    return failed


def _size(calls: Iterable[_QueuedCall[Any, Any]]) -> int:
    return sum(call.size for call in calls)


_END: ContextVar[float | None] = ContextVar("end of the request", default=None)


def begin_request(seconds: float) -> None:
    """Begin the time of the request that the current task handles."""
    _END.set(time.monotonic() + seconds)


def _seconds_left(seconds: float) -> float:
    """Return how much of its time the current request has left; `seconds` where none has begun."""
    end = _END.get()
    if end is None:
        return seconds
    return max(0.0, end - time.monotonic())


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

    def forget(self, index: str) -> None:
        """Read no more numbers of an index."""
        del self._counts[index]
        for gauge, *labels in (
            (self._documents, index),
            (self._waiting, index, "searches"),
            (self._waiting, index, "writes"),
        ):
            with suppress(KeyError):  # it was not read yet
                gauge.remove(*labels)

    def text(self) -> bytes:
        """Return everything in the text form of Prometheus, without the documents of an index that cannot be read."""
        for index, count in self._counts.items():
            try:
                self._documents.labels(index).set(count())
            except LatelierError:
                self._documents.remove(index)
        return generate_latest(self._registry)
