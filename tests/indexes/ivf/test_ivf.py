"""What `IVF` does beyond the contract: recall, effort, filters, numbers of bits, any dim, unusual queries, memory."""

import threading

import numpy as np
import pytest
from index_tampering import change
from ivf_helpers import check_lists, collection, lists_of, recall

from instructions import forced
from latelier import indexes
from latelier.errors import CorruptedIndexError, EmbeddingsError, InvalidArgumentError
from latelier.indexes.store.storage import Storage
from latelier.kernels.library import supported

pytestmark = pytest.mark.processor

# The documents that `check(queries=10)` takes of 800.
SPREAD = np.linspace(0, 799, 10).astype(int).tolist()


@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
def test_recall(early, nbits):
    documents, queries = collection(800)
    index = indexes.IVF(nbits=nbits)
    index.add(range(800), documents)
    check_lists(index)
    assert recall(index, queries) > 0.96
    assert recall(index, queries, k=1) > 0.96
    narrow = recall(index, queries, nprobe=1, candidates=10)
    assert narrow < recall(index, queries, effort=4.0)
    assert recall(index, queries, effort=20.0) == 1.0


def errors(index, ids, documents):
    stored = index.get_embeddings(ids)
    return np.array([np.mean((mine - given) ** 2) for mine, given in zip(stored, documents, strict=False)])


@pytest.mark.parametrize("nbits", [2, 1])
@pytest.mark.parametrize("given", [list, iter])
def test_few_bits_begin_with_the_first_write_that_has_tokens_for_a_codebook(tmp_path, nbits, given):
    documents, queries = collection(2200, dim=48)
    with indexes.IVF(tmp_path / "index", nbits=nbits) as index, indexes.open(tmp_path / "index") as other:
        index.add(range(100), documents[:100])
        index.add(range(100, 120), documents[100:120])
        index.remove(range(10))
        four = indexes.IVF(nbits=4)
        four.add(range(100), documents[:100])
        of_four = errors(four, range(10, 100), documents[10:]).mean()
        few = index.get_embeddings(range(10, 100))
        assert errors(index, range(10, 100), documents[10:]).mean() == pytest.approx(of_four, rel=0.1)
        with other.snapshot():  # of 4 bits, while all of it is coded again
            before = other.search(queries, 5)
            index.update(range(120, 2100), given(documents[120:2100]))
            assert other.search(queries, 5) == before
            assert other.get_embeddings(range(10, 100)) == few
        assert len(other.search(queries, 5)[0]) == 5
        index.add(range(2100, 2200), documents[2100:])
        loss = errors(index, range(10, 2200), documents[10:])
        assert of_four < loss[:110].mean() < 1.3 * loss[110:].mean()
        assert index.verify().is_whole
        index.add(range(10), documents[:10])
        index.remove(range(50, 150))
        index.compact()
        assert recall(index, queries) > 0.93
        hits, stored = index.search(queries, 5), index.get_embeddings(index.ids())
        copied = indexes.IVF(tmp_path / "copy", nbits=nbits)
        indexes.copy_documents(index, copied)
        assert errors(copied, range(150, 2200), documents[150:]).mean() < 1.4 * loss[150:].mean()
        copied.close()
    with indexes.open(tmp_path / "index") as index:
        assert index.get_embeddings(index.ids()) == stored
        assert index.search(queries, 5) == hits
        assert index.verify().is_whole
    change(tmp_path / "index", "UPDATE setting SET value = replace(value, 'A', 'B') WHERE name = 'codebook_48_0'")
    with indexes.open(tmp_path / "index") as index:
        assert "setting" in str(index.verify().damages)
        with pytest.raises(CorruptedIndexError, match="codebook_48"):
            index.search(queries, 5)


@pytest.mark.parametrize("nbits", [8, 2])
def test_an_emptied_index_codes_what_follows_as_a_new_one(tmp_path, nbits):
    documents, queries = collection(2200, seed=1)
    others = [matrix + np.float32(0.5) for matrix in documents]
    fresh = indexes.IVF(nbits=nbits)
    fresh.add(range(2200), others)

    def fill(index):
        index.remove(index.ids())
        index.add(range(2200), others)

    with indexes.IVF(nbits=nbits) as in_memory, indexes.IVF(tmp_path / "index", nbits=nbits) as index:
        in_memory.add(range(2200), documents)
        fill(in_memory)
        for _ in range(2):
            index.add(range(2200), documents)
            first = index.search(queries, 5)
            with index.snapshot():  # of documents that others follow
                writing = threading.Thread(target=fill, args=[index])
                writing.start()
                writing.join()
                assert index.search(queries, 5) == first
            for each in (index, in_memory):
                assert each.search(queries, 5) == fresh.search(queries, 5)
                assert each.get_embeddings(range(2200)) == fresh.get_embeddings(range(2200))
            assert index.verify().is_whole
            index.remove(index.ids())


