"""Documents in passages, over all indexes: what is stored of them, and that a hit is the best one of its document."""

import numpy as np
import pytest
from index_helpers import about, check_stored, matrices

from latelier import indexes
from latelier.errors import EmbeddingsError, InvalidArgumentError, UnknownIdError
from latelier.indexes import Passage
from naive import naive_maxsim

WORDS = ["pears", "figs", "moon", "roof", "sea"]


def documents(count, seed=0, dim=4):
    """Return ids, matrices per row, texts, metadata and ranges: every third document is whole, others have 1 to 5."""
    rng = np.random.default_rng(seed)
    ids, texts, metadata, ranges = [], [], [], []
    rows = 0
    for number in range(count):
        words = rng.choice(WORDS, 12)
        text = " ".join(words)
        starts = [0, *np.cumsum([len(word) + 1 for word in words])]
        own = None
        if number % 3:
            begins = np.sort(rng.choice(10, rng.integers(1, 6), replace=False))
            own = [Passage(int(starts[b]), int(starts[b + 2]) - 1, f"t{number % 2}", {"page": number}) for b in begins]
        ids.append(f"d{number}" if number % 2 else number)
        texts.append(text)
        metadata.append({"n": number % 4})
        ranges.append(own)
        rows += len(own or [0])
    return ids, matrices(rng.integers(1, 7, rows), dim, seed), texts, metadata, ranges


def split(given):
    """Return the matrices of each document, and the range of each."""
    ids, rows, _, _, ranges = given
    rest = iter(rows)
    return {
        id: [(next(rest), each and each[:2]) for each in (own or [None])] for id, own in zip(ids, ranges, strict=True)
    }


def naive_hits(index, given, query, k, keep=lambda id: True):
    best = []
    for id, rows in split(given).items():
        if keep(id):
            stored = list(index.get_embeddings([id]))
            scores = [naive_maxsim(query, matrix) for matrix in stored]
            place = int(np.argmax(scores))
            best.append((id, scores[place], rows[place][1] or (None, None)))
    return sorted(best, key=lambda each: -each[1])[:k]


def add(index, given):
    ids, rows, texts, metadata, ranges = given
    index.add(ids, rows, texts, metadata, ranges=ranges)


