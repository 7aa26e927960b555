"""One retriever with real texts, in memory and on disk, for all adapters: they only read it."""

import asyncio
import threading

import pytest
from adapter_records import LONG, RECORDS

from latelier.retrieve import Retriever


@pytest.fixture(scope="session")
def folder(minilm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters") / "records"
    with Retriever(minilm, folder, device="cpu") as retriever:
        retriever.add(RECORDS)
    return folder


@pytest.fixture(scope="session")
def searcher(folder):
    """The retriever on that index; tests leave it as it is. (`retriever` is a fixture of langchain-tests.)"""
    with Retriever.open(folder, device="cpu", read_only=True) as retriever:
        yield retriever


@pytest.fixture(scope="session")
def passages(searcher):
    with Retriever(searcher.model) as long:
        long.add(
            [{"id": "sea", "text": LONG, "year": 2020}, {"id": "air", "text": "Swifts sleep in flight."}], passages=64
        )
        yield long


@pytest.fixture
def held_up(monkeypatch):
    entered, released = threading.Event(), threading.Event()
    search = Retriever.search

    def held(self, *arguments, **options):
        entered.set()
        assert released.wait(30)
        return search(self, *arguments, **options)

    monkeypatch.setattr(Retriever, "search", held)

    async def main(searching):
        task = asyncio.ensure_future(searching)
        while not entered.is_set():
            await asyncio.sleep(0.001)
        released.set()  # never, if the search held the loop
        return await task

    return lambda searching: asyncio.run(main(searching))
