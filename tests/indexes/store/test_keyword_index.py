"""The keyword index: words, hostile queries, damage and its cure, options."""

import sqlite3

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from index_helpers import contents
from index_tampering import change

from latelier import indexes
from latelier.errors import CorruptedIndexError, InvalidArgumentError, LatelierError
from latelier.indexes.words import query_terms

TEXTS = ["Running shoes for runners", "The café's naïve menu", "wi-fi and NEAR fields", "x" * 100_000, "", None]


@pytest.fixture(scope="module")
def shared():
    return make(None)


def make(folder, **options):
    index = indexes.Flat(folder, **options)
    index.add(list(range(len(TEXTS))), [np.eye(2)] * len(TEXTS), TEXTS)
    return index


def found(index, text, **options):
    return [hit.id for hit in index.search(mode="keywords", texts=text, **options)[0]]


@pytest.fixture
def folder(tmp_path):
    make(tmp_path / "index").close()
    return tmp_path / "index"


def test_words_are_found_by_stem_and_without_accents(shared):
    assert shared.tokenizer == "porter"
    for text, ids in [("run", [0]), ("CAFE naive", [1]), ("cafe\u0301", [1]), ("wi", [2]), ("near", [2]), ("ru", [])]:
        assert found(shared, text) == ids, text


def test_identifiers_are_found_by_their_parts(tmp_path):
    texts = ["def parseHTTPHeader(line)", "parse_http_header = 3", "The PDFs of McDonald", "a header", None]
    with indexes.Flat(tmp_path) as index:
        index.add(list("abcde"), [np.eye(2)] * 5, texts)
        for text, ids in [("http", "ab"), ("header", "abd"), ("parseHTTPHeader", "a"), ("pd", ""), ("pdfs", "c")]:
            assert sorted(found(index, text)) == list(ids), text
        index.verify()
        index.update(["a"], [np.eye(2)], ["nothing"])
        index.verify()
        assert found(index, "http") == ["b"]


def test_tokenizers_differ_in_what_they_find():
    for tokenizer, ids in [("standard", []), ("porter", [0])]:
        with make(None, tokenizer=tokenizer) as index:
            assert (index.tokenizer, found(index, "run")) == (tokenizer, ids)
            index.remove(0)
            assert found(index, "run") == []


@pytest.mark.parametrize("tokenizer", ["porter", "standard"])
def test_a_text_of_capitals_that_sqlite_does_not_know_is_found_by_itself(tokenizer):
    texts = ["ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "𞤀𞤁𞤂𞤢𞤃", "ᲐᲑᲒᲓ", "İstanbul", "Straße ΣΊΣΥΦΟΣ"]
    with indexes.Flat(tokenizer=tokenizer) as index:
        index.add([*texts, "other"], [np.eye(2)] * 6, [*texts, "something else"])
        for text in texts:
            assert found(index, text) == [text]


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
@example('"a" NOT (b AND run* ^x NEAR(a b, 2) text: x -y')
@example("run\0x \u2603 'run'; DROP TABLE keyword")
@example("x" * 1_000_000)
def test_any_text_is_a_query(shared, query):
    expected = sorted({id for term in query_terms(query, "standard") for id in found(shared, term)})
    assert sorted(found(shared, query)) == expected


def test_a_query_has_at_most_256_distinct_words(shared):
    words = [f"absent{i}" for i in range(256)]
    assert found(shared, " ".join([*words[1:], "run"])) == [0]
    assert found(shared, " ".join([*words[1:], *words[1:], "run"])) == [0]
    assert found(shared, " ".join([*words, "run"])) == []


DAMAGES = [
    "DELETE FROM keyword_data",
    "UPDATE keyword_docsize SET sz = x'07'",
    "UPDATE keyword_data SET block = replace(block, 'cafe', 'cake')",
    "UPDATE keyword_data SET block = substr(block, 1, 20) WHERE id > 10",
    "UPDATE keyword_idx SET pgno = pgno + 2",
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_by_verify_and_cured_by_compact(folder, damage):
    change(folder, damage)
    with indexes.open(folder, read_only=True) as index:
        [reported] = index.verify().damages
        assert "the keyword index is damaged" in reported.reason
        assert "compact(keywords=True)" in reported.reason
        assert reported.ids == ()
        before = contents(index)
    with indexes.open(folder) as index:
        index.compact(keywords=True)
        assert index.verify().is_whole
        assert contents(index) == before
        assert found(index, "run cafe") == [0, 1]


def test_damage_that_sqlite_notices_names_the_cure(folder):
    change(folder, DAMAGES[0])
    with indexes.open(folder) as index:
        for call in (lambda: found(index, "run"), lambda: index.remove(0)):
            with pytest.raises(CorruptedIndexError, match="keyword index is damaged"):
                call()
        assert len(index) == len(TEXTS)


def test_a_keyword_index_is_made_and_dropped_by_compact(tmp_path):
    with make(tmp_path / "index", keywords=False) as index:
        index.add("new", np.eye(2), "fresh")
        index.remove(2)
        with pytest.raises(LatelierError, match="no keyword index of its texts"):
            found(index, "fresh")
        before = contents(index)
        index.compact(keywords=True, tokenizer="standard")
        assert (found(index, "fresh runners"), index.tokenizer) == (["new", 0], "standard")
        assert contents(index) == before
        assert index.verify().is_whole
        index.compact()  # keeps it
        assert index.tokenizer == "standard"
        index.compact(keywords=False)
        assert index.tokenizer is None
        assert index.verify().is_whole
    index = indexes.Flat()
    index.add("a", np.eye(4))
    with pytest.raises(LatelierError, match="no document of this index has a text"):
        found(index, "wing")


def test_options_of_an_index_that_exists(folder):
    with pytest.raises(InvalidArgumentError, match="has the tokenizer 'porter'"):
        indexes.Flat(folder, tokenizer="standard")
    with pytest.raises(InvalidArgumentError, match=r"compact\(keywords="):
        indexes.Flat(folder, keywords=False)
    with indexes.open(folder) as index:
        index.compact(keywords=True, tokenizer="standard")
    assert indexes.Flat(folder, keywords=True).tokenizer == "standard"


def test_the_longest_lists_are_left_out_only_where_they_cannot_matter(tmp_path):
    """The result equals that of one statement over all words, which scores every document."""
    rng = np.random.default_rng(0)
    frequent, rare = [f"f{i}" for i in range(4)], [f"r{i}" for i in range(40)]
    texts = [" ".join([*rng.choice(frequent, 6), *rng.choice(rare, rng.integers(0, 3))]) for _ in range(600)]
    index = indexes.Flat(tmp_path / "index")
    index.add(range(600), [np.eye(2)] * 600, texts)
    catalog = sqlite3.connect(tmp_path / "index" / "catalog.sqlite")
    for query in ("f0 f1 r3", "f0 r3 r4 r5", "f0 f1 f2", "r1 r2 f3"):
        match = " OR ".join(query.split())
        statement = "SELECT rowid, -bm25(keyword) s FROM keyword WHERE keyword MATCH ? ORDER BY s DESC, rowid LIMIT ?"
        for k in (1, 10, 100, 600):
            hits = index.search(None, k, mode="keywords", texts=query)[0]
            assert [(hit.id, hit.score) for hit in hits] == catalog.execute(statement, (match, k)).fetchall()