def test_documents_that_others_replace_while_they_are_read_are_decoded_as_they_were(tmp_path, monkeypatch):
    documents, _ = collection(200, seed=1)
    find = Storage.find
    with indexes.IVF(tmp_path / "index") as index, indexes.open(tmp_path / "index") as other:
        index.add(range(200), documents)
        stored = index.get_embeddings(range(200))

        def find_and_wait(storage, *arguments):
            found = find(storage, *arguments)
            monkeypatch.undo()
            other.remove(other.ids())
            other.add(range(200), [matrix + np.float32(0.5) for matrix in documents])
            return found

        monkeypatch.setattr(Storage, "find", find_and_wait)
        assert index.get_embeddings(range(200)) == stored
        assert index.get_embeddings(range(200)) == other.get_embeddings(range(200)) != stored


def test_scores_of_exact_searches_are_those_of_the_stored_vectors(early):
    documents, queries = collection(400)
    index, truth = indexes.IVF(), indexes.Flat()
    index.add(range(400), documents)
    truth.add(range(400), index.get_embeddings(range(400)))
    for hits, wanted in zip(index.search(queries, 20, effort="exact"), truth.search(queries, 20), strict=True):
        np.testing.assert_allclose([h.score for h in hits], [h.score for h in wanted], rtol=1e-6)
        assert [hit.id for hit in hits] == [hit.id for hit in wanted]


@pytest.mark.parametrize("nbits", [8, 1])
def test_instruction_sets_make_the_same_lists_and_find_the_same(early, monkeypatch, nbits):
    documents, queries = collection(600)
    found, stored = [], []
    monkeypatch.setattr("latelier.indexes.ivf.index.CODEBOOK_TOKENS", 5000)
    for name in supported()[:-1]:
        with forced(name):
            index = indexes.IVF(nbits=nbits)
            index.add(range(600), documents)
            found.append(index.search(queries, 10))
            stored.append(lists_of(index).arrays())
        assert found[-1] == found[0]
        for name, array in stored[0].items():
            assert np.array_equal(array, stored[-1][name]), name


def test_check_recommends_an_effort(early, monkeypatch):
    documents, _ = collection(800)
    index = indexes.IVF()
    index.add(range(800), documents)
    report = index.check(queries=10)
    asked = [m[:32][np.arange(min(32, len(m))) % 3 != 2] for m in index.get_embeddings(SPREAD)]
    assert report.recall == pytest.approx(recall(index, asked), abs=0.011)
    assert report.advice == "" or "effort" in report.advice
    assert str(report).endswith(f"800 searched{'; ' if report.advice else ''}{report.advice}")


def test_check_says_when_the_bits_cost_recall(early):
    documents, _ = collection(2000)
    for nbits, costs in ((8, False), (1, True)):
        index = indexes.IVF(nbits=nbits)
        index.add(range(2000), documents)
        assert index.statistics().tokens > 32_768
        advice = index.check(queries=10).advice
        assert ("mean cosine" in advice) == costs
    assert "codes of 1 bits" in advice
    assert "nbits=2" in advice


def in_cone(vectors, cosine):
    common = np.random.default_rng(3).standard_normal(vectors.shape[1]).astype("float32")
    shifted = vectors + common / np.linalg.norm(common) * np.float32((cosine / (1 - cosine)) ** 0.5)
    return shifted / np.linalg.norm(shifted, axis=1, keepdims=True)


@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
def test_codes_keep_their_recall_in_a_cone(early, nbits):
    """The exact hits are those of the vectors themselves: the loss of the codes counts."""
    documents, queries = collection(400, dim=64)
    found = []
    for cosine in (0, 0.95):
        given = [in_cone(m, cosine) for m in documents] if cosine else documents
        asked = [in_cone(m, cosine) for m in queries] if cosine else list(queries)
        index, truth = indexes.IVF(nbits=nbits), indexes.Flat()
        index.add(range(400), given)
        truth.add(range(400), given)
        wanted = [{hit.id for hit in hits} for hits in truth.search(asked, 10)]
        got = [{hit.id for hit in hits} for hits in index.search(asked, 10)]
        found.append(np.mean([len(a & b) / 10 for a, b in zip(wanted, got, strict=True)]))
    assert found[0] > {8: 0.98, 4: 0.93, 2: 0.8, 1: 0.6}[nbits]
    assert found[1] > found[0] - 0.04


