"""Inverted lists that several threads make together."""

import numpy as np
import pytest
import torch
from ivf_helpers import collection, lists_of

from latelier import indexes
from latelier.indexes.ivf import lists


@pytest.mark.parametrize("share_tokens", [1, 1000])
def test_threads_that_share_the_documents_make_the_same_lists(early, share_tokens, monkeypatch):
    monkeypatch.setattr(lists, "_SHARE_TOKENS", share_tokens)
    documents, _ = collection(600)

    def made(threads):
        torch.set_num_threads(threads)
        index = indexes.IVF()
        index.add(range(500), documents[:500])
        index.add(range(500, 600), documents[500:])  # appended to the lists
        return lists_of(index)

    one, three = made(1), made(3)
    assert len(one.numbers) == 600
    for name in ("numbers", "offsets", "documents"):
        np.testing.assert_array_equal(getattr(one, name), getattr(three, name))
