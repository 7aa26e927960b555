"""One retriever with real texts, in memory and on disk, for all adapters: they only read it."""

import pytest
from adapter_records import LONG, RECORDS

from latelier.retrieve import Retriever


@pytest.fixture(scope="session")
def folder(minilm, tmp_path_factory):
    """An index on disk, which names its model."""
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
    """A retriever in memory whose documents are passages."""
    with Retriever(searcher.model) as long:
        long.add(
            [{"id": "sea", "text": LONG, "year": 2020}, {"id": "air", "text": "Swifts sleep in flight."}], passages=64
        )
        yield long