def test_as_many_dims_as_integers_of_32_bits_can_add_up():
    index = indexes.IVF()
    vectors = np.ones((1, 65_536), dtype="float32") / 256
    index.add(["a", "b"], [vectors, -vectors])
    assert index.search(vectors, k=1)[0][0].score == pytest.approx(1, abs=0.01)
    alternating = vectors * np.where(np.arange(65_536) % 2, 1, -1).astype("float32")
    index.add("c", alternating)
    assert index.search(alternating, k=1)[0][0].score == pytest.approx(1, abs=0.01)
    with pytest.raises(EmbeddingsError, match="65,537 dims"):
        indexes.IVF().add("a", np.ones((1, 65_537), dtype="float32"))


@pytest.mark.parametrize("dim", [1, 2, 33, 130])
def test_lists_of_any_dim(early, dim):
    documents, queries = collection(200, dim=dim)
    index = indexes.IVF(nbits=4)
    index.add(range(200), documents)
    check_lists(index)
    assert recall(index, queries, effort=20.0) == 1.0


def test_bits_are_fixed_when_the_index_is_made(tmp_path):
    indexes.IVF(tmp_path / "index", nbits=2).close()
    with indexes.IVF(tmp_path / "index") as index:
        assert index.nbits == 2
    with pytest.raises(InvalidArgumentError, match=r"nbits=8, but the index in .* has 2"):
        indexes.IVF(tmp_path / "index", nbits=8)


@pytest.mark.parametrize(("nbits", "most"), [(8, 153), (4, 75), (2, 45), (1, 30)])
def test_bytes_per_token(early, tmp_path, nbits, most):
    """All files but the catalog, which holds texts and metadata."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((330, 100, 128)).astype("float32")
    with indexes.IVF(tmp_path / "index", nbits=nbits) as index:
        index.add(range(330), list(vectors))
        # Centroids cost as many bytes as so few tokens; they are counted where they matter.
        size = sum(path.stat().st_size for path in index.path.rglob("*.npy") if "centroids" not in path.name)
    assert size / vectors[..., 0].size < most + 2


@pytest.mark.parametrize("share", [2, 10, 500])
def test_recall_under_filters(early, share):
    documents, queries = collection(1500)
    index = indexes.IVF()
    index.add(range(1500), documents, metadata=[{"n": i % share} for i in range(1500)])
    options = {"candidates": 200}  # few enough for half of the documents to be probed for
    assert recall(index, queries, filter="n = 0", **options) >= 0.97
    for row in index.search(queries, 10, filter="n = ?", parameters=(1,), **options):
        assert all(hit.id % share == 1 for hit in row)
        assert len(row) == min(10, 1500 // share)


def test_more_hits_than_the_probed_lists_hold_are_found(early):
    documents, _ = collection(600)
    index = indexes.IVF()
    index.add(range(600), documents)
    hits = index.search(documents[0][:1], k=600, nprobe=1, candidates=10)[0]
    assert len(hits) == 600
    assert sorted(hit.id for hit in hits) == list(range(600))


@pytest.mark.parametrize("tokens", [1, 16, 33, 500])
def test_queries_of_any_length(early, tokens):
    documents, _ = collection(400)
    index = indexes.IVF()
    index.add(range(400), documents)
    queries = [np.concatenate(documents[i : i + 40])[:tokens] for i in range(0, 360, 10)]
    assert {len(query) for query in queries} == {tokens}
    assert recall(index, queries) >= 0.9


def test_snapshots_and_writes_of_several_threads_do_not_wait_for_each_other_forever():
    """The catalog in memory has one lock, which a snapshot holds; loading documents has another."""
    index, finished = indexes.IVF(), []
    index.add(["a", "b"], [np.eye(4)] * 2)

    def call(function):
        for _ in range(60):
            function()
        finished.append(function)

    def read():
        with index.snapshot():
            index.search(np.eye(4), effort="exact")

    works = [read, lambda: index.check(k=1), lambda: index.update("a", np.eye(4)), lambda: index.search(np.eye(4))]
    threads = [threading.Thread(target=call, args=[work], daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert sorted(map(id, finished)) == sorted(map(id, works))


@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
def test_without_the_library_numpy_finds_the_same(early, monkeypatch, nbits):
    documents, queries = collection(150, dim=20)
    found = []
    monkeypatch.setattr("latelier.indexes.ivf.index.CODEBOOK_TOKENS", 1000)
    for name in supported()[0], "numpy":
        with forced(name):
            index = indexes.IVF(nbits=nbits)
            index.add(range(100), documents[:100])
            index.add(range(100, 150), documents[100:])
            index.remove(range(5))
            found.append(index.search(queries, 5, effort=2.0))
    for numpy, kernels in zip(found[1], found[0], strict=True):
        assert [hit.id for hit in numpy] == [hit.id for hit in kernels]
        np.testing.assert_allclose([h.score for h in numpy], [h.score for h in kernels], rtol=1e-4, atol=1e-5)
