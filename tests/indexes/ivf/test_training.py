"""Centroids and inverted lists do not depend on where tokens are read, and by how many threads."""

import numpy as np
import pytest
import torch
from ivf_helpers import DIM, collection, lists_of

from latelier import indexes
from latelier.indexes.ivf import lists
from latelier.indexes.ivf import lists as training
from latelier.indexes.ivf.codec import Codec, DocumentTable
from latelier.indexes.ivf.lists import train_centroids


@pytest.mark.parametrize("nbits", [8, 4, 1])
@pytest.mark.parametrize("memory", [1 << 30, 50_000, 1])
def test_centroids_do_not_depend_on_where_tokens_are_read(nbits, memory, tmp_path):
    index = indexes.IVF(tmp_path / "index", nbits=nbits)
    index.add(range(400), collection(400)[0])
    snapshot, codec, none = index._storage.snapshot(), Codec(nbits, DIM), np.zeros(0, dtype="int64")
    mapped = DocumentTable(snapshot.parts(), codec, none)
    read = DocumentTable(snapshot.parts(), codec, none, read=codec.arrays, window=1 << 12)
    assert (mapped.is_addressable, read.is_addressable) == (True, False)
    expected = train_centroids(mapped, np.arange(400))
    for found, wanted in zip(train_centroids(read, np.arange(400), memory).arrays, expected.arrays, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_coarse_centroid_without_tokens_is_the_only_one_under_itself(monkeypatch):
    documents, _ = collection(300)
    index = indexes.IVF()
    index.add(range(300), documents)
    table = DocumentTable(index._storage.snapshot().parts(), Codec(8, DIM), np.zeros(0, dtype="int64"))
    usual = training._nearest_coarse
    monkeypatch.setattr(training, "_nearest_coarse", lambda *given: np.where(usual(*given) == 3, 2, usual(*given)))
    centroids = train_centroids(table, np.arange(300))
    groups = centroids.fine_offsets
    assert (groups[3], groups[4]) == (groups[3], groups[3] + 1)
    lanes = centroids.fine[groups[3], :, 0].reshape(-1).astype("float64")
    wanted = centroids.coarse[0, :, 3].reshape(-1).astype("float64")
    np.testing.assert_allclose(lanes / np.linalg.norm(lanes), wanted / np.linalg.norm(wanted), atol=0.02)
    assert (centroids.fine_start[groups[3], 1:] == centroids.fine_start.min()).all()


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
    for name, array in one.arrays().items():
        if name != "centroids_fit":  # means of floats, whose last digits depend on the order of a sum
            np.testing.assert_array_equal(array, three.arrays()[name])
