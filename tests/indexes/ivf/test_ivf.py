"""What `IVF` does beyond the contract: cells that come and grow by themselves, effort, codecs, filters, damage."""

import threading
import tracemalloc

import numpy as np
import pytest
import torch
from index_helpers import contents

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError, StorageError
from latelier.indexes.ivf import index as ivf_index
from latelier.indexes.ivf import maintenance, stages
from latelier.indexes.ivf import search as ivf_search
from latelier.indexes.ivf.inverted_lists import Cells
from latelier.indexes.ivf.query import prepare_query
from latelier.indexes.ivf.stages import keep_likely
from latelier.indexes.storage.storage import Storage
from latelier.kernels.cpu import supported

pytestmark = pytest.mark.processor

DIM = 32
# The documents that `check(queries=10)` takes of 1,500.
SPREAD = [0, 166, 333, 499, 666, 832, 999, 1165, 1332, 1499]


def collection(count, seed=0, topics=60, dim=DIM):
    """Documents of unit tokens around a few topics each, as text has them, and queries from some of them."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).standard_normal((topics, dim))
    documents = []
    for _ in range(count):
        own = centers[rng.choice(topics, 4, replace=False)]
        tokens = own[rng.integers(0, 4, rng.integers(5, 30))] + 0.7 * rng.standard_normal(dim)
        tokens = tokens + 0.5 * rng.standard_normal(tokens.shape)
        documents.append((tokens / np.linalg.norm(tokens, axis=1, keepdims=True)).astype("float32"))
    queries = []
    for document in documents[:: max(1, count // 25)]:
        query = document[rng.choice(len(document), 5)] + 0.15 * rng.standard_normal((5, dim)).astype("float32")
        queries.append(query / np.linalg.norm(query, axis=1, keepdims=True))
    return documents, TokenEmbeddings.from_list(queries)


@pytest.fixture
def soon(monkeypatch):
    """Cells pay from a thousand tokens on, and are filled up for every hundred."""
    monkeypatch.setattr(maintenance, "_FIRST_TOKENS", 1000)
    monkeypatch.setattr(maintenance, "_FRESH_TOKENS", 100)


def cells_of(index):
    derived = index._storage.snapshot().ann_data
    return None if derived is None else Cells.from_arrays(derived)


def recall(index, queries, k=10, **options):
    """The part of the exact hits that a search finds."""
    names = {name: options.pop(name) for name in ("filter", "parameters") if name in options}
    exact = index.search(queries, k, effort="exact", **names)
    found = index.search(queries, k, **names, **options)
    assert [len(row) for row in found] == [len(row) for row in exact]
    common = [len({hit.id for hit in row} & {hit.id for hit in best}) for row, best in zip(found, exact, strict=True)]
    return sum(common) / max(1, sum(map(len, exact)))


def check_cells(index):
    """Every living document that the cells know is in a cell, under its own number."""
    cells, snapshot = cells_of(index), index._storage.snapshot()
    numbers = np.concatenate([part.segment.numbers[part.positions] for part in snapshot.parts()])
    assert (np.diff(cells.numbers) > 0).all()
    held = np.unique(cells.documents)
    known = np.flatnonzero(np.isin(cells.numbers, numbers))
    assert np.isin(known, held).all()
    assert cells.offsets[-1] == len(cells.documents)
    for first, last in zip(cells.offsets[:-1], cells.offsets[1:], strict=True):
        assert (np.diff(cells.documents[first:last]) > 0).all()


def dots_with(codes, lanes, start):
    """What kernels compute: ``(tokens, lanes)``."""
    rows = lanes.transpose(0, 2, 1, 3).reshape(start.size, -1)
    return codes.astype("int64") @ rows.T.astype("int64") + start.reshape(-1)


def test_tokens_are_in_the_best_cell_of_their_best_group(soon):
    index = indexes.IVF()
    index.add(range(500), collection(500)[0])
    table, cells = index._look(index._storage.snapshot())
    codes = table.rows(np.arange(500)).codes
    top, own, ranges = cells.centroids.top, cells.centroids.cells, 16 * cells.centroids.ranges
    groups = dots_with(codes, top, cells.centroids.top_start).argmax(axis=1)
    values = dots_with(codes, own, cells.centroids.cell_start)
    expected = [set() for _ in range(values.shape[1])]
    for document, group, row in zip(np.repeat(np.arange(500), table.lengths), groups, values, strict=True):
        expected[ranges[group] + row[ranges[group] : ranges[group + 1]].argmax()].add(int(document))
    found = [cells.documents[a:b].tolist() for a, b in zip(cells.offsets[:-1], cells.offsets[1:], strict=True)]
    assert found == [sorted(documents) for documents in expected]


@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
def test_recall_with_cells(soon, nbits):
    documents, queries = collection(1500)
    index = indexes.IVF(nbits=nbits)
    index.add(range(1500), documents)
    check_cells(index)
    assert recall(index, queries) > 0.96
    assert recall(index, queries, k=1) > 0.96
    narrow = recall(index, queries, nprobe=1, candidates=10, rerank=10)
    assert narrow < recall(index, queries, effort=4.0)
    assert recall(index, queries, effort=20.0) == 1.0


def test_scores_of_exact_searches_are_those_of_the_stored_vectors(soon):
    documents, queries = collection(400)
    index, truth = indexes.IVF(), indexes.Flat()
    index.add(range(400), documents)
    truth.add(range(400), index.get_embeddings(range(400)))
    for hits, wanted in zip(index.search(queries, 20, effort="exact"), truth.search(queries, 20), strict=True):
        np.testing.assert_allclose([h.score for h in hits], [h.score for h in wanted], rtol=1e-6)
        assert [hit.id for hit in hits] == [hit.id for hit in wanted]


def test_instruction_sets_find_the_same_in_the_same_cells(soon, monkeypatch):
    documents, queries = collection(600)
    found, cells = [], []
    for isa in supported():
        monkeypatch.setenv("LATELIER_KERNELS", isa.name)
        index = indexes.IVF()
        index.add(range(600), documents)
        found.append(index.search(queries, 10))
        cells.append(cells_of(index).arrays())
        assert found[-1] == found[0]
        for name, array in cells[0].items():
            assert np.array_equal(array, cells[-1][name]), name


def test_cells_come_by_themselves_and_grow(soon):
    documents, queries = collection(1200)
    index = indexes.IVF()
    index.add(range(30), documents[:30])
    assert cells_of(index) is None
    index.add(range(30, 300), documents[30:300])
    first = cells_of(index)
    assert len(first.numbers) == 300
    index.add(300, documents[300])
    assert len(cells_of(index).numbers) == 300
    index.add(range(301, 340), documents[301:340])
    filled = cells_of(index)
    assert len(filled.numbers) == 340
    assert np.array_equal(filled.centroids.cells, first.centroids.cells)
    check_cells(index)
    assert recall(index, queries) > 0.97
    index.add(range(340, 1200), documents[340:1200])
    grown = cells_of(index)
    assert (len(grown.numbers), grown.centroids.lanes > first.centroids.lanes) == (1200, True)
    assert recall(index, queries) > 0.97


def test_documents_that_are_in_no_cell_yet_are_found(soon):
    documents, _ = collection(402)
    index = indexes.IVF()
    index.add(range(400), documents[:400])
    index.add([400, 401], documents[400:402])
    assert len(cells_of(index).numbers) == 400
    for id in (400, 401, 7):
        assert index.search(documents[id], k=1, candidates=20, rerank=20)[0][0].id == id


def test_removed_and_updated_documents_are_found_as_they_are(soon):
    documents, queries = collection(500)
    index = indexes.IVF()
    index.add(range(500), documents)
    index.remove(range(0, 500, 3))
    index.update([1, 2], [documents[0], documents[3]])
    narrow = {"candidates": 20, "rerank": 20}
    assert index.search(documents[0], k=1, **narrow)[0][0].id == 1
    assert {hit.id for hit in index.search(documents[1], k=300, **narrow)[0]} <= set(index.ids())
    assert recall(index, queries, candidates=100, rerank=100) > 0.95
    before = contents(index)
    index.compact()
    check_cells(index)
    assert len(cells_of(index).numbers) == len(index)
    assert contents(index) == before
    assert recall(index, queries, candidates=100, rerank=100) > 0.95


def test_drift_is_mended_by_compaction(soon):
    documents, _ = collection(300)
    index = indexes.IVF()
    index.add(range(300), documents)
    kept = cells_of(index).centroids
    rng = np.random.default_rng(5)
    others = [rng.standard_normal((10, DIM)).astype("float32") for _ in range(200)]
    index.add(range(300, 500), [m / np.linalg.norm(m, axis=1, keepdims=True) for m in others])
    drifted = cells_of(index).centroids
    assert np.array_equal(kept.cells, drifted.cells)
    assert drifted.fit[2] < 0.9 * drifted.fit[1]
    index.compact()
    mended = cells_of(index).centroids
    assert not np.array_equal(kept.cells, mended.cells[: len(kept.cells)])
    assert mended.fit[1] == mended.fit[2]


@pytest.mark.parametrize("share", [2, 10, 100, 1000])
def test_recall_under_filters(soon, share):
    documents, queries = collection(3000)
    index = indexes.IVF()
    index.add(range(3000), documents, metadata=[{"n": i % share} for i in range(3000)])
    options = {"candidates": 400, "rerank": 300}  # narrow enough that half of them are not simply scanned
    assert recall(index, queries, filter="n = 0", **options) >= 0.97
    for row in index.search(queries, 10, filter="n = ?", parameters=(1,), **options):
        assert all(hit.id % share == 1 for hit in row)
        assert len(row) == min(10, 3000 // share)


def test_probing_widens_as_filters_narrow(soon, monkeypatch):
    documents, queries = collection(1000)
    index = indexes.IVF()
    index.add(range(1000), documents, metadata=[{"n": i % 4} for i in range(1000)])
    visited, probe = [], ivf_search.probe

    def noted(centroids, query, nprobe):
        visited.append(nprobe)
        return probe(centroids, query, nprobe)

    monkeypatch.setattr(ivf_search, "probe", noted)
    narrow = {"nprobe": 3, "candidates": 20, "rerank": 15}
    for filter in (None, "n != 0", "n > 1", "n = 0", "n = 9"):
        index.search(queries[:1], k=1, filter=filter, **narrow)
    assert visited == [3, 3, 6, 12]  # and where nothing is left, none


@pytest.mark.parametrize(("slack", "kept"), [(2.0, 19), (0.0, 10), (1e9, 100)])
def test_documents_whose_signs_are_much_worse_than_the_kth_are_not_scored(slack, kept):
    query = prepare_query(np.eye(4, DIM, dtype="float32"))
    # The tenth of these differs in 9 signs. The standard deviation is 0.4 * sqrt(32) * sqrt(4) = 4.53.
    scores = np.random.default_rng(0).permutation(-np.arange(100, dtype="float32"))
    documents = np.arange(1000, 1100)
    assert keep_likely(documents, scores, query, 10, slack).tolist() == documents[scores > -kept].tolist()


def test_tokens_that_are_the_same_err_together():
    """Four of them are off by four times as much as one, four different ones by twice as much."""
    scores, documents = -np.arange(100, dtype="float32"), np.arange(100)
    for rows, kept in (([0, 0, 0, 0], 28), ([0, 1, 2, 3], 19), ([0], 14)):
        query = prepare_query(np.eye(DIM, dtype="float32")[rows])
        assert len(keep_likely(documents, scores, query, 10, 2.0)) == kept


def test_errors_of_a_very_long_query_are_added_up_in_parts():
    """Half of the 1,500 tokens are one, and half another, three times as long and at right angles to it."""
    rows = np.concatenate([np.eye(2, DIM, dtype="float32") * [[1], [3]]] * 750).astype("float32")
    assert stages._variance(prepare_query(rows)) == pytest.approx(750**2 * (1 + 9), rel=1e-5)


def test_all_documents_are_likely_for_a_query_of_zeros():
    query = prepare_query(np.zeros((3, DIM), dtype="float32"))
    documents, scores = np.arange(20), np.zeros(20, dtype="float32")
    for k in (10, 50):
        assert keep_likely(documents, scores, query, k, 2.0).tolist() == list(range(20))


def test_a_query_of_zeros_finds_documents(soon):
    index = indexes.IVF()
    index.add(range(1500), collection(1500)[0])
    for options in ({}, {"rerank": 20}):
        [hits] = index.search(np.zeros((2, DIM)), k=5, **options)
        assert [hit.score for hit in hits] == [0.0] * 5


def test_more_hits_than_cells_would_give_are_found_by_scanning(soon):
    documents, _ = collection(600)
    index = indexes.IVF()
    index.add(range(600), documents)
    hits = index.search(documents[0][:1], k=600, nprobe=1, candidates=10, rerank=10)[0]
    assert len(hits) == 600
    assert sorted(hit.id for hit in hits) == list(range(600))


def test_check_says_how_much_effort_is_enough(soon, monkeypatch):
    documents, _ = collection(1500)
    index = indexes.IVF()
    index.add(range(1500), documents)
    report = index.check(queries=10)
    assert report.recall == pytest.approx(recall(index, [m[:32] for m in index.get_embeddings(SPREAD)]), abs=0.011)
    assert report.advice == "" or "effort" in report.advice
    assert str(report).endswith(f"1,500 searched{'; ' if report.advice else ''}{report.advice}")


@pytest.mark.parametrize("tokens", [1, 16, 33, 500])
def test_queries_of_any_length(soon, tokens):
    documents, _ = collection(400)
    index = indexes.IVF()
    index.add(range(400), documents)
    query = np.concatenate(documents[:40])[:tokens]
    assert len(query) == tokens
    assert recall(index, [query]) >= 0.9


@pytest.mark.parametrize("dim", [1, 2, 33, 130])
def test_cells_of_any_dim(soon, dim):
    documents, queries = collection(200, dim=dim)
    index = indexes.IVF(nbits=4)
    index.add(range(200), documents)
    check_cells(index)
    assert recall(index, queries, effort=20.0) == 1.0


def test_identical_documents_come_in_the_order_of_insertion(soon):
    index = indexes.IVF()
    index.add(range(2000), [np.eye(4)[[0]]] * 2000)
    assert cells_of(index) is not None
    assert [hit.id for hit in index.search(np.eye(4)[:1], k=5, effort="exact")[0]] == [0, 1, 2, 3, 4]
    assert len(index.search(np.eye(4)[:1], k=5)[0]) == 5


def test_another_dim_after_everything_was_removed(soon):
    documents, _ = collection(100)
    index = indexes.IVF()
    index.add(range(100), documents)
    index.remove(range(100))
    wide, queries = collection(40, dim=64)
    index.add(range(40), wide)
    assert index.dim == 64
    assert recall(index, queries, k=3) == 1.0


def test_what_was_derived_is_kept_checked_and_made_again(soon, tmp_path):
    documents, queries = collection(300)
    with indexes.IVF(tmp_path / "index", nbits=4) as index:
        index.add(range(300), documents)
        wanted = index.search(queries)
        name = next(path for path in (tmp_path / "index" / "segments").iterdir() if (path / "offsets.npy").exists())
        files = index.verify().files
    with indexes.open(tmp_path / "index", read_only=True) as index:
        assert (type(index), index.nbits) == (indexes.IVF, 4)
        assert cells_of(index) is not None
        assert index.search(queries) == wanted
        assert index.verify().is_whole
    content = bytearray((name / "documents.npy").read_bytes())
    content[-1] ^= 1
    (name / "documents.npy").write_bytes(content)
    with indexes.open(tmp_path / "index") as index:
        report = index.verify()
        assert [damage.file for damage in report.damages] == [f"segments/{name.name}/documents.npy"]
        assert (report.files, report.ids) == (files, [])
    (name / "documents.npy").unlink()
    with indexes.open(tmp_path / "index") as index:
        assert cells_of(index) is None
        assert recall(index, queries) > 0.97
        index.compact()
        assert index.verify().is_whole
        check_cells(index)


def test_bits_are_fixed_when_the_index_is_made(tmp_path):
    with indexes.IVF(tmp_path / "index", nbits=2):
        pass
    with indexes.IVF(tmp_path / "index") as index:
        assert index.nbits == 2
    with pytest.raises(InvalidArgumentError, match=r"received nbits=8, but the index in .* has 2, which is fixed"):
        indexes.IVF(tmp_path / "index", nbits=8)
    with pytest.raises(InvalidArgumentError, match="received nbits=3; expected one of 8, 4, 2, 1"):
        indexes.IVF(nbits=3)
    with pytest.raises(InvalidArgumentError, match="received memory_limit=0; expected an integer of at least 1"):
        indexes.IVF(memory_limit=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effort": "best"}, "received effort='best'; expected 'fast', 'balanced', 'exact' or a number above 0"),
        ({"effort": 0}, "received effort=0"),
        ({"effort": float("nan")}, "received effort=nan"),
        ({"effort": True}, "received effort=True"),
        ({"effort": None}, "received effort=None"),
        ({"nprobe": 0}, "received nprobe=0; expected an integer of at least 1, or None"),
        ({"candidates": 1.5}, "received candidates=1.5"),
        ({"rerank": True}, "received rerank=True"),
    ],
)
def test_unknown_knobs_are_refused(options, message):
    index = indexes.IVF()
    with pytest.raises(InvalidArgumentError, match=message):
        index.search(np.ones((1, 2)), **options)


@pytest.mark.parametrize(("nbits", "most"), [(8, 150), (4, 75), (2, 45), (1, 30)])
def test_bytes_per_token(soon, tmp_path, nbits, most):
    """All files but the catalog, which holds texts and metadata; short documents share few cells, at most one each."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((300, 100, 128)).astype("float32")
    with indexes.IVF(tmp_path / "index", nbits=nbits) as index:
        index.add(range(300), list(vectors))
        # Centroids cost as many bytes as so few tokens; they are counted where they matter.
        size = sum(path.stat().st_size for path in index.path.rglob("*.npy") if "centroids" not in path.name)
    assert size / vectors[..., 0].size < most + 2


