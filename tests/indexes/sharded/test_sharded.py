"""The sharded index beside one index with the same documents; opening it; errors that leave it unchanged."""

import numpy as np
import pytest
from hypothesis import settings
from index_helpers import matrices
from test_index_machine import DiskMachine, quickly

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, DuplicateIdError, InvalidArgumentError, LatelierError, UnknownIdError

pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("shard_processes")

WORDS = ["wing", "shock", "layer", "heat", "flow", "jet"]
TEXTS = ["wing shock", "heat", "wing wing flow jet", "absent"]


def documents(count, seed=0, dim=4):
    rng = np.random.default_rng(seed)
    vectors = [rng.choice([-2, -1, 1, 2], size=(n, dim)).astype("float32") for n in rng.integers(1, 6, size=count)]
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(1, 9))) if i % 7 else None for i in range(count)]
    return vectors, texts, [{"n": i, "parity": "odd" if i % 2 else "even"} for i in range(count)]


def change_both(one, sharded):
    """Carry out the same writes on two indexes: 0 and "0" are two ids."""
    for index in (one, sharded):
        ids = [i if i % 3 else str(i) for i in range(90)]
        index.add(ids, *documents(90))
        index.update([*ids[10:30], "new#1", "new#2", 0], *documents(23, seed=1))
        index.remove([ids[5], ids[50], 0])
        index.update("kept", *(column[0] for column in documents(1, seed=2)))
        ranges = [[(0, 1), (2, 3)], None, [(0, 2)]]
        index.update(["cut", "new#1", "new#2"], documents(4, seed=3)[0], ["a b", "c", "d e"], ranges=ranges)


def check_equal(one, sharded, **options):
    """Compare ids, records, vectors and hits by vectors, with and without a filter; equal scores in the same order."""
    assert sharded.ids() == one.ids()
    assert (len(sharded), sharded.dim, sharded.fields) == (len(one), one.dim, one.fields)
    assert sharded.get(one.ids()) == one.get(one.ids())
    for mine, other in zip(sharded.get_embeddings(one.ids()), one.get_embeddings(one.ids()), strict=True):
        np.testing.assert_array_equal(mine, other)
    queries = documents(4, seed=3)[0]
    for limits in ({}, {"filter": "parity = ? AND n > 20", "parameters": ("odd",)}):
        for k in (1, 10, 200):
            assert sharded.search(queries, k, **limits, **options) == one.search(queries, k, **limits, **options)


@pytest.fixture
def sharded(tmp_path):
    with indexes.Sharded(tmp_path / "index", shards=3, kind="flat") as index:
        index.add(list(range(90)), *documents(90))
        yield index


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_exact_shards_find_exactly_what_one_index_finds(tmp_path, dtype):
    one = indexes.Flat(dtype=dtype)
    with indexes.Sharded(tmp_path / "index", shards=3, kind="flat", dtype=dtype) as sharded:
        change_both(one, sharded)
        check_equal(one, sharded)
        sharded.compact()
        check_equal(one, sharded)
    with indexes.open(tmp_path / "index") as sharded:
        check_equal(one, sharded)
        assert sharded.verify().is_whole


@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
def test_coded_shards_are_those_of_one_index(tmp_path, nbits):
    """Few bits choose their codebook at the third write, from the documents of all shards and of the write."""
    rng = np.random.default_rng(0)
    vectors = [rng.standard_normal((n, 32)).astype("float32") + 1 for n in rng.integers(30, 60, size=900)]
    queries = [rng.standard_normal((4, 32)).astype("float32") for _ in range(25)]
    one = indexes.IVF(nbits=nbits)
    with indexes.Sharded(tmp_path / "index", shards=3, nbits=nbits) as sharded:
        for first, last in ((0, 1), (1, 300), (300, 800), (800, 900)):
            for index in (one, sharded):
                index.add(range(first, last), vectors[first:last])
            for k in (1, 10):
                assert sharded.search(queries, k, effort="exact") == one.search(queries, k, effort="exact")
            for mine, other in zip(
                sharded.get_embeddings([0, last - 1]), one.get_embeddings([0, last - 1]), strict=True
            ):
                np.testing.assert_array_equal(mine, other)
        assert one.statistics().tokens > 32_768
        for index in (one, sharded):  # what follows is chosen anew
            index.remove(range(900))
            index.add(range(900), [matrix - 2 for matrix in vectors])
        assert sharded.search(queries, 10, effort="exact") == one.search(queries, 10, effort="exact")


