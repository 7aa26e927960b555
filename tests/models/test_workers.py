"""Encoding in worker processes gives the same embeddings, and needs no open file per text."""

import pytest
import torch

from latelier.models import ColBERT

MANY = 1100


@pytest.fixture
def few_files():
    """At most 256 open files, for this process and those that it starts."""
    resource = pytest.importorskip("resource", reason="limits on open files are POSIX")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_texts_than_open_files_are_allowed(tiny, few_files):
    model = ColBERT.from_dense(tiny, "orthogonal", 8, device="cpu")
    texts = [f"pear {i}" for i in range(MANY)]
    pool = model.start_multi_process_pool(["cpu"])
    try:
        encoded = model.encode_document(texts, pool=pool, packed=True)
    finally:
        model.stop_multi_process_pool(pool)
    assert len(encoded) == MANY
    for i in (0, 555, MANY - 1):
        torch.testing.assert_close(encoded[i], model.encode_document(texts[i]), rtol=0, atol=1e-5)
