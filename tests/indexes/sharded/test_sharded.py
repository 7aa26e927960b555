"""The sharded index beside one index with the same documents; opening it; errors that leave it unchanged."""

import numpy as np
import pytest
from index_helpers import matrices

from latelier import indexes
from latelier.errors import CorruptedIndexError, DuplicateIdError, InvalidArgumentError, UnknownIdError
from latelier.indexes.sharded.commit_record import CommitRecord
from latelier.indexes.sharded.placement import shard_of
from latelier.retrieve import Retriever

pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("shard_processes")

WORDS = ["wing", "shock", "layer", "heat", "flow", "jet"]
TEXTS = ["wing shock", "heat", "wing wing flow jet", "absent"]


def documents(count, seed=0, dim=4):
    """Return columns of documents with few different numbers, so that many scores are equal."""
    rng = np.random.default_rng(seed)
    vectors = [rng.integers(-2, 3, size=(n, dim)).astype("float32") for n in rng.integers(1, 6, size=count)]
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(1, 9))) if i % 7 else None for i in range(count)]
    return vectors, texts, [{"n": i, "parity": "odd" if i % 2 else "even"} for i in range(count)]


def change_both(one, sharded):
    """Carry out the same writes on two indexes: 0 and "0" are two ids."""
    for index in (one, sharded):
        ids = [i if i % 3 else str(i) for i in range(90)]
        index.add(ids, *documents(90))
        index.update([*ids[10:30], "new#1", "new#2", 0], *documents(23, seed=1))
        index.remove([ids[5], ids[50], 0])
        index.update("kept", *(column[0] for column in documents(1, seed=2)), remove_prefixes=["new#"])


def check_equal(one, sharded, **options):
    """Compare ids, records, vectors and hits of every mode, with and without a filter."""
    assert sharded.ids() == one.ids()
    assert (len(sharded), sharded.dim, sharded.fields) == (len(one), one.dim, one.fields)
    assert sharded.get(one.ids()) == one.get(one.ids())
    for mine, other in zip(sharded.get_embeddings(one.ids()), one.get_embeddings(one.ids()), strict=True):
        np.testing.assert_array_equal(mine, other)
    queries = documents(4, seed=3)[0]
    for mode in ("vectors", "keywords", "hybrid", "rerank"):
        for limits in ({}, {"filter": "parity = ? AND n > 20", "parameters": ("odd",)}):
            for k in (1, 10, 200):
                given = {"k": k, "mode": mode, **limits, **({} if mode == "vectors" else {"texts": TEXTS})}
                assert sharded.search(queries, **given, **options) == one.search(queries, **given, **options)
    rrf = {"mode": "hybrid", "texts": TEXTS, "fusion": "rrf", "depth": 20}
    assert sharded.search(queries, **rrf, **options) == one.search(queries, **rrf, **options)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_exact_shards_find_exactly_what_one_index_finds(tmp_path, dtype):
    one = indexes.Flat(dtype=dtype)
    with indexes.Sharded(tmp_path / "index", shards=3, index="flat", dtype=dtype) as sharded:
        change_both(one, sharded)
        check_equal(one, sharded)
        sharded.compact()
        check_equal(one, sharded)
    with indexes.open(tmp_path / "index") as sharded:
        check_equal(one, sharded)
        assert sharded.verify().is_whole


def test_effort_exact_finds_exactly_what_one_index_finds(tmp_path):
    one = indexes.IVF()
    with indexes.Sharded(tmp_path / "index", shards=2) as sharded:
        change_both(one, sharded)
        check_equal(one, sharded, effort="exact")


def test_shards_are_ordinary_indexes(tmp_path):
    with indexes.Sharded(tmp_path / "index", shards=2, index="flat", replicas=2) as index:
        index.add(list(range(20)), matrices([2] * 20))
        ids = index.ids()
    for shard in range(2):
        for folder in (f"{shard}", f"{shard}.1"):
            with indexes.open(tmp_path / "index/shards/0" / folder) as alone:
                assert alone.ids() == [id for id in ids if shard_of(id, 2) == shard]


def test_placement_is_stable():
    """A change of it would lose the documents of existing indexes."""
    assert [shard_of(id, 1000) for id in (0, "0", -1, 2**62, "a", "ä")] == [67, 513, 823, 326, 379, 995]


