"""`Batcher`: calls that wait at the same time are answered together, in threads beside the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from latelier.serve.errors import QueueFullError, StoppingError

__all__ = ["Batcher"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass
class _Call(Generic[Item, Answer]):
    item: Item
    size: int
    future: asyncio.Future[Answer]


class Batcher(Generic[Item, Answer]):
    """Answers calls in batches, as many at a time as there are threads.

    While all threads answer a batch, the calls that arrive wait; the thread that is free first takes its share of them
    together. If its last batch held several calls and fewer wait now, it waits `gather_seconds` first, since clients
    that were answered together ask again at about the same time. A single client never waits for others.

    Parameters
    ----------
    answer
        Called in one of the threads with the items of a batch; returns one answer per item, or an exception to raise.
        An exception that it raises itself is raised in every call of the batch.
    name
        Name of the threads.
    threads
        Number of threads. A batch takes at most the share of one thread in all calls that wait or are being answered,
        so that all threads have about the same to do.
    max_batch
        Maximum size of a batch; a single call may be larger.
    max_waiting
        Maximum size of all calls that wait; further calls are rejected.
    gather_seconds
        How long to wait for more calls.

    Examples
    --------
    >>> async def main() -> list[int]:
    ...     batcher = Batcher(
    ...         lambda items: [2 * item for item in items],
    ...         name="double",
    ...         max_batch=8,
    ...         max_waiting=8,
    ...     )
    ...     async with batcher:
    ...         return await asyncio.gather(*map(batcher.submit, [1, 2, 3]))
    >>> asyncio.run(main())
    [2, 4, 6]
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
        self._waiting: deque[_Call[Item, Answer]] = deque()
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

        Parameters
        ----------
        item
            What `answer` gets.
        size
            How much of a batch it fills, such as its number of queries.

        Raises
        ------
        QueueFullError
            If too many calls wait already.
        StoppingError
            If the batcher is closing.
        """
        if self._is_closing:
            raise StoppingError("the server is stopping; try again later.")
        if self._waiting and self.waiting + size > self._max_waiting:
            raise QueueFullError(f"{self.waiting} requests are waiting, as many as may; try again later.")
        call: _Call[Item, Answer] = _Call(item, size, asyncio.get_running_loop().create_future())
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

    async def _serve(self, loop: asyncio.AbstractEventLoop, batch: list[_Call[Item, Answer]]) -> None:
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

    def _take(self) -> list[_Call[Item, Answer]]:
        """Remove the calls of the next batch; those that nobody waits for any more are left out."""
        batch: list[_Call[Item, Answer]] = []
        size, most = 0, self._share()
        while self._waiting and (not batch or size + self._waiting[0].size <= most):
            call = self._waiting.popleft()
            if not call.future.done():
                batch.append(call)
                size += call.size
        return batch


def _size(calls: Iterable[_Call[Any, Any]]) -> int:
    return sum(call.size for call in calls)
