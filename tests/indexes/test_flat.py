"""Flat: blocks of any size give the hits of a double loop, and bound the memory of a search."""

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from index_helpers import check_hits, expected_hits, matrices

from latelier import indexes
from latelier.indexes.exact import BlockSize


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=30), st.data())
def test_any_selection_in_any_blocks_equals_the_double_loop(lengths, data):
    """Slices, copies and skipped blocks, with the block size turned down so that all of them occur."""
    index = indexes.Flat()
    ids = list(range(len(lengths)))
    index.add(ids, matrices(lengths), metadata=[{"n": i} for i in ids])
    chosen = data.draw(st.lists(st.sampled_from(ids), unique=True))
    queries = matrices([2, 3], seed=9)
    index._block = BlockSize(data.draw(st.integers(1, 12)), data.draw(st.integers(2, 12)))
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
