"""Arguments of an index: every accepted form means the same, all others raise an error before anything changes."""

import array
import copy
import datetime
import enum
import pickle
import sqlite3
import types
import uuid

import numpy as np
import pytest
import torch
from index_helpers import check_stored, contents, keeps_vectors, matrices

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.errors import DuplicateIdError, EmbeddingsError, InvalidArgumentError, LatelierError, UnknownIdError

NAN = float("nan")


def one(*rows):
    return np.array(rows, dtype="float32")


FINE = one([1, 0])


def as_generator(found):
    return (matrix for matrix in found)


FORMS = {
    "arrays": lambda found: found,
    "tuple of tensors": lambda found: tuple(torch.from_numpy(matrix) for matrix in found),
    "mixed kinds": lambda found: [torch.from_numpy(found[0]).bfloat16(), *(m.astype("float64") for m in found[1:])],
    "float16": lambda found: [torch.from_numpy(matrix).half() for matrix in found],
    "with gradient": lambda found: [torch.from_numpy(matrix).requires_grad_() for matrix in found],
    "not contiguous": lambda found: [np.asfortranarray(matrix)[:, ::-1][:, ::-1] for matrix in found],
    "nested lists": lambda found: [matrix.tolist() for matrix in found],
    "packed": TokenEmbeddings.from_list,
    "packed bfloat16": lambda found: TokenEmbeddings.from_list(found).to("bfloat16"),
    "generator of matrices": as_generator,
    "generator of batches": lambda found: (TokenEmbeddings.from_list([matrix]) for matrix in found),
    "batches and matrices": lambda found: iter([found[0], TokenEmbeddings.from_list(found[1:])]),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_embeddings_means_the_same(index, form):
    found = matrices([2, 1, 3])
    index.add(["a", "b", "c"], form(found))
    for stored, given in zip(index.get_embeddings(["a", "b", "c"]), found, strict=True):
        check_stored(index, stored, given)


def test_int8_with_scales_is_dequantised(index):
    packed = TokenEmbeddings.from_list(matrices([2, 3])).to("int8")
    index.add(["a", "b"], packed)
    if keeps_vectors(index):
        np.testing.assert_allclose(index.get_embeddings("b")[0], packed[1], atol=2e-3)
    else:
        check_stored(index, index.get_embeddings("b")[0], packed.to("float32")[1])


class Key(str, enum.Enum):
    """Whose str() is its name: "Key.YEAR"."""

    YEAR = "year"


class Number(enum.IntEnum):
    SEVEN = 7


def test_subclasses_of_text_and_numbers_are_stored_as_what_they_are(index):
    """What numpy, pandas and enums hand out is compared with what comes back from the catalog."""
    ids = np.array(["a", "b", "year", 7], dtype=object)
    texts = np.array(["x", "y", "z", "u"])
    metadata = [
        {Key.YEAR: np.float64(1.5), "name": np.str_("n"), "key": Key.YEAR, "list": [np.float64(0.5), Key.YEAR]},
        {"year": 2.5},
        {"year": -0.0},
        {"year": Number.SEVEN, "big": 2**70},
    ]
    index.add([np.str_("a"), "b", Key.YEAR, Number.SEVEN], matrices([1, 1, 1, 1]), texts, metadata)
    index.settings[Key.YEAR] = np.str_("model")
    assert index.ids() == list(ids)
    assert {type(id) for id in index.ids()} == {str, int}
    assert [record.text for record in index.get(list(ids))] == ["x", "y", "z", "u"]
    expected = {"year": 1.5, "name": "n", "key": "year", "list": [0.5, "year"]}
    assert index.get("a").metadata == expected
    assert index.get(Number.SEVEN).metadata == {"year": 7, "big": 2**70}
    assert dict(index.settings) == {"year": "model"}
    assert len(index.search(matrices([1]), filter="key = 'year' AND name = 'n' AND year > 1")[0]) == 1
    assert index.verify().is_whole


def test_one_document_needs_no_lists(index):
    index.add("a", FINE, texts="the text", metadata={"x": 1})
    index.add(5, [np.eye(2).tolist()])
    index.update("b", TokenEmbeddings.from_list([FINE]))
    assert index.ids() == ["a", 5, "b"]
    assert index.get("a") == ("a", "the text", {"x": 1})


def test_numpy_ids_become_plain_ones(index):
    index.add(np.arange(2), [FINE, FINE])
    index.add(np.array(["x"]), [FINE])
    assert [(id, type(id)) for id in index.ids()] == [(0, int), (1, int), ("x", str)]
    assert np.int64(1) in index
    assert index.get(np.int64(1)).id == 1


def test_all_columns_may_be_generators(index):
    count = 2500  # more than one part
    ids = (f"d{i}" for i in range(count))
    vectors = (one([i % 7, 1]) for i in range(count))
    index.add(ids, vectors, texts=(str(i) for i in range(count)), metadata=({"n": i} for i in range(count)))
    assert len(index) == count
    assert index.get("d2499") == ("d2499", "2499", {"n": 2499})


def test_nothing_to_add_is_fine(index):
    index.add([], [])
    index.update(iter(()), iter(()))
    index.remove([])
    assert (len(index), index.get([])) == (0, [])


MASKED = np.ma.masked_array(np.eye(2), mask=[[True, False], [False, False]])
REFUSED_DOCUMENTS = {
    "nan": (["b"], [one([NAN, 0])], EmbeddingsError, "document 'b' holds NaN or infinity"),
    "inf": (["b", 3], [FINE, one([0, 1], [0, float("inf")])], EmbeddingsError, "document 3 holds NaN or infinity"),
    "no token": (["b", "c"], [FINE, FINE[:0]], EmbeddingsError, "document 'c' has no token"),
    "other dim": (["b", "c"], [FINE, one([1, 2, 3])], EmbeddingsError, "document 'c' has dim 3, .* dim 2"),
    "not the index's dim": (["b"], [one([1, 2, 3])], EmbeddingsError, "document 'b' has dim 3, .* dim 2"),
    "packed dim": (["b"], TokenEmbeddings.from_list([one([1, 2, 3])]), EmbeddingsError, "'b' has dim 3, .* dim 2"),
    "dim 0": (["b"], [np.zeros((2, 0))], EmbeddingsError, "document 'b' has dim 0"),
    "padded": (["b"], np.zeros((1, 2, 2)), EmbeddingsError, r"shape \(1, 2, 2\).*from_padded"),
    "padded inside": (["b"], [torch.zeros(1, 2, 2)], EmbeddingsError, r"'b' has .* shape \(1, 2, 2\).*from_padded"),
    "vector": (["b"], [np.zeros(2)], EmbeddingsError, r"document 'b' has embeddings of shape \(2,\)"),
    "integers": (["b"], [np.ones((1, 2), dtype="int8")], EmbeddingsError, "dtype int8.*scales"),
    "words": (["b"], ["word"], EmbeddingsError, "document 'b' came with str"),
    "one matrix": (["b", "c"], np.ones((2, 2)), InvalidArgumentError, "a single matrix needs a single id"),
    "no embeddings": (["b"], None, InvalidArgumentError, "received NoneType as embeddings"),
    "twice": (["b", "c", "b"], [FINE] * 3, DuplicateIdError, "'b' is given twice in this call"),
    "empty id": ([""], [FINE], InvalidArgumentError, "received '' .*as an id"),
    "bool id": ([True], [FINE], InvalidArgumentError, "received True .bool. as an id"),
    "float id": ([1.5], [FINE], InvalidArgumentError, "received 1.5 .float. as an id"),
    "wide id": ([2**63], [FINE], InvalidArgumentError, "int of 64 bits"),
    "broken id": (["\ud800"], [FINE], InvalidArgumentError, "valid Unicode"),
    "no ids": (None, [FINE], InvalidArgumentError, "received None as ids"),
    "ids without dimensions": (np.array(5.0), [FINE], InvalidArgumentError, "array without dimensions as ids"),
    "few ids": (["b"], [FINE, FINE], InvalidArgumentError, "ids ended after 1 documents"),
    "nested list": (
        "b",
        np.eye(2).tolist(),
        InvalidArgumentError,
        r"more embeddings.*are one array \(tokens, dim\), not a list",
    ),
    "masked": (
        ["b"],
        [MASKED],
        EmbeddingsError,
        "document 'b' came with a masked array that leaves out 1 of 4 numbers",
    ),
    "masked rows": (
        ["b"],
        [list(MASKED)],
        EmbeddingsError,
        "'b' came with a masked array that leaves out 1 of 4 numbers",
    ),
    "masked alone": ("b", MASKED, EmbeddingsError, "document 'b' came with a masked array that leaves out 1 of 4"),
    "few embeddings": (
        ["b", "c"],
        [FINE],
        InvalidArgumentError,
        "embeddings ended after 1 documents, but there are more ids",
    ),
    "few packed": (["b", "c"], TokenEmbeddings.from_list([FINE]), InvalidArgumentError, "2 ids, 1 embeddings; give"),
}


@pytest.mark.parametrize(("ids", "embeddings", "error", "message"), REFUSED_DOCUMENTS.values(), ids=REFUSED_DOCUMENTS)
def test_documents_are_refused_by_name(index, ids, embeddings, error, message):
    index.add("a", FINE, texts="kept")
    before = contents(index)
    for write in (index.add, index.update):
        with pytest.raises(error, match=message):
            write(ids, embeddings)
    assert contents(index) == before


@pytest.mark.parametrize("matrix", [FINE, torch.as_tensor(FINE)], ids=["numpy", "torch"])
@pytest.mark.parametrize("ids", ["b", ["b"], ("b",), np.array(["b"])], ids=["alone", "list", "tuple", "array"])
def test_one_matrix_goes_with_one_id(index, ids, matrix):
    for write in (index.add, index.update):
        write(ids, matrix, texts="t", metadata={"year": 1})
        assert index.ids() == ["b"]
        assert (index.get("b").text, index.get("b").metadata) == ("t", {"year": 1})
        assert index.get_embeddings("b").lengths.tolist() == [len(FINE)]


REFUSED_BESIDES = {
    "one text": ({"texts": "t"}, "a single text or dict of metadata needs a single id"),
    "one dict": ({"metadata": {"x": 1}}, "a single text or dict of metadata needs a single id"),
    "few texts": ({"texts": ["t"]}, "received 2 ids, 1 texts; give one of each"),
    "few texts, late": ({"texts": iter(["t"])}, "texts ended after 1 documents"),
    "more texts": ({"texts": iter("tuv")}, "embeddings ended after 2 documents, but there are more texts"),
    "number as text": ({"texts": ["t", 5]}, "document 'c' came with int as its text"),
    "broken text": ({"texts": ["t", "\udcff"]}, "document 'c' came with a text that is not valid Unicode"),
    "number as texts": ({"texts": 5}, "received int as texts"),
    "list as metadata": ({"metadata": [{}, []]}, "document 'c' came with list as its metadata"),
    "nan": ({"metadata": [{}, {"x": [NAN]}]}, "metadata of document 'c' holds nan under 'x'"),
    "tuple": ({"metadata": [{}, {"x": (1,)}]}, "document 'c' holds a tuple under 'x'"),
    "numpy": ({"metadata": [{}, {"x": np.int64(1)}]}, "document 'c' holds a numpy.int64 under 'x'"),
    "empty key": ({"metadata": [{}, {"": 1}]}, "document 'c' has the key ''"),
    "number as key": ({"metadata": [{}, {1: 1}]}, "document 'c' has the key 1"),
    "number as inner key": ({"metadata": [{}, {"x": {1: 1}}]}, "document 'c' holds the key 1 under 'x'"),
    "broken value": ({"metadata": [{}, {"x": "\ud800"}]}, "not valid Unicode under 'x'"),
}


@pytest.mark.parametrize(("columns", "message"), REFUSED_BESIDES.values(), ids=REFUSED_BESIDES)
def test_texts_and_metadata_are_refused_by_name(columns, message):
    index = indexes.Flat()
    columns = {name: list(column) if isinstance(column, list) else column for name, column in columns.items()}
    with pytest.raises(InvalidArgumentError, match=message):
        index.add(["b", "c"], [FINE, FINE], **columns)
    assert len(index) == 0


def test_metadata_nested_too_deeply_is_refused():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidArgumentError, match="document 'a' is nested too deeply"):
        indexes.Flat().add("a", FINE, metadata={"x": deep})


