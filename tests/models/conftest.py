"""Models that several tests only read: loading one takes longer than using it.

They have the first two of MiniLM's six layers: what is tested here does not depend on how well the model reads.
"""

import pytest

from latelier.models import ColBERT


@pytest.fixture(scope="session")
def fresh(shallow):
    """The full recipe around the encoder, untrained."""
    return ColBERT(shallow, embedding_size=16, device="cpu")


@pytest.fixture(scope="session")
def dense(shallow):
    """The encoder's own token vectors."""
    return ColBERT.from_dense(shallow, device="cpu")
