"""Arguments of an index: accepted forms mean the same, and what users get wrong is refused before anything changes."""

import enum
import sqlite3

import numpy as np
import pytest
import torch
from index_helpers import check_stored, contents, matrices

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.errors import DuplicateIdError, EmbeddingsError, InvalidArgumentError, UnknownIdError
from latelier.indexes.options import SEARCH_OPTIONS, SearchKeywords

NAN = float("nan")


def one(*rows):
    return np.array(rows, dtype="float32")


def objects(matrix):
    """An array of arrays, as pandas reads a column of lists."""
    rows = np.empty(len(matrix), dtype=object)
    rows[:] = list(matrix)
    return rows


FINE = one([1, 0])
FORMS = {
    "arrays": lambda found: found,
    "mixed kinds": lambda found: (torch.from_numpy(found[0]).bfloat16(), *(m.astype("float64") for m in found[1:])),
    "with gradient": lambda found: [torch.from_numpy(matrix).half().requires_grad_() for matrix in found],
    "nested lists": lambda found: [matrix.tolist() for matrix in found],
    "packed": TokenEmbeddings.from_list,
    "generator": lambda found: (matrix for matrix in found),
    "object arrays": lambda found: [objects(matrix) for matrix in found],
    "a column of object arrays": lambda found: objects([objects(matrix) for matrix in found]),
    "with rows of zeros": lambda found: [np.insert(np.pad(m, ((0, 2), (0, 0))), 0, 0, axis=0) for m in found],
    "packed with rows of zeros": lambda found: TokenEmbeddings.from_list([np.pad(m, ((0, 1), (0, 0))) for m in found]),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_embeddings_means_the_same(index, form):
    found = matrices([2, 1, 3])
    index.add(["a", "b", "c"], form(found))
    for stored, given in zip(index.get_embeddings(["a", "b", "c"]), found, strict=True):
        check_stored(index, stored, given)


def test_rows_of_zeros_are_counted_and_said_once(index):
    padded = [np.pad(matrix, ((0, 3), (0, 0))) for matrix in matrices([2, 1, 3])]
    with pytest.warns(UserWarning, match="9 rows of zeros were dropped") as caught:
        index.add(["a", "b", "c"], padded)
    assert len(caught) == 1
    with pytest.raises(EmbeddingsError, match="document 'd' has no token that is not zeros"):
        index.add(["d"], [np.zeros((2, padded[0].shape[1]), "float32")])
    assert len(index) == 3


class Key(str, enum.Enum):
    """Whose str() is its name: "Key.YEAR"."""

    YEAR = "year"


def test_subclasses_of_text_and_numbers_are_stored_as_what_they_are(index):
    """What numpy, pandas and enums hand out is compared with what comes back from the catalog."""
    metadata = [{Key.YEAR: np.float64(1.5), "name": np.str_("n"), "list": [Key.YEAR]}, {"year": 2**70}, None]
    index.add([np.str_("a"), Key.YEAR, np.int64(7)], matrices([1, 1, 1]), np.array(["x", "y", "z"]), metadata)
    index.settings[Key.YEAR] = np.str_("model")
    assert [(id, type(id)) for id in index.ids()] == [("a", str), ("year", str), (7, int)]
    assert index.get(np.int64(7)).text == "z"
    assert index.get("a").metadata == {"year": 1.5, "name": "n", "list": ["year"]}
    assert dict(index.settings) == {"year": "model"}
    assert len(index.search(matrices([1]), filter="name = 'n' AND year > 1")[0]) == 1


def test_one_document_needs_no_lists(index):
    index.add("a", FINE, texts="the text", metadata={"x": 1})
    index.add(5, [np.eye(2).tolist()])
    index.update(np.array(["b"]), torch.as_tensor(FINE), texts="t", metadata={"y": 1})
    index.update("b", TokenEmbeddings.from_list([FINE]))
    assert index.ids() == ["a", 5, "b"]
    assert (index.get("a"), index.get("b")) == (("a", "the text", {"x": 1}), ("b", None, {}))


def test_all_columns_may_be_generators_or_empty(index):
    index.add([], [])
    index.update(iter(()), iter(()))
    index.remove([])
    assert (len(index), index.get([])) == (0, [])
    count = 1200  # more than one part
    ids, vectors = (f"d{i}" for i in range(count)), (one([i % 7, 1]) for i in range(count))
    index.add(ids, vectors, texts=(str(i) for i in range(count)), metadata=({"n": i} for i in range(count)))
    assert len(index) == count
    assert index.get("d1199") == ("d1199", "1199", {"n": 1199})


# (arguments of `add` and `update`, error, the fact that it states)
REFUSED = {
    "nan": ((["b"], [one([NAN, 0])]), EmbeddingsError, "'b' holds NaN or infinity"),
    "too long": (
        (["b", "c"], [FINE, one([0.6e18, -0.9e18])]),
        EmbeddingsError,
        "'c' (has a vector of length 1.08e|.* float16)",
    ),
    "too large": ((["b", "c"], [FINE, one([3e38, 1])]), EmbeddingsError, "'c' (has a vector of length 3e|.* float16)"),
    "no token": ((["b", "c"], [FINE, FINE[:0]]), EmbeddingsError, "'c' has no token"),
    "other dim": ((["b", "c"], [FINE, one([1, 2, 3])]), EmbeddingsError, "'c' has dim 3, .* dim 2"),
    "padded": ((["b"], np.zeros((1, 2, 2))), EmbeddingsError, "from_padded"),
    "empty id": (([""], [FINE]), InvalidArgumentError, "'' .*as an id"),
    "few ids": ((["b"], [FINE, FINE]), InvalidArgumentError, "ids ended after 1 documents"),
    "a list of rows": (("b", np.eye(2).tolist()), InvalidArgumentError, "are one array"),
    "list as metadata": ((["b"], [FINE], None, [[]]), InvalidArgumentError, "'b' came with list as its metadata"),
}


@pytest.mark.parametrize(("given", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_documents_are_refused_by_name(index, given, error, message):
    index.add("a", FINE, texts="kept")
    before = contents(index)
    for write in (index.add, index.update):
        with pytest.raises(error, match=message):
            write(*given)
    assert contents(index) == before


def test_present_and_unknown_ids_are_named(index):
    index.add(range(20), [FINE] * 20)
    with pytest.raises(DuplicateIdError, match=r"ids 0, 1, 2, 3, 4 and 3 more are in the index"):
        index.add([*range(8), "new"], [FINE] * 9)
    for use in (index.remove, index.get, index.get_embeddings):
        with pytest.raises(UnknownIdError, match=r"no document has the id '1', 'zzz'\. .*1 is not '1'"):
            use([3, "1", "zzz", "1"])
        with pytest.raises(InvalidArgumentError, match=r"2\.5 \(float\) as an id"):
            use(2.5)
    assert index.ids() == list(range(20))


# (arguments of `search`, error, the fact that it states)
REFUSED_SEARCHES = {
    "k": ({"k": 0}, InvalidArgumentError, "k=0; expected an integer of at least 1"),
    "nan": ({"queries": [FINE, one([NAN, 1])]}, EmbeddingsError, "query 1 holds NaN"),
    "too long": ({"queries": [FINE, one([0, 1.1e18])]}, EmbeddingsError, "query 1 has a vector of length 1.1e"),
    "dim": ({"queries": [one([1, 2, 3])]}, EmbeddingsError, "query 0 has dim 3, .* dim 2"),
    "misspelled": ({"efort": 2.0}, InvalidArgumentError, "no option 'efort'; its options are mode"),
    "NaN as a value": ({"filter": "year < ?", "parameters": [NAN]}, InvalidArgumentError, "NaN as a value"),
}


@pytest.mark.parametrize(("given", "error", "message"), REFUSED_SEARCHES.values(), ids=REFUSED_SEARCHES)
def test_searches_are_refused(index, given, error, message):
    index.add("a", FINE, metadata={"year": 1})
    with pytest.raises(error, match=message):
        index.search(**{"queries": FINE, **given})


def test_long_vectors_have_finite_scores(index):
    most = 6e4 if getattr(index, "dtype", None) == "float16" else 9e17
    index.add(["a", "b"], [one([0, most]), one([-most, 0])])
    [hits] = index.search([one([6e17, 6e17], [0, 9e17])])
    assert [hit.id for hit in hits] == ["a", "b"]
    assert all(np.isfinite(hit.score) for hit in hits)


def test_options_that_only_approximate_indexes_have(index):
    index.add("a", FINE)
    for name in ("effort", "nprobe", "candidates"):
        if name in index.search_options:
            with pytest.raises(InvalidArgumentError, match=f"{name}=0"):
                index.search(FINE, **{name: 0})
        else:
            with pytest.raises(InvalidArgumentError, match=f"no option '{name}'"):
                index.search(FINE, **{name: 1})
        assert len(index.search(FINE, **{name: None})[0]) == 1  # the default


@pytest.mark.parametrize(
    ("make", "options"), [(indexes.Flat, {"dtype": "float16"}), *((indexes.IVF, {"nbits": n}) for n in (8, 4, 2, 1))]
)
@pytest.mark.parametrize("number", [NAN, float("inf"), -1e38])
def test_what_a_dtype_or_codes_cannot_hold_is_refused(make, options, number):
    index = make(**options)
    with pytest.raises(EmbeddingsError, match="document 7"):
        index.add([3, 7], [one([1, 2], [3, 4]), one([5, 6], [0, number])])
    assert len(index) == 0


def test_streams_are_read_in_bounded_portions(tmp_path):
    """What has been read ahead of what has been stored stays within the size of a batch."""
    ahead = []
    vectors = np.ones((100, 64), dtype="float32")  # 25,600 bytes
    with indexes.Flat(tmp_path / "index") as index:
        index._segment_bytes = 1 << 18

        def documents():
            for i in range(100):
                segments = list((tmp_path / "index" / "segments").glob("*/vectors.npy"))
                ahead.append(i - sum(path.stat().st_size for path in segments) // vectors.nbytes)
                yield vectors

        index.add(range(100), documents())
        assert len(index) == 100
    assert max(ahead) <= 22  # one batch of eleven documents, and one part of the next


def test_an_error_in_a_stream_leaves_the_index_as_it_was(disk_index):
    disk_index.add("a", FINE, texts="kept")
    before = contents(disk_index)
    folders = sorted(disk_index.path.rglob("segments/*"))

    def broken():
        yield FINE
        sqlite3.connect(":memory:").execute("SELECT vectors FROM documents")

    with pytest.raises(sqlite3.OperationalError, match=r"^no such table: documents$"):  # not damage of the catalog
        disk_index.update(["a", "b", "c"], broken())
    assert contents(disk_index) == before
    assert sorted(disk_index.path.rglob("segments/*")) == folders


def test_the_keywords_of_a_search_are_those_of_the_table_of_options():
    assert list(SearchKeywords.__annotations__) == list(SEARCH_OPTIONS)
