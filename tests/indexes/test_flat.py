"""Flat: blocks of any size give the hits of a double loop; the first searches of a process, by numpy, find the same."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import check_hits, expected_hits, matrices

from instructions import forced
from latelier import indexes


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=30), st.data())
def test_any_selection_in_any_blocks_equals_the_double_loop(lengths, data):
    """Slices, copies and skipped blocks, with the block size turned down so that all of them occur."""
    index = indexes.Flat()
    ids = list(range(len(lengths)))
    index.add(ids, matrices(lengths), metadata=[{"n": i} for i in ids])
    chosen = data.draw(st.lists(st.sampled_from(ids), unique=True))
    queries = matrices([2, 3], seed=9)
    index._block = index._block._replace(tokens=data.draw(st.integers(1, 12)), scores=data.draw(st.integers(2, 12)))
    hits = index.search(queries, k=4, filter=f"n IN ({', '.join(map(str, chosen))})")
    check_hits(hits, expected_hits(index, queries, 4, keep=lambda id: id in chosen))


def test_searching_takes_bounded_memory(tmp_path):
    """A small part of what the vectors take, also when most documents are filtered out or removed."""
    with indexes.Flat(tmp_path / "index", dtype="float16") as index:
        count, tokens = 3000, 100
        vectors = np.random.default_rng(0).standard_normal((tokens, 64)).astype("float16")
        index.add(range(count), (vectors for _ in range(count)), metadata=({"n": i % 3} for i in range(count)))
        stored = count * vectors.nbytes  # 38 MB
        index.search(np.ones((2, 64)))
        tracemalloc.start()
        assert len(index.search(np.ones((2, 64)), k=5)[0]) == 5
        assert len(index.search(np.ones((2, 64)), k=5, filter="n = 1")[0]) == 5
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < stored / 2


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numpy_finds_what_the_kernels_find(dtype):
    """In two segments, with removed documents and with a filter."""
    rng = np.random.default_rng(0)
    matrices = [rng.standard_normal((n, 48), dtype="float32") for n in rng.integers(1, 12, 700)]
    queries = [matrices[i][:5] + rng.standard_normal((len(matrices[i][:5]), 48), dtype="float32") for i in (3, 600)]
    with indexes.Flat(dtype=dtype) as index:
        index.add(range(400), matrices[:400], metadata=[{"even": i % 2 == 0} for i in range(400)])
        index.add(range(400, 700), matrices[400:], metadata=[{"even": i % 2 == 0} for i in range(300)])
        index.remove(list(range(0, 700, 7)))
        for arguments in ({}, {"filter": "even = ?", "parameters": (1,)}, {"k": 1000}):
            expected = index.search(queries, **arguments)
            with forced("numpy"):
                found = index.search(queries, **arguments)
                assert index.search([], **arguments) == []
            for mine, theirs in zip(found, expected, strict=True):
                assert [hit.id for hit in mine] == [hit.id for hit in theirs]
                np.testing.assert_allclose([hit.score for hit in mine], [hit.score for hit in theirs], atol=1e-4)
