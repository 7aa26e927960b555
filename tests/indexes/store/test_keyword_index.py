"""The keyword index: words, hostile queries, damage and its cure, options."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from index_helpers import contents
from index_tampering import forge

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


def test_a_filter_that_leaves_no_row_of_a_segment_finds_none_of_it(tmp_path):
    with indexes.Flat(tmp_path) as index:
        for year in range(3):
            index.add(year, np.eye(2), "the same words", {"year": year})
        assert found(index, "words", filter="year = 1") == [1]
        assert found(index, "words", filter="year > 5") == []


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


def words_folder(folder):
    [name] = [path.parent for path in (folder / "segments").glob("*/postings.npy")]
    return name


def flip(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip, cut, lambda file: file.unlink()])
@pytest.mark.parametrize("name", ["words", "table", "postings", "maxima", "lengths"])
def test_damage_is_found_by_verify_and_cured_by_compact(folder, name, damage):
    damage(words_folder(folder) / f"{name}.npy")
    with indexes.open(folder, read_only=True) as index:
        reported = index.verify()
        assert not reported.is_whole
        assert reported.ids == []
        for each in reported.damages:
            assert "the keyword index is damaged" in each.reason
            assert "compact(keywords=True)" in each.reason
        before = contents(index)
        assert [hit.id for hit in index.search([np.eye(2)], 1)[0]] == [0]  # vectors are not affected
        if damage is not flip:
            for by_words in (lambda: found(index, "run"), lambda: index.search([np.eye(2)], texts="run")):
                with pytest.raises(CorruptedIndexError, match=r"keyword index is damaged.*mode='vectors'"):
                    by_words()
    with indexes.open(folder) as index:
        index.compact(keywords=True)
        assert index.verify().is_whole
        assert contents(index) == before
        assert found(index, "run cafe") == [0, 1]


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_merge_makes_damaged_words_again_from_the_texts(folder, damage):
    damage(words_folder(folder) / "postings.npy")
    with indexes.open(folder) as index:
        index.remove(1)
        index.add("new", np.ones((40, 2)), "more running")
        assert sorted(map(str, found(index, "run cafe menu"))) == ["0", "new"]
        assert index.verify().is_whole


def test_words_that_a_segment_lacks_are_reported_by_verify(folder):
    forge(folder, "segment", words="null")
    with indexes.open(folder) as index:
        [reported] = index.verify().damages
        assert "it has the words of 0 of 5 texts" in reported.reason
        index.compact(keywords=True)
        assert index.verify().is_whole
        assert found(index, "run cafe") == [0, 1]


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


def test_words_are_those_of_the_live_texts_whatever_was_written(tmp_path):
    """Many commits, updates and removals, then reopened and compacted: always the answers of an index made at once."""
    rng = np.random.default_rng(0)
    names = [f"w{i}" for i in range(30)]
    texts = {}
    with indexes.Flat(tmp_path / "index") as index:
        for step in range(60):
            id = int(rng.integers(40))
            texts.pop(id, None)
            if step % 4 == 3 and len(texts) > 1:
                gone = int(rng.choice(list(texts)))
                del texts[gone]
                index.remove(gone)
            texts[id] = " ".join(rng.choice(names, rng.integers(0, 20)))
            index.update(id, np.eye(2), texts[id])

        def answers(index):
            return [index.search(None, 50, mode="keywords", texts=f"{name} w1 w2")[0] for name in names]

        made = indexes.Flat()
        made.add(list(texts), [np.eye(2)] * len(texts), list(texts.values()))
        expected = answers(made)
        assert answers(index) == expected
        assert index.verify().is_whole
    with indexes.open(tmp_path / "index") as index:
        assert answers(index) == expected
        index.compact()
        assert answers(index) == expected
        index.compact(keywords=True)
        assert answers(index) == expected
        assert index.verify().is_whole
