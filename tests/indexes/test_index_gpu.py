"""Searching on a device: the same hits as exact search on the CPU, from a copy that follows the index."""

import numpy as np
import pytest
import torch
from index_helpers import check_hits, expected_hits, matrices

from latelier import indexes
from latelier.errors import InvalidArgumentError
from latelier.indexes.gpu import GpuSearch
from latelier.indexes.ranking import BlockSize


def on_device(index, **options):
    index._gpu = GpuSearch(torch.device("cpu"), index._decode, index.dtype, **options)
    return index


def test_queries_in_several_rounds_and_documents_in_several_blocks():
    small = {"queries_at_once": 3, "block": BlockSize(tokens=8, scores=9), "upload_numbers": 40, "copy_numbers": 40}
    index = on_device(indexes.Flat(), **small)
    index.add(range(30), matrices([*range(1, 16)] * 2))
    index.add(range(30, 40), matrices([2] * 10, seed=1))
    queries = matrices([3, 1, 2, 4, 1, 2, 3, 5], seed=2)
    check_hits(index.search(queries, 6), expected_hits(index, queries, 6))
    check_hits(index.search(queries, 100), expected_hits(index, queries, 100))


def test_of_equal_scores_the_document_that_was_added_first_comes_first():
    index = on_device(indexes.Flat(), block=BlockSize(tokens=6, scores=100))
    index.add("lower", np.eye(2)[:1] * 0.5)
    index.add([f"equal {i}" for i in range(20)], [np.eye(2)[:1]] * 20)
    index.add(["zero", "negative zero"], [np.eye(2)[1:], -np.eye(2)[1:]])
    query = np.eye(2)[:1]
    [found] = index.search(query, 7)
    assert [hit.id for hit in found] == [f"equal {i}" for i in range(7)]
    [found] = index.search(query, 30)
    assert [hit.id for hit in found] == [*(f"equal {i}" for i in range(20)), "lower", "zero", "negative zero"]


@pytest.mark.parametrize("long", ["documents", "queries"])
def test_vectors_beyond_half_precision_are_scored_in_single(long):
    index = on_device(indexes.Flat(dtype="float16"))
    factors = {"documents": (3e4, 1.0), "queries": (1.0, 1e5)}[long]
    index.add(["a", "b"], [factors[0] * np.eye(4)[:2], factors[0] * np.eye(4)[2:]])
    [[first, second]] = index.search(factors[1] * np.array([[1.0, 0.0, 0.5, 0.0]]), 2)
    assert (first.id, second.id) == ("a", "b")
    assert (first.score, second.score) == pytest.approx((max(factors), max(factors) / 2), rel=1e-2)


def test_the_copy_follows_the_index():
    index = on_device(indexes.Flat())
    for i in range(4):
        index.add(i, matrices([3], seed=i)[0])
    query = matrices([2], seed=9)
    check_hits(index.search(query, 9), expected_hits(index, query, 9))
    index.update(1, matrices([4], seed=8)[0])
    index.remove(2)
    check_hits(index.search(query, 9), expected_hits(index, query, 9))
    index.compact()
    check_hits(index.search(query, 9), expected_hits(index, query, 9))


@pytest.mark.skipif(torch.cuda.is_available(), reason="has the device")
def test_a_device_that_is_not_there(tmp_path):
    indexes.IVF(tmp_path / "index").close()
    for make in (indexes.Flat, indexes.IVF, lambda device: indexes.open(tmp_path / "index", device=device)):
        with pytest.raises(InvalidArgumentError, match="device 'cuda' was asked for"):
            make(device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(tmp_path):
    with indexes.Flat(tmp_path / "index", device="cuda") as index:
        index.add(range(50), matrices(range(1, 51)))
        queries = matrices([3, 1], seed=2)
        check_hits(index.search(queries, 6), expected_hits(index, queries, 6))
        assert repr(index).endswith("searched on cuda)")
