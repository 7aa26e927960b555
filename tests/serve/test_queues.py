"""Queues: what waits together is answered together, one call's fate is not another's, and requests end in time."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from latelier.serve import Limits, queues
from latelier.serve.errors import QueueFullError, RequestTimeoutError, StoppingError
from latelier.serve.queues import Batcher, Metrics, Service, begin_request
from latelier.serve.searches import Search


def doubled(items):
    return [2 * item for item in items]


def run(test, answer=doubled, **options):
    settings = {"name": "test", "max_batch": 4, "max_waiting": 100, **options}

    async def main():
        batcher = Batcher(answer, **settings)
        async with batcher:
            return await test(batcher)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("calls", "most", "batches"),
    [
        ([(i, 1) for i in range(11)], 4, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]),
        ([("a", 3), ("b", 2), ("c", 9)], 4, [["a"], ["b"], ["c"]]),
        ([(i, 1, i == 2) for i in range(5)], 9, [[0, 1], [2], [3, 4]]),
    ],
    ids=["many", "sizes", "alone"],
)
def test_calls_that_wait_are_answered_together_up_to_a_size_unless_one_is_to_be_alone(calls, most, batches):
    seen = []

    async def many(batcher):
        return await asyncio.gather(*(batcher.submit(i, size, alone=alone == [True]) for i, size, *alone in calls))

    found = run(many, lambda items: seen.append(items) or doubled(items), max_batch=most)
    assert (found, seen) == ([2 * call[0] for call in calls], batches)


class Panic(BaseException):
    """As that of libraries in Rust, which is no `Exception`."""


@pytest.mark.parametrize("kind", [ValueError, Panic, StopIteration, SystemExit])
def test_whatever_a_batch_raises_is_raised_in_all_of_its_calls_and_the_next_is_answered(kind):
    def answer(items):
        if 3 in items:
            raise kind("no threes")
        return items

    async def many(batcher):
        failed = await asyncio.gather(*map(batcher.submit, [1, 3]), return_exceptions=True)
        assert ["no threes" in str(error) for error in failed] == [True, True]
        return await asyncio.wait_for(batcher.submit(7), 10)

    assert run(many, answer) == 7


def test_a_panic_fails_its_own_search_only(retriever, monkeypatch):
    encode = retriever.query_model.encode_queries

    def panic(texts, **how):
        if "panic" in texts:
            raise Panic("retry-limit-in-match over")
        return encode(texts, **how)

    monkeypatch.setattr(retriever.query_model, "encode_queries", panic)

    async def main():
        async with Service("x", retriever, Limits(), Metrics()) as service:
            searches = (Search([text], 1, {}) for text in ("apples", "panic", "planets"))
            answers = await asyncio.gather(*map(service.search, searches), return_exceptions=True)
        return [str(each) if isinstance(each, Exception) else each.results[0][0].id for each in answers]

    first, second, third = asyncio.run(main())
    assert (first, third) == ("fruit", "moon")
    assert "retry-limit-in-match" in second


def test_more_than_may_wait_are_rejected_and_the_others_answered():
    release = threading.Event()

    def answer(items):
        release.wait(10)
        return items

    async def many(batcher):
        running = asyncio.create_task(batcher.submit("running"))
        await asyncio.sleep(0.05)  # it is being answered, so it does not wait any more
        waiting = [asyncio.create_task(batcher.submit(i)) for i in range(3)]
        await asyncio.sleep(0)
        assert batcher.waiting == 3
        with pytest.raises(QueueFullError, match="the queue is full"):
            await batcher.submit("too many")
        release.set()
        return await asyncio.gather(running, *waiting)

    assert run(many, answer, max_waiting=3) == ["running", 0, 1, 2]


def test_a_call_that_nobody_waits_for_is_not_answered():
    release, seen = threading.Event(), []

    def answer(items):
        seen.extend(items)
        release.wait(10)
        return items

    async def cancelled(batcher):
        running = asyncio.create_task(batcher.submit("running"))
        await asyncio.sleep(0.05)
        gone = asyncio.create_task(batcher.submit("gone"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        release.set()
        return await running, await batcher.submit("next")

    assert run(cancelled, answer) == ("running", "next")
    assert seen == ["running", "next"]


def test_closing_answers_what_was_accepted_and_rejects_what_comes_later():
    release = threading.Event()

    def answer(items):
        release.wait(10)
        return items

    async def main():
        batcher = Batcher(answer, name="test", max_batch=1, max_waiting=10)
        await batcher.__aenter__()
        accepted = [asyncio.create_task(batcher.submit(i)) for i in range(3)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(batcher.__aexit__())
        await asyncio.sleep(0)
        with pytest.raises(StoppingError, match="stopping"):
            await batcher.submit("late")
        release.set()
        await closing
        return [await call for call in accepted]

    assert asyncio.run(main()) == [0, 1, 2]


class Gathering:
    """`asyncio` for a batcher, with a clock that a test moves."""

    def __init__(self, monkeypatch):
        self.waits, self.began, self.over = [], asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(queues, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": self.sleep}))

    async def sleep(self, seconds):
        self.waits.append(seconds)
        self.began.set()
        await self.over.wait()


@pytest.mark.parametrize("threads", [1, 2])
def test_clients_that_were_answered_together_are_waited_for(monkeypatch, threads):
    batches = []

    def answer(items):
        batches.append(sorted(items))
        return items

    async def many(batcher):
        gathering = Gathering(monkeypatch)
        await asyncio.gather(*map(batcher.submit, range(4 * threads)))
        first = len(batches)
        one = asyncio.create_task(batcher.submit("one"))
        await asyncio.wait_for(gathering.began.wait(), 30)
        others = [asyncio.create_task(batcher.submit(f"other {i}")) for i in range(4 * threads - 1)]
        await asyncio.sleep(0)
        gathering.over.set()
        await asyncio.gather(one, *others)
        assert set(gathering.waits) == {5}
        return sorted(map(len, batches[:first])), sorted(map(len, batches[first:]))

    assert run(many, answer, threads=threads, max_batch=8, gather_seconds=5) == ([4] * threads, [4] * threads)


def test_a_single_client_is_not_made_to_wait(monkeypatch):
    async def one_by_one(batcher):
        gathering = Gathering(monkeypatch)
        gathering.over.set()
        assert [await batcher.submit(i) for i in range(5)] == [0, 2, 4, 6, 8]
        return gathering.waits

    assert run(one_by_one, gather_seconds=5) == []


def with_service(retriever, limits, session):
    async def main():
        async with Service("records", retriever, limits, Metrics()) as service:
            return await session(service)

    return asyncio.run(main())


def test_a_ranking_stops_when_its_request_is_over(retriever, monkeypatch):
    texts, parts, rerank = [f"Text number {i}." for i in range(512)], [], retriever.rerank

    def slow(query, part):
        parts.append(part)
        time.sleep(0.3)
        return rerank(query, part)

    async def session(service):
        with pytest.raises(RequestTimeoutError, match="the request took longer than 1 seconds"):
            await service.rerank("a query", texts, None)

    monkeypatch.setattr(retriever, "rerank", slow)
    with_service(retriever, Limits(seconds=1), session)  # it ends when no queue is at work any more
    assert len(parts) <= 5


def test_what_has_passed_of_a_request_s_time_is_not_given_again(retriever):
    release = threading.Event()

    async def session(service):
        begin_request(0.2)
        with pytest.raises(RequestTimeoutError, match="the request took longer than 60 seconds"):
            await service.ask(lambda _: release.wait(30))
        release.set()

    begin = time.monotonic()
    with_service(retriever, Limits(seconds=60), session)
    assert time.monotonic() - begin < 20