def test_present_ids_are_refused_by_add_naming_some(index):
    index.add(range(20), [FINE] * 20)
    with pytest.raises(DuplicateIdError, match=r"ids 0, 1, 2, 3, 4 and 3 more are in the index already; update\(\)"):
        index.add([*range(8), "new"], [FINE] * 9)
    assert "new" not in index


@pytest.mark.parametrize("use", ["remove", "get", "get_embeddings"])
def test_unknown_ids_are_named(index, use):
    index.add(["1", "b"], [FINE, FINE])
    with pytest.raises(UnknownIdError, match=r"no document has the id 1, 'zzz'; .*1 is not '1'"):
        getattr(index, use)(["b", 1, "zzz", 1])
    with pytest.raises(InvalidArgumentError, match="received float as ids"):
        getattr(index, use)(2.5)
    assert index.ids() == ["1", "b"]


@pytest.mark.parametrize("k", [0, -1, 2.0, "3", None, True])
def test_k_is_a_positive_integer(index, k):
    index.add("a", FINE)
    for use in (lambda: index.search(FINE, k=k), lambda: index.check(k=k), lambda: index.check(queries=k)):
        with pytest.raises(InvalidArgumentError, match=f"={k!r}; expected an integer of at least 1"):
            use()
    assert len(index.search(FINE, k=np.int64(1))[0]) == 1


