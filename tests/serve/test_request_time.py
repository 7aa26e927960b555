"""The time of a request: its body counts, and what is computed for it stops when it is over."""

import asyncio
import threading
import time

import pytest

from latelier.serve import Limits
from latelier.serve.errors import RequestTimeoutError
from latelier.serve.service import Metrics, Service, begin_request


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
            await service.look_up(lambda _: release.wait(30))
        release.set()

    begin = time.monotonic()
    with_service(retriever, Limits(seconds=60), session)
    assert time.monotonic() - begin < 20
