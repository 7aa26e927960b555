"""Centroids that are trained on tokens in memory and on tokens that are read from files."""

import numpy as np
import pytest
import torch
from ivf_helpers import DIM, collection

from latelier import indexes
from latelier.indexes.ivf import training
from latelier.indexes.ivf.codec import Codec, DocumentTable
from latelier.indexes.ivf.training import train_centroids


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
    for found, wanted in zip(train_centroids(read, np.arange(400), memory), expected, strict=True):
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


@pytest.mark.parametrize("threads", [1, 3])
def test_centroids_do_not_depend_on_the_number_of_threads(threads):
    index = indexes.IVF()
    index.add(range(400), collection(400)[0])
    table = DocumentTable(index._storage.snapshot().parts(), Codec(8, DIM), np.zeros(0, dtype="int64"))
    expected = train_centroids(table, np.arange(400))
    torch.set_num_threads(threads)
    for found, wanted in zip(train_centroids(table, np.arange(400)), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