REFUSED_QUERIES = {
    "nan": ([FINE, one([NAN, 1])], "query 1 holds NaN or infinity"),
    "no token": ([FINE, FINE[:0]], "query 1 has no token"),
    "packed, no token": (TokenEmbeddings.from_list([FINE, FINE[:0]]), "query 1 has no token"),
    "dim": ([one([1, 2, 3])], "query 0 has dim 3, .* dim 2"),
    "padded": (np.zeros((1, 2, 2)), "from_padded"),
    "vector": (np.zeros(2), r"array of shape \(2,\)"),
    "text": ("a text", "received str as queries"),
    "masked": ([FINE, MASKED], "query 1 came with a masked array that leaves out 1 of 4 numbers"),
    "generator": (iter([FINE]), "received list_iterator as queries"),
}


@pytest.mark.parametrize(("queries", "message"), REFUSED_QUERIES.values(), ids=REFUSED_QUERIES)
def test_queries_are_refused_by_number(index, queries, message):
    index.add("a", FINE)
    with pytest.raises(EmbeddingsError, match=message):
        index.search(queries)


BYTES = {"bytes": b"a", "bytearray": bytearray(b"a"), "memoryview": memoryview(b"a")}


@pytest.mark.parametrize("ids", BYTES.values(), ids=BYTES)
def test_bytes_are_no_ids(index, ids):
    """Iterating over them gives integers, the ids of other documents."""
    index.add([3, 97], [FINE, FINE])
    with pytest.raises(InvalidArgumentError, match=r"received (bytes|bytearray|memoryview) as ids; give one"):
        index.add(ids, [FINE])
    with pytest.raises(InvalidArgumentError, match="as ids; give one id or an iterable of ids"):
        index.remove(ids)
    assert index.ids() == [3, 97]