def test_what_is_given_must_fit_what_is_stored(tmp_path):
    folder = tmp_path / "index"
    indexes.Sharded(folder, shards=2, index="flat", tokenizer="unicode61").close()
    for given, message in [
        ({"shards": 3}, "received shards=3, but the index in .* has 2"),
        ({"index": "ivf"}, "received index='ivf', but the index in .* has 'flat'"),
        ({"index": "flat", "dtype": "float16"}, "received dtype='float16', but"),
        ({"tokenizer": "porter"}, "has the tokenizer 'unicode61'"),
        ({"shards": 0}, "received shards=0"),
        ({"index": "hnsw"}, "received index='hnsw'; expected 'flat' or 'ivf'"),
        ({"index": "flat", "nbits": 4}, "received nbits=4, which is for index='ivf'"),
        ({"nodes": "here"}, "expected a list of IP addresses"),
        ({"nodes": ["10.99.99.99"]}, "the Ray cluster has the nodes"),
        ({"device": "cuda"}, "searched on the CPU only"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            indexes.Sharded(folder, **given)
    with indexes.Sharded(folder) as index, pytest.raises(InvalidArgumentError, match="no option 'effort'"):
        index.search(np.eye(2), effort="exact")


def test_errors_of_any_shard_leave_all_of_them_unchanged(tmp_path):
    with indexes.Sharded(tmp_path / "index", shards=3, index="flat") as index:
        index.add(list(range(10)), matrices([2] * 10))
        for write, error, message in [
            (lambda: index.add([20, 21, 3, 22, 7], matrices([1] * 5)), DuplicateIdError, "^the ids 3, 7 are in"),
            (lambda: index.update([20, 21, 20], matrices([1] * 3)), DuplicateIdError, "^the id 20 is given twice"),
            (lambda: index.remove([1, 55, 2, "3"]), UnknownIdError, "the id 55, '3'"),
        ]:
            with pytest.raises(error, match=message):
                write()
        assert index.ids() == list(range(10))
        assert list(index.path.rglob("staged/*")) == []


def test_a_shard_that_is_lost_is_not_made_again_empty(tmp_path):
    with indexes.Sharded(tmp_path / "index", shards=2, index="flat") as index:
        index.add(list(range(10)), matrices([2] * 10))
    (tmp_path / "index/shards/0/1").rename(tmp_path / "away")
    with pytest.raises(CorruptedIndexError, match="is missing"):
        indexes.open(tmp_path / "index")
    (tmp_path / "away").rename(tmp_path / "index/shards/0/1")
    with indexes.open(tmp_path / "index") as index:
        assert len(index) == 10


def test_verify_names_the_damaged_file_of_a_shard(tmp_path):
    with indexes.Sharded(tmp_path / "index", shards=2, index="flat") as index:
        index.add(list(range(10)), matrices([2] * 10))
        [file] = (tmp_path / "index/shards/0/1").rglob("vectors.npy")
        file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
        report = index.verify()
        assert [damage.file for damage in report.damages] == [file.relative_to(tmp_path / "index").as_posix()]
        assert report.ids == [id for id in range(10) if shard_of(id, 2) == 1]


def test_a_record_that_no_index_writes_is_damage():
    good = CommitRecord(("", ""), 1).to_json()
    for name, value in [("versions", ["../../x"]), ("versions", []), ("replicas", 0), ("generation", "0"), ("x", 1)]:
        with pytest.raises(CorruptedIndexError, match="its commit record is"):
            CommitRecord.from_json({**good, name: value})


def test_a_retriever_works_over_it(tmp_path, tiny):
    with Retriever(tiny, indexes.Sharded(tmp_path / "index", shards=2)) as retriever:
        retriever.add({"id": i, "text": f"text {i}"} for i in range(6))
        [hit] = retriever.search("text 3", k=1)
    with Retriever.open(tmp_path / "index", read_only=True) as retriever:
        [again] = retriever.search("text 3", k=1)
        assert (again.id, again.text) == (hit.id, hit.text)
        assert again.score == pytest.approx(hit.score)
        assert len(retriever) == 6
