"""Imports and copies between kinds of index: equal contents, resumption, conflicts, and codes that stay as they are."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_helpers import check_stored, matrices
from transfer_helpers import IDS, LENGTHS, check_contents, fill, random_documents

from latelier import indexes
from latelier.errors import DuplicateIdError, EmbeddingsError, InvalidArgumentError, ReadOnlyIndexError, StorageError
from latelier.indexes.store import rows as catalog_metadata

SETTINGS = {"language": {"name": "de", "weights": [0.1, 2**60]}, "none": None}


@pytest.fixture
def export(tmp_path):
    """An export of 100 documents in several chunks, and what it holds."""
    source = indexes.Flat()
    source.add(*random_documents(100))
    source.settings["model"] = "one"
    indexes.export_documents(source, tmp_path / "export", chunk_size=4000)
    return tmp_path / "export"


def test_an_import_into_each_kind(index, tmp_path):
    indexes.export_documents(fill(indexes.Flat()), tmp_path / "out", chunk_size=200)
    report = indexes.import_documents(tmp_path / "out", index, batch_size=300)
    assert (report.documents, report.tokens, report.written) == (9, 26, 9)
    assert report.destination == repr(index)
    check_contents(index)
    for stored, given_ in zip(index.get_embeddings(IDS), matrices(LENGTHS, 8), strict=True):
        check_stored(index, stored, given_)
    assert dict(index.settings) == SETTINGS
    assert indexes.import_documents(tmp_path / "out", index).written == 0  # compared with what a quantised index holds
    check_contents(index)


def test_a_copy_from_and_to_each_kind(index, tmp_path):
    report = indexes.copy_documents(fill(indexes.Flat()), index, batch_size=300)
    assert report.written == 9
    check_contents(index)
    back = indexes.Flat()
    indexes.copy_documents(index, back)
    check_contents(back)
    assert back.get_embeddings(IDS) == index.get_embeddings(IDS).to("float32")
    assert dict(back.settings) == dict(index.settings) == SETTINGS


def test_deep_metadata_that_an_older_version_has_stored_is_moved(index, tmp_path, monkeypatch):
    deep = {"deep": json.loads("[" * 300 + "]" * 300)}
    source = indexes.Flat()
    with monkeypatch.context() as older:
        older.setattr(catalog_metadata, "_MOST_LEVELS", 400)
        source.add(["a", "b"], matrices([2, 3], 8), ["one", "two"], [deep, {}])
    indexes.export_documents(source, tmp_path / "out")
    assert indexes.import_documents(tmp_path / "out", index).written == 2
    assert index.get("a").metadata == deep
    again = indexes.Flat()
    indexes.copy_documents(index, again)
    assert again.get("a").metadata == deep
    with pytest.raises(InvalidArgumentError, match="nested 100 levels deep"):
        index.add("c", matrices([2], 8), metadata=deep)


@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
@pytest.mark.parametrize("dim", [128, 48])
def test_codes_stay_as_they_are_from_ivf_to_ivf(nbits, dim):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((4000, dim)).astype("float32")
    source, target = indexes.IVF(nbits=nbits), indexes.IVF(nbits=nbits)
    source.add(range(200), list(vectors.reshape(200, 20, dim)))
    indexes.copy_documents(source, target)
    before, after = (index.get_embeddings(range(200)).vectors for index in (source, target))
    same = (before == after).all(axis=1).mean()
    # At 4 bits, a vector whose largest number was cut off gets another step; at 8, 2 and 1 bits no vector does.
    assert same == 1 if nbits != 4 else same > (0.999 if dim == 128 else 0.99)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
documents = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1) | text.filter(bool),
        st.none() | text,
        st.dictionaries(text.filter(bool), values, max_size=3),
        st.integers(1, 5),
    ),
    unique_by=lambda row: (type(row[0]), row[0]),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=documents, chunk=st.integers(1, 2000), batch=st.integers(1, 2000), dtype=st.sampled_from(["f4", "f2"]))
def test_what_an_index_accepts_comes_back(rows, chunk, batch, dtype, tmp_path_factory):
    ids, texts, metadata, lengths = (list(column) for column in zip(*rows, strict=True))
    source = indexes.Flat(dtype=np.dtype(dtype).name)
    source.add(ids, matrices(lengths), texts, metadata)
    folder = tmp_path_factory.mktemp("out")
    indexes.export_documents(source, folder, chunk_size=chunk)
    target = indexes.Flat(dtype=np.dtype(dtype).name)
    indexes.import_documents(folder, target, batch_size=batch)
    check_contents(target, ids, texts, metadata)
    assert target.get_embeddings(ids) == source.get_embeddings(ids)


@pytest.mark.parametrize("kind", [indexes.Flat, indexes.IVF])
def test_an_import_goes_on_where_it_was_interrupted(kind, export):
    ids, vectors, texts, metadata = random_documents(100)
    target = kind()
    target.settings["model"] = "one"
    target.add(ids[:37], vectors[:37], texts[:37], metadata[:37])
    report = indexes.import_documents(export, target, batch_size=3000)
    assert (report.kept, report.written) == (37, 63)
    check_contents(target, ids, texts, metadata)


@pytest.mark.parametrize(
    "other",
    [
        lambda vectors: ("doc 7", vectors, "another text", {"n": 7}),
        lambda vectors: ("doc 7", vectors, "", {"n": 8}),
        lambda vectors: ("doc 7", vectors[:-1], "", {"n": 7}),
        lambda vectors: ("doc 7", -vectors, "", {"n": 7}),
    ],
    ids=["text", "metadata", "tokens", "vectors"],
)
@pytest.mark.parametrize("kind", [indexes.Flat, lambda: indexes.IVF(nbits=1)])
def test_another_document_with_an_id_of_the_export_is_refused(kind, other, export):
    target = kind()
    target.settings["model"] = "one"
    target.add(*other(random_documents(8)[1][7]))
    with pytest.raises(DuplicateIdError, match="'doc 7' is in the index already, with another text, other metadata or"):
        indexes.import_documents(export, target, batch_size=100)
    assert target.ids() == ["doc 7", 0, "doc 1", "doc 2", 3, "doc 4", "doc 5", 6]
    target.remove("doc 7")
    assert indexes.import_documents(export, target).written == 93


def test_an_import_beside_other_documents(export):
    target = indexes.Flat()
    target.add("mine", np.ones((2, 16)))
    with pytest.raises(InvalidArgumentError, match="does not have the settings 'model' of the source"):
        indexes.import_documents(export, target)
    assert (len(target), dict(target.settings)) == (1, {})
    report = indexes.import_documents(export, target, settings=False)
    assert (report.written, len(target), dict(target.settings)) == (100, 101, {})
    empty = indexes.Flat()
    empty.settings.update(model="two", mine=1)
    with pytest.raises(InvalidArgumentError, match="settings 'model' of the source"):
        indexes.import_documents(export, empty)
    empty.settings["model"] = "one"
    indexes.import_documents(export, empty)
    assert dict(empty.settings) == {"model": "one", "mine": 1}


def test_an_index_that_cannot_take_the_documents(export, tmp_path):
    target = indexes.Flat()
    target.add("a", np.ones((1, 8)))
    with pytest.raises(EmbeddingsError, match=r"the vectors have 16 dimensions, those of Flat.* have 8"):
        indexes.import_documents(export, target)
    indexes.Flat(tmp_path / "index").close()
    with indexes.open(tmp_path / "index", read_only=True) as readable, pytest.raises(ReadOnlyIndexError, match="read"):
        indexes.import_documents(export, readable)
    with pytest.raises(InvalidArgumentError, match="the same index"):
        indexes.copy_documents(target, target)
    one, same = indexes.Flat(tmp_path / "index"), indexes.open(tmp_path / "index")
    with one, same, pytest.raises(InvalidArgumentError, match="the same index"):
        indexes.copy_documents(one, same)


def test_documents_that_others_remove_meanwhile_are_missed(export):
    class Leaking(indexes.Flat):
        def add(self, ids, *more, **options):
            super().add(ids, *more, **options)
            self.remove("doc 50") if "doc 50" in self else None

    with pytest.raises(StorageError, match="others removed 1 of the documents meanwhile, such as 'doc 50'"):
        indexes.import_documents(export, Leaking(), batch_size=1000)