def test_one_document_may_be_named_by_numbers_and_texts_of_numpy(index):
    index.add(np.int64(3), FINE, texts=np.str_("three"))
    index.add(np.array(["a"])[0], FINE)
    assert index.ids() == [3, "a"]
    assert index.get(3).text == "three"


def test_a_closed_index_in_memory_cannot_be_opened_again():
    index = indexes.Flat()
    index.close()
    with pytest.raises(InvalidArgumentError, match="the index in memory is closed; its documents are gone"):
        index.add("a", FINE)


NUMBERS = {"too large": [[[10**400] * 2]], "with a gradient": [[torch.ones(2, requires_grad=True)]]}


@pytest.mark.parametrize("embeddings", NUMBERS.values(), ids=NUMBERS)
def test_lists_that_numpy_cannot_read_are_refused(index, embeddings):
    with pytest.raises(EmbeddingsError, match="document 'a' came with list; expected a 2-D numpy or torch matrix"):
        index.add(["a"], embeddings)
    with pytest.raises(EmbeddingsError, match="query 0 came with list"):
        index.search(embeddings)


def test_float16_refuses_what_it_cannot_hold(tmp_path):
    with indexes.Flat(tmp_path / "index", dtype="float16") as index:
        with pytest.raises(EmbeddingsError, match="document 'a' holds -70000, outside of the range of float16"):
            index.add("a", one([1, -70000]))
        assert len(index) == 0


@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
@pytest.mark.parametrize("number", [NAN, float("inf"), -float("inf")])
def test_codes_of_any_size_refuse_what_is_not_finite(nbits, number):
    index = indexes.IVF(nbits=nbits)
    with pytest.raises(EmbeddingsError, match="document 7 holds NaN or infinity; check the model"):
        index.add([3, 7], [one([1, 2], [3, 4]), one([5, 6], [0, number])])
    assert len(index) == 0


