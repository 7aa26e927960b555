"""Documents read in batches, in parts of several threads: the same as one after the other."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError
from latelier.indexes import documents as inputs
from latelier.indexes.documents import DocumentBatches, GivenDocuments

DIM = 4


class Convertible:
    """A matrix that has neither a shape nor a length, as of a library of arrays that numpy can convert."""

    def __init__(self, matrix, shape=None):
        self.matrix = matrix
        if shape is not None:
            self.shape = shape

    def __array__(self, dtype=None, copy=None):
        return self.matrix.astype(dtype)


KINDS = {
    "numpy": lambda matrix: matrix,
    "float64": lambda matrix: matrix.astype("float64"),
    "torch": torch.from_numpy,
    "lists": lambda matrix: matrix.tolist(),
    "convertible": Convertible,
    "packed": lambda matrix: TokenEmbeddings.from_list([matrix]),
}


def tokens_of(lengths):
    numbers = np.arange(sum(lengths) * DIM, dtype="float32").reshape(-1, DIM)
    return np.split(numbers, np.cumsum(lengths)[:-1])


@given(
    documents=st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 5)), min_size=1, max_size=60),
    threads=st.sampled_from([1, 3]),
    batch_bytes=st.sampled_from([1, 200, 1 << 20]),
)
def test_batches_hold_the_documents_in_their_order(documents, threads, batch_bytes):
    torch.set_num_threads(threads)
    matrices = tokens_of([length for _, length in documents])
    items = [KINDS[kind](matrix) for (kind, _), matrix in zip(documents, matrices, strict=True)]
    batches = DocumentBatches(GivenDocuments(range(len(items)), iter(items)), batch_bytes=batch_bytes)
    read = list(batches.read(None, lambda embeddings, _: {"sums": embeddings.vectors.sum(axis=1)}))
    assert [id for batch in read for id in batch.documents.ids] == list(range(len(items)))
    assert [length for batch in read for length in batch.lengths] == [length for _, length in documents]
    for batch in read:
        assert batch.dim == DIM
        assert len(batch.arrays["sums"]) == batch.lengths.sum()
    sums = np.concatenate([batch.arrays["sums"] for batch in read])
    np.testing.assert_array_equal(sums, np.concatenate(matrices).sum(axis=1))


@pytest.mark.parametrize("kind", ["numpy", "float16", "torch", "lists", "rows"])
def test_no_more_is_read_ahead_than_a_batch_whatever_holds_the_numbers(kind):
    matrix = np.ones((50, 16), "float32")  # 3,200 bytes
    kinds = {**KINDS, "float16": lambda each: each.astype("float16"), "rows": lambda each: [*torch.from_numpy(each)]}
    read = []

    def documents():
        for i in range(100):
            read.append(i)
            yield kinds[kind](matrix)

    batches = DocumentBatches(GivenDocuments(range(100), documents()), batch_bytes=16_000)
    first = next(batches.read(None, lambda embeddings, _: {"vectors": embeddings.vectors}))
    assert len(first.lengths) == len(read) == 5


@pytest.mark.parametrize("threads", [1, 3])
def test_embeddings_that_change_while_they_are_read_are_refused(threads):
    torch.set_num_threads(threads)
    matrices = [*tokens_of([2] * 20), Convertible(np.ones((2, DIM), "float32"), shape=(3, DIM))]
    batches = DocumentBatches(GivenDocuments(range(21), matrices))
    with pytest.raises(EmbeddingsError, match=r"documents \d+ to 20 have \d+ tokens, and had \d+ before; do not"):
        list(batches.read(None, lambda embeddings, _: {"vectors": embeddings.vectors}))


@pytest.mark.parametrize("shows", [True, False])
def test_vectors_are_looked_at_unless_their_arrays_show_that_they_are_finite(shows):
    bad = np.array([[1.0, np.nan]], "float32")
    batches = DocumentBatches(GivenDocuments(["a", "b"], [np.ones((1, 2), "float32"), bad]))

    def read():
        return list(batches.read(2, lambda embeddings, _: {"vectors": embeddings.vectors}, lambda _: shows))

    if shows:
        assert np.isnan(read()[0].arrays["vectors"][1, 1])
    else:
        with pytest.raises(EmbeddingsError, match="document 'b' holds NaN or infinity"):
            read()


def test_no_memory_is_taken_for_what_is_refused(monkeypatch):
    taken = []
    monkeypatch.setattr(inputs, "_provide", taken.append)
    batches = DocumentBatches(GivenDocuments(["a", "b"], [np.ones((2, DIM)), np.zeros(1 << 20)]))
    with pytest.raises(EmbeddingsError, match=r"document 'b' has embeddings of shape \(1048576,\)"):
        list(batches.read(None, lambda embeddings, _: {"codes": embeddings.vectors}))
    assert taken == []
