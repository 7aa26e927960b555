"""Models that several tests only read: loading one takes longer than using it."""

import pytest

from latelier.models import ColBERT


@pytest.fixture(scope="session")
def fresh(minilm):
    """The full recipe around MiniLM, untrained."""
    return ColBERT(minilm, embedding_size=16, device="cpu")


@pytest.fixture(scope="session")
def dense(minilm):
    """MiniLM's own token vectors."""
    return ColBERT.from_dense(minilm, device="cpu")
