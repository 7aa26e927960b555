"""A retriever within a memory budget: its index, and how much is encoded at a time."""

import pytest

from latelier import indexes
from latelier.errors import InvalidArgumentError
from latelier.indexes.stored import least_working_memory
from latelier.retrieve import Retriever
from latelier.retrieve.indexing import bounded_sizes

MB = 1_000_000


def test_less_is_encoded_at_a_time_and_the_vectors_are_the_same(model, tmp_path):
    texts = [f"Document {i} is about {i % 7} pears and the moon." for i in range(60)]
    budget = least_working_memory() + MB
    with Retriever(model, tmp_path / "bounded", max_memory=budget) as bounded, Retriever(model) as free:
        batch, chunk = bounded_sizes(bounded.index, bounded._model, 32, 2048)
        length, dim = bounded._model.document_limits[1], bounded._model.dim
        assert 4 * chunk * length * dim <= bounded.index.memory.working / 4 < 4 * (chunk + 1) * length * dim
        assert batch < 32
        assert bounded_sizes(free.index, free._model, 32, 2048) == (32, 2048)
        for retriever in (bounded, free):
            retriever.add(texts)
        found, expected = ([(r.id, r.text) for r in one.search("the moon", k=5)] for one in (bounded, free))
        assert found == expected


def test_a_budget_is_for_an_index_given_by_its_folder(model, tmp_path):
    with pytest.raises(InvalidArgumentError, match="max_memory='1GB' for an open index"):
        Retriever(model, indexes.Flat(), max_memory="1GB")
    with pytest.raises(InvalidArgumentError, match=r"received max_memory=2\.0 MB, but an index of these documents"):
        Retriever(model, tmp_path / "index", max_memory="2MB")