def test_streams_are_read_in_bounded_portions(tmp_path):
    """What has been read ahead of what has been stored stays within the size of a batch."""
    stored, ahead = [], []
    vectors = np.ones((100, 64), dtype="float32")  # 25,600 bytes

    with indexes.Flat(tmp_path / "index") as index:
        index._segment_bytes = 1 << 18

        def documents():
            for i in range(100):
                segments = list((tmp_path / "index" / "segments").glob("*/vectors.npy"))
                stored.append(sum(path.stat().st_size for path in segments) // vectors.nbytes)
                ahead.append(i - stored[-1])
                yield vectors

        index.add(range(100), documents())
        assert len(index) == 100
    assert max(ahead) <= 22  # one batch of eleven documents, and one part of the next


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_store_the_same_documents_in_their_order(threads):
    """Documents are coded in parts, and copied to the memory of a batch, which is reserved with the second part."""
    torch.set_num_threads(threads)
    index = indexes.Flat()
    index._segment_bytes = 1 << 16
    documents = matrices([1 + i % 7 for i in range(900)], dim=16)
    index.add(range(900), iter(documents), texts=map(str, range(900)))
    assert index.ids() == list(range(900))
    assert [record.text for record in index.get(range(900))] == [str(i) for i in range(900)]
    for stored, given in zip(index.get_embeddings(range(900)), documents, strict=True):
        np.testing.assert_array_equal(stored, given)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_name_a_document_of_another_dim(threads):
    torch.set_num_threads(threads)
    index = indexes.Flat()
    documents = [*matrices([2] * 30, dim=16), *matrices([2], dim=8), *matrices([2] * 30, dim=16)]
    with pytest.raises(EmbeddingsError, match=r"document 30 has dim 8"):
        index.add(range(61), iter(documents))
    assert len(index) == 0


def test_an_error_in_a_stream_leaves_the_index_as_it_was(disk_index):
    disk_index.add("a", FINE, texts="kept")
    before = contents(disk_index)

    def broken():
        yield FINE
        yield FINE
        raise RuntimeError("the encoder failed")

    with pytest.raises(RuntimeError, match="the encoder failed"):
        disk_index.update(["a", "b", "c"], broken())
    assert contents(disk_index) == before
    assert len(list(disk_index.path.rglob("segments/*"))) == 1
    assert list(disk_index.path.rglob("staged/*")) == []


def test_an_id_that_comes_twice_in_a_long_stream_is_refused(tmp_path):
    with indexes.Flat(tmp_path / "index") as index:
        index._segment_bytes = 1000
        index.add("x", FINE)
        for write in (index.add, index.update):
            with pytest.raises(DuplicateIdError, match="'d0' is given twice in this call"):
                write([*(f"d{i}" for i in range(5000)), "d0"], [FINE] * 5001)
        assert index.ids() == ["x"]


def test_dtype_is_one_of_two():
    with pytest.raises(InvalidArgumentError, match="dtype='int8'; expected 'float32', 'float16' or None"):
        indexes.Flat(dtype="int8")
    with pytest.raises(InvalidArgumentError, match=r"dtype=array\(\[\].*; expected 'float32', 'float16' or None"):
        indexes.Flat(dtype=np.zeros(0))
    with pytest.raises(InvalidArgumentError, match=r"nbits=array\(\[\].*; expected 8, 4, 2, 1 or None"):
        indexes.IVF(nbits=np.zeros(0))
    with pytest.raises(LatelierError, match="in memory begins empty; read_only=True needs a path"):
        indexes.Flat(read_only=True)


@pytest.mark.parametrize(
    "matrix",
    [
        torch.eye(4).to_sparse(),
        torch.empty(2, 4, device="meta"),
        torch.quantize_per_tensor(torch.eye(4), 0.1, 0, torch.qint8),
        torch.eye(4).to(torch.float8_e5m2),
    ],
    ids=["sparse", "meta", "quantized", "float8"],
)
def test_tensors_that_numpy_cannot_hold_are_refused(matrix):
    index = indexes.Flat()
    with pytest.raises(EmbeddingsError, match=r"document 'a' came with a torch tensor of .*; expected a dense one"):
        index.add("a", matrix)
    index.add("b", torch.eye(4))
    with pytest.raises(EmbeddingsError, match=r"query 0 came with a torch tensor of .*; expected a dense one"):
        index.search([matrix])


def test_parameters_without_a_filter_are_refused(index):
    index.add("a", FINE, texts="one")
    for parameters in ((1,), {"year": 1}):
        for options in ({}, {"mode": "keywords", "texts": "one"}):
            with pytest.raises(InvalidArgumentError, match=r"received parameters=.* without a filter; give both"):
                index.search(FINE, parameters=parameters, **options)
    assert len(index.search(FINE, parameters={})[0]) == len(index.search(FINE, parameters=())[0]) == 1


def test_a_list_as_the_value_of_a_parameter_is_refused_with_a_hint():
    index = indexes.Flat()
    index.add("a", FINE, metadata={"year": 2020})
    with pytest.raises(
        InvalidArgumentError, match=r"received list as a value; .* one \? for each value of a list: x IN"
    ):
        index.search(FINE, filter="year IN (?)", parameters=([2020, 2021],))


@pytest.mark.parametrize("value", [np.array([1, 5]), np.zeros((0,)), bytearray(b"1"), array.array("q", [3])])
def test_an_array_as_the_value_of_a_parameter_is_refused(index, value):
    index.add(["a", "b"], [FINE] * 2, metadata=[{"year": 1}, {"year": 5}])
    for filter, parameters in (("year < ?", [value]), ("year IN (:years)", {"years": value})):
        with pytest.raises(InvalidArgumentError, match=rf"received {type(value).__name__} as a value; give a number"):
            index.search(FINE, filter=filter, parameters=parameters)


def test_values_that_sqlite_has_not_are_refused(index):
    index.add(["a", "b"], [FINE] * 2, metadata=[{"day": "2024-05-01"}, {"day": "2024-06-01"}])
    for value, message in (
        (datetime.date(2024, 5, 1), "received date as a value; give .* a date as the text that is stored"),
        (float("nan"), "received NaN as a value, which no document has"),
        (np.float32("nan"), "received NaN as a value"),
        (uuid.UUID(int=1), "received UUID as a value"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            index.search(FINE, filter="day = ?", parameters=[value])
    with pytest.raises(InvalidArgumentError, match="received set as the filter's parameters"):
        index.search(FINE, filter="day IN (?, ?)", parameters={"2024-05-01", "2024-06-01"})


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400, np.uint64(2**63)])
def test_an_integer_that_sqlite_does_not_hold_is_refused(index, value):
    index.add(["a", "b"], [FINE] * 2, metadata=[{"year": 1}, {"year": 2**63 - 1}])
    with pytest.raises(InvalidArgumentError, match="received an integer beyond 64 bits"):
        index.search(FINE, filter="year < ?", parameters=[value])
    assert [hit.id for hit in index.search(FINE, filter="year = ?", parameters=[2**63 - 1])[0]] == ["b"]


def test_errors_of_the_generator_of_documents_are_not_those_of_the_catalog(index):
    def documents():
        yield FINE
        b"caf\xe9".decode()

    def rows():
        yield FINE
        sqlite3.connect(":memory:").execute("SELECT vectors FROM documents")

    with pytest.raises(UnicodeDecodeError, match="0xe9"):
        index.add(["a", "b"], documents())
    for generator in (rows, types.FunctionType(rows.__code__, {"FINE": FINE, "sqlite3": sqlite3})):
        with pytest.raises(sqlite3.OperationalError, match=r"^no such table: documents$"):
            index.add(["a", "b"], generator())
    assert len(index) == 0


def test_arrays_of_no_dimension_are_numbers(index):
    index.add(["a", "b"], [FINE] * 2, metadata=[{"year": 1}, {"year": 5}])
    for filter, wanted in (("year < ?", "a"), ("year > ?", "b")):
        for value in (np.array(3), np.array(3.0), np.int16(3), np.float32(3)):
            assert [hit.id for hit in index.search(FINE, filter=filter, parameters=[value])[0]] == [wanted]


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy, copy.copy])
def test_an_index_is_neither_pickled_nor_copied(index, duplicate):
    with pytest.raises(TypeError, match="cannot be copied or pickled: open its folder again where it is needed"):
        duplicate(index)


@pytest.mark.parametrize("id", [1.5, uuid.UUID(int=1)])
def test_what_is_no_id_is_refused_before_its_matrix(id):
    message = f"received {type(id).__name__} as ids; give one per document, a str or an int"
    with pytest.raises(InvalidArgumentError, match=message):
        indexes.Flat().add(id, FINE)