def test_keywords_are_scored_as_in_the_shards(sharded, tmp_path):
    """Each shard alone gives the same scores, and the hits are merged by them."""
    hits = sharded.search(mode="keywords", texts=TEXTS, k=90)
    sharded.close()
    alone = [{} for _ in TEXTS]
    for shard in range(3):
        with indexes.open(tmp_path / "index/shards" / str(shard), read_only=True) as index:
            for own, row in zip(alone, index.search(mode="keywords", texts=TEXTS, k=90), strict=True):
                own.update(row)
    assert [dict(tuple(hit) for hit in row) for row in hits] == alone
    assert all([hit.score for hit in row] == sorted((hit.score for hit in row), reverse=True) for row in hits)
    assert not hits[3]


def test_rerank_and_hybrid_join_both_sides(sharded):
    [query] = documents(1, seed=3)[0]
    words = dict(map(tuple, sharded.search(mode="keywords", texts="wing shock", k=90)[0]))
    maxsim = dict(map(tuple, sharded.search(query, k=90)[0]))
    [reranked] = sharded.search(query, 90, mode="rerank", texts="wing shock", depth=90)
    assert dict(map(tuple, reranked)) == {id: maxsim[id] for id in words}
    [hybrid] = sharded.search(query, 90, mode="hybrid", texts="wing shock", depth=90, weights=(1, 3))

    def scaled(side):
        low, high = min(side.values()), max(side.values())
        return {id: (score - low) / (high - low) for id, score in side.items()}

    expected = {id: score / 1 + 3 * scaled(words).get(id, 0) for id, score in scaled(maxsim).items()}
    assert dict(map(tuple, hybrid)) == pytest.approx(expected)
    [few] = sharded.search(query, 3, mode="hybrid", texts="wing shock", fusion="rrf", depth=5)
    by_words = sorted(words, key=lambda id: (-words[id], id))[:5]
    by_vectors = sorted(maxsim, key=lambda id: (-maxsim[id], id))
    by_vectors = [id for rank, id in enumerate(by_vectors) if rank < 10 or id in by_words]  # twice as many as by words
    ranks = dict.fromkeys(by_vectors, 0.0)
    for side, weight in ((by_vectors, 0.85), (by_words, 0.15)):
        for rank, id in enumerate(side, 61):
            ranks[id] += weight / rank
    assert dict(map(tuple, few)) == pytest.approx(dict(sorted(ranks.items(), key=lambda row: (-row[1], row[0]))[:3]))


def test_texts_in_no_shard_and_in_one(tmp_path):
    with indexes.Sharded(tmp_path / "index", shards=3, kind="flat") as index:
        assert index.search(mode="keywords", texts="wing") == [[]]
        index.add(list(range(9)), matrices([1] * 9))
        with pytest.raises(LatelierError, match="no document of this index has a text"):
            index.search(mode="keywords", texts="wing")
        index.add("text", matrices([1])[0], "wing", {"lang": "en"})
        assert [hit.id for hit in index.search(mode="keywords", texts="wing", filter="lang = 'en'")[0]] == ["text"]


def test_placement_is_stable(sharded, tmp_path):
    """A change of it would lose the documents of existing indexes."""
    sharded.update([0, "0", -1, 2**62, "a", "ä"], matrices([1] * 6))
    sharded.close()
    for shard, expected in enumerate([{2**62, "a"}, {-1}, {0, "0", "ä"}]):
        with indexes.open(tmp_path / "index/shards" / str(shard)) as index:
            assert set(index.ids()) - set(range(1, 90)) == expected


