"""Cutting texts into passages: nothing is lost, nothing is too long, and cuts are at sentences where they can be."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latelier.errors import InvalidArgumentError, UnknownIdError
from latelier.indexes import ValueCount
from latelier.models.exported_encoder import token_starts, tokenizer_offsets
from latelier.retrieve import Passages, Retriever
from latelier.retrieve.passages import cut_texts

TEXTS = st.text(st.sampled_from("ab.!? \n\r\té中。\u2019\u200b\x00😀"), max_size=300)


@pytest.fixture(scope="module")
def starts(tiny):
    from transformers import AutoTokenizer

    offsets = tokenizer_offsets(AutoTokenizer.from_pretrained(tiny))
    return lambda texts: token_starts(offsets, texts)


def word_starts(texts):
    return [np.array([found.start() for found in re.finditer(r"\S+", text)], dtype="int64") for text in texts]


def check(text, parts, room, overlap, starts):
    begins, ends = [start for start, _ in parts], [end for _, end in parts]
    assert sorted(set(begins)) == begins
    assert sorted(set(ends)) == ends
    rebuilt = [" "] * len(text)
    for start, end in parts:
        assert text[start:end].strip() == text[start:end]
        rebuilt[start:end] = text[start:end]
    # What is between passages is white space alone.
    assert "".join(rebuilt) == "".join(
        " " if r == " " and t.isspace() else t for r, t in zip(rebuilt, text, strict=True)
    )
    for before, after in itertools.pairwise(parts):
        assert len(starts([text[after[0] : before[1]]])[0]) <= overlap + 1


@given(TEXTS, st.integers(1, 20), st.integers(0, 8))
def test_any_text_by_words(text, room, overlap):
    [parts] = cut_texts([text], [room], overlap, word_starts)
    if not text.strip():
        assert parts == [(0, 0)]
        return
    check(text, parts, room, overlap, word_starts)
    assert all(len(text[start:end].split()) <= room for start, end in parts)


@settings(max_examples=60)
@given(text=TEXTS, room=st.integers(8, 20), overlap=st.integers(0, 3))
def test_any_text_by_tokens(starts, text, room, overlap):
    [parts] = cut_texts([text], [room], overlap, starts)
    if text.strip():
        check(text, parts, room, overlap, starts)
        assert max(len(tokens) for tokens in starts([text[a:b] for a, b in parts])) <= room


def test_cuts_are_at_paragraphs_then_sentences_then_words():
    text = "One two three. Four five six\n\nseven eight. Nine ten eleven twelve thirteen fourteen."
    [parts] = cut_texts([text], [7], 0, word_starts)
    assert [text[a:b] for a, b in parts] == [
        "One two three. Four five six",
        "seven eight. Nine ten eleven twelve thirteen",
        "fourteen.",
    ]
    text = 'He said "no." Then he left. She stayed. They met again later on.'
    [parts] = cut_texts([text], [8], 0, word_starts)
    assert [text[a:b] for a, b in parts] == ['He said "no." Then he left. She stayed.', "They met again later on."]


def test_passages_overlap_from_a_sentence_on():
    text = "Aa bb cc dd. Ee ff. Gg hh ii jj kk ll mm."
    [parts] = cut_texts([text], [8], 3, word_starts)
    assert [text[a:b] for a, b in parts][:2] == ["Aa bb cc dd. Ee ff.", "Ee ff. Gg hh ii jj kk ll"]


def test_a_text_longer_than_a_piece_has_the_tokens_of_the_whole(starts):
    text = "The pears of this garden, ripe in September. " * 4000
    [found] = starts([text])
    [once] = starts([text[:45]])
    assert len(found) == 4000 * len(once)
    assert np.array_equal(found, (45 * np.arange(4000)[:, None] + once).ravel())
    [parts] = cut_texts([text], [100], 10, starts)
    check(text, parts, 100, 12, lambda texts: starts(texts))


@pytest.mark.parametrize("overlap", [0, 8])
def test_documents_are_read_as_they_were_given_whatever_they_were_cut_into(small, overlap):
    words = " ".join(f"figs dry on the roof while pear {i} ripens." for i in range(20))
    texts = {"a": words, "gaps": " First part.\n\n  " * 40 + "End. ", 1: "Short.", "#": "# Figs\n" + words}
    retriever = Retriever(small)
    records = [{"id": id, "text": text, "title": "Figs", "n": id} for id, text in texts.items()]
    retriever.add(records, passages=Passages(24, overlap))
    documents = retriever.documents
    assert len(documents["a"].passages) > 2
    assert [documents[id][:3] for id in documents] == [(id, text, {"n": id}) for id, text in texts.items()]
    assert {each.title for each in documents["a"].passages} == {"Figs"}
    assert documents["#"].passages[0].title == ""  # the text begins with it
    assert [record.id for record in documents.get([1, "a", 1])] == [1, "a", 1]
    with pytest.raises(UnknownIdError, match=r"'none'.*retriever\.documents"):
        documents.get(["a", "none"])


def test_documents_are_a_collection_by_id(small):
    retriever = Retriever(small)
    retriever.add([{"id": "a", "text": "figs " * 60, "lang": "en"}, {"id": 1, "text": "Short."}], passages=24)
    documents = retriever.documents
    assert (len(documents), list(documents), documents.ids()) == (2, ["a", 1], ["a", 1])
    assert [id in documents for id in ("a", 1, "1", None, 1.5)] == [True, True, False, False, False]
    assert documents.values("lang").values == [ValueCount("en", 1)]
    assert documents.values("lang", filter="id = 1").values == []
    with pytest.raises(InvalidArgumentError, match=r"'land'.* lang"):
        documents.values("land")
    retriever.remove("a")
    assert list(documents) == [1]
