"""One retriever over real docstrings, shared: encoding them takes longer than the tests."""

import pytest

from latelier.models import ColBERT
from latelier.retrieve import Retriever


@pytest.fixture(scope="session")
def retriever(shallow, docstrings):
    retriever = Retriever(ColBERT.from_dense(shallow, device="cpu", max_length_document=48))
    kept = [record for record in docstrings if record["module"] in ("bisect", "heapq", "shelve", "queue")]
    retriever.add(kept, passages=False)
    return retriever