def check(hits, expected):
    assert [hit.id for hit in hits] == [id for id, _, _ in expected]
    assert [(hit.start, hit.end) for hit in hits] == [place for _, _, place in expected]
    np.testing.assert_allclose([hit.score for hit in hits], [score for _, score, _ in expected], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", [1, 7, 1000])
def test_a_hit_is_the_best_passage_of_its_document(index, k):
    given = documents(40)
    add(index, given)
    for query in matrices([3, 1, 5], seed=9):
        check(index.search(query, k)[0], naive_hits(index, given, query, k))
        wanted = naive_hits(index, given, query, k, lambda id: given[3][given[0].index(id)]["n"] == 2)
        check(index.search(query, k, filter="n = 2")[0], wanted)


def test_many_passages_of_one_document_do_not_hide_the_others(index):
    near = np.array([[1.0, 0.0, 0.0, 0.0]], dtype="float32")
    far = np.array([[0.25, 1.0, 0.0, 0.0]], dtype="float32")
    count = 400
    index.add(
        ["long", "far", "farther"],
        [*[near * (2 if i == 123 else 1 + i % 7 / 8) for i in range(count)], far, far / 2],
        ranges=[[(i, i + 1) for i in range(count)], None, [(0, 1)]],
    )
    [hits] = index.search(near, k=3)
    assert [(hit.id, hit.start) for hit in hits] == [("long", 123), ("far", None), ("farther", 0)]
    assert (len(index), index.statistics().passages) == (3, count + 1)


def test_a_document_with_passages_is_one_document(index):
    given = documents(20)
    add(index, given)
    ids, _, texts, metadata, ranges = given
    assert (len(index), index.ids()) == (20, ids)
    record = index.get("d1")
    assert (record.text, record.metadata) == (texts[1], metadata[1])
    assert (list(record.passages), index.get(0).passages) == (ranges[1], ())
    assert set(index.existing(["d1", "zz"])) == {"d1"}
    counts = {value.value: value.documents for each in index.field_values(field="n") for value in each.values or ()}
    assert counts in ({}, {0: 5, 1: 5, 2: 5, 3: 5})
    for id, own in split(given).items():
        stored = index.get_embeddings([id])
        assert len(stored) == len(own)
        for matrix, (expected, _) in zip(stored, own, strict=True):
            check_stored(index, matrix, expected)
    place = ranges[1][-1][:2]
    [last] = index.get_embeddings(["d1"], [place])
    check_stored(index, last, split(given)["d1"][-1][0])
    with pytest.raises(InvalidArgumentError, match="'d1' has no passage with the range"):
        index.get_embeddings(["d1"], [(0, 999)])
    assert index.verify().is_whole


def test_documents_are_removed_and_replaced_with_all_their_passages(index):
    given = documents(20)
    add(index, given)
    before = index.existing(["d1"])["d1"]
    index.remove(["d1", 2])
    with pytest.raises(UnknownIdError, match="'d1'"):
        index.get("d1")
    one, two = matrices([2, 3], seed=3)
    index.update(["d5", "d1"], [one, two, one], ["new text", "x"], ranges=[[(0, 3), (4, 8)], None])
    assert index.existing(["d1"])["d1"] > before
    assert (index.ids()[-2:], len(index)) == (["d5", "d1"], 19)
    assert index.get("d5").passages == (Passage(0, 3), Passage(4, 8))
    index.compact()
    query = matrices([4], seed=4)[0]
    kept = {id: rows for id, rows in split(given).items() if id not in ("d1", 2, "d5")}
    kept |= {"d5": [(one, (0, 3)), (two, (4, 8))], "d1": [(one, None)]}
    [hits] = index.search(query, 30)
    best = {id: max(naive_maxsim(query, m) for m in index.get_embeddings([id])) for id in kept}
    assert {hit.id: pytest.approx(hit.score, abs=1e-5) for hit in hits} == best
    assert index.verify().is_whole


@pytest.mark.parametrize("mode", ["keywords", "rerank", "hybrid"])
def test_words_are_those_of_passages(index, mode):
    rows = matrices([2] * 5)
    index.add(
        ["a", "b", "c"],
        rows,
        ["pears and plums grow here", "nothing", "figs on roofs"],
        ranges=[[(0, 5), (10, 15), (16, 25)], None, [Passage(0, 4, "pears")]],
    )
    options = {} if mode == "keywords" else {"queries": rows[0][:1]}
    [[found]] = index.search(texts="plums", k=1, mode="keywords")
    assert (found.id, found.start, found.end) == ("a", 10, 15)
    found = {hit.id for hit in index.search(texts="pears", mode=mode, **options)[0]}
    assert {"a", "c"} <= found  # the title of a passage is searched too
    assert found <= {"a", "c"} or mode == "hybrid"
    assert index.search(texts="and", mode="keywords")[0] == []  # between passages
    if mode == "rerank":
        [best] = index.search(texts="plums", mode=mode, **options)[0]
        scores = [naive_maxsim(options["queries"], matrix) for matrix in index.get_embeddings(["a"])]
        assert best.score == about(index, max(scores))
        assert (best.start, best.end) == [(0, 5), (10, 15), (16, 25)][int(np.argmax(scores))]


def test_ranges_that_cannot_be_stored_are_errors(index):
    one = np.eye(4, dtype="float32")
    for wrong in ([], [(0, 9)], [(3, 2)], [(-1, 2)], "ab", [(0, 1.5)], [(0, True)]):
        with pytest.raises(InvalidArgumentError, match=r"'a'.* ranges?"):
            index.add(["a"], [one], ["a text"], ranges=[wrong])
    with pytest.raises(InvalidArgumentError, match="last 1 passages of document 'a'"):
        index.add(["a"], [one], ["a text"], ranges=[[(0, 1), (1, 2)]])
    with pytest.raises(InvalidArgumentError, match="ids ended after 1 documents"):
        index.add(["a"], [one, one, one], ["a text"], ranges=[[(0, 1), (1, 2)]])
    with pytest.raises(EmbeddingsError, match="'a'"):
        index.add(["a"], [one, one[:0]], ["a text"], ranges=[[(0, 1), (1, 2)]])
    assert len(index) == 0


def test_copies_have_the_same_passages(index, tmp_path):
    given = documents(15)
    add(index, given)
    pytest.importorskip("pyarrow")
    file = tmp_path / "moved.parquet"
    indexes.copy_documents(index, file)
    with indexes.Flat() as direct, indexes.Flat() as moved:
        indexes.copy_documents(index, direct)
        indexes.copy_documents(file, moved)
        for copied in (direct, moved):
            assert copied.get(given[0]) == index.get(given[0])
            for mine, theirs in zip(copied.get_embeddings(given[0]), index.get_embeddings(given[0]), strict=True):
                np.testing.assert_allclose(mine, theirs, atol=1e-6)
        query = matrices([3], seed=5)[0]
        assert [hit[0] for hit in moved.search(query, 5)[0]] == [hit[0] for hit in index.search(query, 5)[0]]


def test_a_document_is_written_whole_whatever_the_size_of_batches(tmp_path):
    index = indexes.Flat(tmp_path / "index")
    index._segment_bytes = 64  # a few tokens
    given = documents(30)
    ids, rows, texts, metadata, ranges = given
    index.add(iter(ids), iter(rows), iter(texts), iter(metadata), ranges=iter(ranges))
    query = matrices([3], seed=6)[0]
    check(index.search(query, 10)[0], naive_hits(index, given, query, 10))
    assert index.verify().is_whole