def test_a_streamed_build_takes_bounded_memory(soon, tmp_path):
    """A tenth of what the vectors take, which come from a generator; codes are written as they come."""
    limit, count = 8 << 20, 1500

    def stream():
        rng = np.random.default_rng(0)
        for _ in range(count):
            yield rng.standard_normal((100, 128), dtype="float32")

    with indexes.IVF(tmp_path / "index", nbits=4, memory_limit=limit) as index:
        index.add("first", np.ones((1, 128)))
        tracemalloc.start()
        index.add(range(count), stream())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert cells_of(index) is not None
        assert len(index) == count + 1
    # Cells and postings take some bytes per token, and each thread that fills them looks at 32,768 tokens at a time.
    assert peak < 2 * limit + 150_000 * 20 + torch.get_num_threads() * (160 << 15)


def test_searches_go_on_while_cells_are_made(soon, monkeypatch):
    """Training waits here until a search in another thread has been answered, from the documents just committed."""
    documents, _ = collection(200)
    index = indexes.IVF()
    found = []
    train = ivf_index.train_centroids

    def slowly(table, ordinals, most):
        thread = threading.Thread(target=lambda: found.append(index.search(documents[7], k=1)[0][0].id))
        thread.start()
        thread.join(timeout=10)
        return train(table, ordinals, most)

    monkeypatch.setattr(ivf_index, "train_centroids", slowly)
    index.add(range(200), documents)
    assert found == [7]
    assert cells_of(index) is not None


