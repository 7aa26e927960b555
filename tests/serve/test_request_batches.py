"""Batches: what waits together is answered together, and one call's fate is not another's."""

import asyncio
import threading

import pytest

from latelier.serve.batching import Batcher
from latelier.serve.errors import QueueFullError, StoppingError


def doubled(items):
    return [2 * item for item in items]


def run(test, answer=doubled, **options):
    """Run a coroutine function with a batcher."""
    settings = {"name": "test", "max_batch": 4, "max_waiting": 100, **options}

    async def main():
        batcher = Batcher(answer, **settings)
        async with batcher:
            return await test(batcher)

    return asyncio.run(main())


def test_calls_that_wait_are_answered_in_batches_of_at_most_max_batch():
    sizes = []

    def answer(items):
        sizes.append(len(items))
        return doubled(items)

    async def many(batcher):
        return await asyncio.gather(*(batcher.submit(i) for i in range(11)))

    assert run(many, answer) == [2 * i for i in range(11)]
    assert sizes == [4, 4, 3]


def test_sizes_count_and_a_larger_call_is_a_batch_of_its_own():
    batches = []

    def answer(items):
        batches.append(items)
        return items

    async def many(batcher):
        await asyncio.gather(batcher.submit("a", 3), batcher.submit("b", 2), batcher.submit("c", 9))

    run(many, answer)
    assert batches == [["a"], ["b"], ["c"]]


def test_an_exception_is_raised_in_its_own_call_only():
    def answer(items):
        return [ValueError(f"not {item}") if item == 3 else item for item in items]

    async def many(batcher):
        return await asyncio.gather(*map(batcher.submit, [1, 3, 5]), return_exceptions=True)

    one, three, five = run(many, answer)
    assert (one, five) == (1, 5)
    assert str(three) == "not 3"


def test_an_exception_of_the_batch_is_raised_in_all_of_its_calls_and_the_next_batch_is_answered():
    def answer(items):
        if 3 in items:
            raise ValueError("no threes")
        return items

    async def many(batcher):
        failed = await asyncio.gather(*map(batcher.submit, [1, 3]), return_exceptions=True)
        return [str(error) for error in failed], await batcher.submit(7)

    assert run(many, answer) == (["no threes", "no threes"], 7)


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
        with pytest.raises(QueueFullError, match="3 requests are waiting"):
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