def test_what_is_given_must_fit_what_is_stored(tmp_path):
    folder = tmp_path / "index"
    indexes.Sharded(folder, shards=2, kind="flat", tokenizer="standard").close()
    for given, message in [
        ({"shards": 3}, "shards=3, but the index in .* has 2"),
        ({"kind": "ivf"}, "kind='ivf', but the index in .* has 'flat'"),
        ({"kind": "flat", "dtype": "float16"}, "dtype='float16', but"),
        ({"tokenizer": "porter"}, "the tokenizer 'standard'"),
        ({"nodes": ["10.99.99.99"]}, "the Ray cluster has the nodes"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            indexes.Sharded(folder, **given)
    with indexes.Sharded(folder) as index, pytest.raises(InvalidArgumentError, match="effort"):
        index.search(np.eye(2), effort="exact")


def test_errors_of_any_shard_leave_all_of_them_unchanged(sharded, monkeypatch):
    monkeypatch.setattr("latelier.indexes.sharded._BATCH_BYTES", 50)  # each document is a batch
    before = sharded.ids()
    for write, error, message in [
        (lambda: sharded.add([120, 121, 3, 122, 7], [np.ones((1, 4))] * 5), DuplicateIdError, "the ids? 3"),
        (lambda: sharded.update([120, 121, 120], [np.ones((1, 4))] * 3), DuplicateIdError, "id 120 is given twice"),
        (lambda: sharded.add([120, 121], [np.ones((1, 4)), np.full((1, 4), np.nan)]), LatelierError, "NaN"),
        (lambda: sharded.add([120, 121], [np.ones((1, 3))] * 2), LatelierError, "dim"),
        (lambda: sharded.remove([1, 155, 2, "3"]), UnknownIdError, "the id 155, '3'"),
    ]:
        with pytest.raises(error, match=message):
            write()
        assert sharded.ids() == before
    assert sharded.verify().is_whole


def test_a_shard_that_is_lost_is_not_made_again_empty(sharded, tmp_path):
    sharded.close()
    (tmp_path / "index/shards/1").rename(tmp_path / "away")
    query = np.ones((1, 4))
    with indexes.open(tmp_path / "index") as index, pytest.raises(CorruptedIndexError, match="is missing"):
        index.search(query)
    (tmp_path / "away").rename(tmp_path / "index/shards/1")
    with indexes.open(tmp_path / "index") as index:
        assert len(index) == 90
        assert len(index.search(query, k=90)[0]) == 90


def test_verify_names_the_damaged_file_of_a_shard(sharded, tmp_path):
    [file] = (tmp_path / "index/shards/1").rglob("vectors.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    report = sharded.verify()
    assert [damage.file for damage in report.damages] == [file.relative_to(tmp_path / "index").as_posix()]
    assert 10 < len(report.ids) < 80


class ShardedMachine(DiskMachine):
    """Exact shards: hits, their scores and their order are those of a loop over all documents, ties included."""

    def make(self, folder):
        return indexes.Sharded(folder, shards=3, kind="flat")


TestSharded = pytest.mark.slow(ShardedMachine.TestCase)
TestSharded.settings = settings(max_examples=10, stateful_step_count=12, **quickly)


def test_shards_of_few_bits_choose_their_codebooks_within_one_write(monkeypatch, tmp_path):
    monkeypatch.setattr("latelier.indexes.sharded._BATCH_BYTES", 4 << 20)  # each has half of the tokens of a codebook
    vectors = np.random.default_rng(0).standard_normal((80_000, 64), dtype="float32")
    with indexes.Sharded(tmp_path / "index", shards=2, nbits=2) as index:
        index.add(range(800), TokenEmbeddings(vectors, np.arange(0, 80_001, 100)))
        assert index.statistics().bytes_per_token < 40  # 50 in 4 bits