def test_a_disk_too_full_for_cells_loses_nothing(soon, tmp_path, monkeypatch):
    documents, queries = collection(200)

    def refuse(self, arrays):
        raise StorageError("the disk is full")

    with indexes.IVF(tmp_path / "index") as index:
        with monkeypatch.context() as patch:
            patch.setattr(Storage, "write_ann_data", refuse)
            index.add(range(200), documents)
            assert cells_of(index) is None
            with pytest.raises(StorageError, match="the disk is full"):
                index.compact()
        assert recall(index, queries) > 0.97
        index.add("one more", documents[0])
        assert len(cells_of(index).numbers) == 201


def test_two_processes_may_make_cells_at_once(soon, tmp_path, monkeypatch):
    """What another one has written meanwhile is neither lost nor hidden: the last cells count, whatever they hold."""
    documents, _ = collection(260)
    train = ivf_index.train_centroids

    with indexes.IVF(tmp_path / "index") as index, indexes.open(tmp_path / "index") as other:

        def interrupted(table, ordinals, most):
            monkeypatch.setattr(ivf_index, "train_centroids", train)
            other.add(range(200, 250), documents[200:250])
            other.remove([0, 5])
            other.compact()
            return train(table, ordinals, most)

        monkeypatch.setattr(ivf_index, "train_centroids", interrupted)
        index.add(range(200), documents[:200])
        assert len(cells_of(index).numbers) == 200
        for at in (index, other):
            assert len(at) == 248
            narrow = {"k": 1, "candidates": 30, "rerank": 30}
            assert [at.search(documents[i], **narrow)[0][0].id for i in (1, 199, 225)] == [1, 199, 225]
            assert 5 not in {hit.id for hit in at.search(documents[5], k=240)[0]}
        index.compact()
        check_cells(index)
        assert len(cells_of(index).numbers) == 250  # with two that are gone, too few to make cells anew
