"""Copies between kinds of index, and to and from Parquet files: equal contents, resumption, conflicts."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_helpers import check_stored, matrices
from index_tampering import file_of, flip, make

from latelier import indexes
from latelier.errors import (
    CorruptedIndexError,
    DuplicateIdError,
    EmbeddingsError,
    InvalidArgumentError,
    ReadOnlyIndexError,
)

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

SETTINGS = {"language": {"name": "de", "weights": [0.1, 2**60]}, "none": None}
# Both types of id, and metadata that no column can hold as it is: it comes back exactly.
IDS = ["a", 3, "3", -(2**63), "é'\"", "z"]
LENGTHS = [1, 4, 2, 5, 3, 1]
TEXTS = ["one", None, "", "line\nend", "ü" * 99, "last"]
METADATA = [
    {"year": 2020, "id": "of mine", "metadata.x": 1, "mixed": 1},
    {"year": 2**70, "mixed": "1", "nothing": None},
    {},
    {"tags": ["x", {"deep": [1.5, None]}], "flag": True, "share": 0.1, "lang": "en"},
    {"Year": 1, "vectors": 2, "flag": False, "share": -0.0},
    {"mixed": True},
]


def fill(index):
    index.add(IDS, matrices(LENGTHS, 8), TEXTS, METADATA)
    index.settings.update(SETTINGS)
    return index


def check_contents(index):
    assert index.ids() == IDS
    assert [tuple(record) for record in index.get(IDS)] == list(zip(IDS, TEXTS, METADATA, strict=True))
    assert repr([record.metadata for record in index.get(IDS)]) == repr(METADATA)  # True is 1, but not here
    for stored, given_ in zip(index.get_embeddings(IDS), matrices(LENGTHS, 8), strict=True):
        check_stored(index, stored, given_)
    assert dict(index.settings) == SETTINGS


def plain(count, dim=16):
    ids = [i if i % 3 == 0 else f"doc {i}" for i in range(count)]
    rng = np.random.default_rng(0)
    vectors = [rng.integers(-8, 9, (int(n), dim)).astype("float32") for n in rng.integers(1, 9, count)]
    return ids, vectors, ["x" * (i % 5) for i in range(count)], [{"n": i} for i in range(count)]


@pytest.fixture
def source():
    index = indexes.Flat()
    index.add(*plain(100))
    index.settings["model"] = "one"
    return index


def test_a_copy_from_and_to_each_kind(index, tmp_path):
    report = indexes.copy_documents(fill(indexes.Flat()), index, batch_size=300)
    assert (report.documents, report.tokens, report.written, report.kept) == (6, sum(LENGTHS), 6, 0)
    assert report.destination == repr(index)
    check_contents(index)
    assert indexes.copy_documents(fill(indexes.Flat()), index).kept == 6  # compared with what a quantised index holds
    file = tmp_path / "moved.parquet"
    assert indexes.copy_documents(index, file, batch_size=300).destination == str(file)
    for each in (index, file):
        back = indexes.Flat()
        assert indexes.copy_documents(each, back, batch_size=300).written == 6
        assert back.get_embeddings(IDS) == index.get_embeddings(IDS).to("float32")
        assert back.get(IDS) == index.get(IDS)
        assert dict(back.settings) == SETTINGS


def test_columns_of_a_file(tmp_path):
    index = indexes.Flat(dtype="float16")
    index.add(["a", "b"], matrices([2, 3]), ["one", None], [{"year": 2020, "text": "x"}, {"year": 1999, "tags": ["y"]}])
    indexes.copy_documents(index, tmp_path / "x.parquet", batch_size=1)
    file = parquet.ParquetFile(tmp_path / "x.parquet")
    assert file.num_row_groups == 1  # the first documents are read together
    table = file.read()
    assert table.schema.field("year").type == pyarrow.int64()
    assert table.schema.field("vectors").type.value_type.value_type == pyarrow.float16()
    rows = table.to_pylist()
    vectors = [row.pop("vectors") for row in rows]
    assert rows == [
        {"id": "a", "text": "one", "year": 2020, "metadata.text": "x", "tags": None},
        {"id": "b", "text": None, "year": 1999, "metadata.text": None, "tags": '["y"]'},
    ]
    for mine, given_ in zip(vectors, matrices([2, 3]), strict=True):
        np.testing.assert_array_equal(np.array(mine, "float32"), given_)


def test_files_of_other_programs(tmp_path):
    file = tmp_path / "x.parquet"
    vectors = [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]]
    parquet.write_table(pyarrow.table({"vectors": vectors, "lang": ["en", None], "id": [7, 8]}), file)
    index = indexes.Flat()
    indexes.copy_documents(str(file), index)
    assert [tuple(record) for record in index.get([7, 8])] == [(7, None, {"lang": "en"}), (8, None, {})]
    assert [matrix.tolist() for matrix in index.get_embeddings([7, 8])] == vectors
    with pytest.raises(InvalidArgumentError, match="one of them must be an index"):
        indexes.copy_documents(file, tmp_path / "y.parquet")
    with pytest.raises(InvalidArgumentError, match="exists already"):
        indexes.copy_documents(index, file)
    with pytest.raises(InvalidArgumentError, match="the name of a"):
        indexes.copy_documents(index, tmp_path / "folder")
    file.write_bytes(file.read_bytes()[:-50])
    for unreadable in (file, tmp_path / "missing.parquet"):
        with pytest.raises(InvalidArgumentError, match="not a Parquet file"):
            indexes.copy_documents(unreadable, index)


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"id": ["a"]}, InvalidArgumentError, "needs the columns 'id' and 'vectors'"),
        ({"id": ["a"], "vectors": [[1.0]]}, InvalidArgumentError, "give lists of lists"),
        ({"id": ["a"], "vectors": [[[1.0], [1.0, 2.0]]]}, EmbeddingsError, "differ in dim"),
        ({"id": ["a"], "vectors": [[[1.0, None]]]}, EmbeddingsError, "missing numbers"),
        ({"id": ["a", "a"], "vectors": [[[1.0]]] * 2}, DuplicateIdError, "in the source twice"),
    ],
)
def test_files_that_hold_no_documents(columns, error, message, tmp_path):
    file, index = tmp_path / "x.parquet", indexes.Flat()
    parquet.write_table(pyarrow.table(columns), file)
    with pytest.raises(error, match=message):
        indexes.copy_documents(file, index)
    assert len(index) == 0


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
    max_size=12,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=documents, size=st.integers(1, 2000), dtype=st.sampled_from(["float32", "float16"]))
def test_what_an_index_accepts_comes_back_from_a_file(rows, size, dtype, tmp_path_factory):
    ids, texts, metadata, lengths = (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 4
    source, target = indexes.Flat(dtype=dtype), indexes.Flat(dtype=dtype)
    source.add(ids, matrices(lengths), texts, metadata)
    file = tmp_path_factory.mktemp("out") / "x.parquet"
    indexes.copy_documents(source, file, batch_size=size)
    indexes.copy_documents(file, target, batch_size=size)
    assert target.ids() == ids
    assert [tuple(record) for record in target.get(ids)] == list(zip(ids, texts, metadata, strict=True))
    assert not ids or target.get_embeddings(ids) == source.get_embeddings(ids)


@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
def test_codes_stay_as_they_are_from_ivf_to_ivf(nbits):
    vectors = np.random.default_rng(0).standard_normal((1000, 64)).astype("float32")
    source, target = indexes.IVF(nbits=nbits), indexes.IVF(nbits=nbits)
    source.add(range(100), list(vectors.reshape(100, 10, 64)))
    indexes.copy_documents(source, target)
    before, after = (index.get_embeddings(range(100)).vectors for index in (source, target))
    lost = np.linalg.norm(before - after, axis=1).mean() / np.linalg.norm(vectors, axis=1).mean()
    assert lost < (0.002 if nbits == 8 else 1e-4)  # at 8 bits the codes lose 0.006, and at fewer bits much more


@pytest.mark.parametrize("kind", [indexes.Flat, indexes.IVF])
def test_a_copy_goes_on_where_it_was_interrupted(kind, source, tmp_path):
    indexes.copy_documents(source, tmp_path / "x.parquet")
    for each in (source, tmp_path / "x.parquet"):
        ids, vectors, texts, metadata = plain(100)
        target = kind()
        target.settings["model"] = "one"
        target.add(ids[:37], vectors[:37], texts[:37], metadata[:37])
        report = indexes.copy_documents(each, target, batch_size=3000)
        assert (report.kept, report.written) == (37, 63)
        assert "37 were there already" in str(report)
        assert target.get(ids) == source.get(ids)


@pytest.mark.parametrize(
    "other",
    [
        lambda vectors: ("doc 7", vectors, "another text", {"n": 7}),
        lambda vectors: ("doc 7", vectors, "xx", {"n": 8}),
        lambda vectors: ("doc 7", np.concatenate([vectors, vectors]), "xx", {"n": 7}),
        lambda vectors: ("doc 7", -vectors, "xx", {"n": 7}),
    ],
    ids=["text", "metadata", "tokens", "vectors"],
)
@pytest.mark.parametrize("kind", [indexes.Flat, lambda: indexes.IVF(nbits=1)])
def test_another_document_with_an_id_of_the_source_is_refused(kind, other, source):
    target = kind()
    target.settings["model"] = "one"
    target.add(*other(plain(100)[1][7]))
    with pytest.raises(DuplicateIdError, match="'doc 7' is in the index already, with another"):
        indexes.copy_documents(source, target)
    target.remove("doc 7")
    assert indexes.copy_documents(source, target).documents == 100


def test_a_copy_beside_other_documents(source):
    target = indexes.Flat()
    target.add("mine", np.ones((2, 16)))
    with pytest.raises(InvalidArgumentError, match="does not have the settings 'model'"):
        indexes.copy_documents(source, target)
    assert (len(target), dict(target.settings)) == (1, {})
    report = indexes.copy_documents(source, target, settings=False)
    assert (report.written, len(target), dict(target.settings)) == (100, 101, {})


def test_an_index_that_cannot_take_the_documents(source, tmp_path):
    target = indexes.Flat()
    target.add("a", np.ones((1, 8)))
    with pytest.raises(EmbeddingsError, match=r"dim 16"):
        indexes.copy_documents(source, target, settings=False)
    indexes.Flat(tmp_path / "index").close()
    with indexes.open(tmp_path / "index", read_only=True) as index, pytest.raises(ReadOnlyIndexError, match="read"):
        indexes.copy_documents(source, index)


def test_damaged_documents_are_not_copied(tmp_path):
    damaged = make(tmp_path / "index")
    flip(file_of(damaged, "a", "vectors.npy"), -1, bit=3)
    with indexes.open(damaged) as index:
        for target in (indexes.Flat(), tmp_path / "x.parquet"):
            with pytest.raises(CorruptedIndexError, match=r"4 documents of .*, such as 'a'"):
                indexes.copy_documents(index, target)
        index.update(["a", "b", "c", "d"], matrices([3, 3, 3, 3]))
        assert indexes.copy_documents(index, indexes.Flat()).written == len(index)
