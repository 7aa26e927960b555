"""Explanations: the parts sum to the score, pieces of words are put together, and pages show texts and no markup."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from latelier.errors import InvalidArgumentError, LatelierError, StorageError, UnknownIdError
from latelier.indexes import IVF
from latelier.models import ColBERT
from latelier.retrieve import Retriever
from latelier.retrieve.explaining import TokenizedText, explain_alignment
from latelier.scores.maxsim import Alignment


@pytest.mark.parametrize("query", ["unhealthy fruit", "what is the distance to the moon?"])
def test_the_parts_sum_to_the_score_of_the_search(shared_retriever, query):
    for result in shared_retriever.search(query, mode="vectors"):  # by queries that are changed
        assert shared_retriever.explain(query, result.id).score == pytest.approx(result.score, abs=1e-4)
    for result in shared_retriever.search(query, mode="vectors"):
        explanation = shared_retriever.explain(query, result.id)
        assert explanation.score == pytest.approx(result.score, abs=1e-4)
        assert sum(match.contribution for match in explanation.words()) == pytest.approx(result.score, abs=1e-4)
        assert [match.token for match in explanation.tokens] == shared_retriever.model.tokens(query, is_query=True)
        document = shared_retriever.model.encode_document(result.text)
        similarities = np.asarray(shared_retriever.model.encode_query(query) @ document.T)
        np.testing.assert_allclose(explanation.similarities, similarities, atol=1e-5)
        for row, match in zip(similarities, explanation.tokens, strict=True):
            assert match.similarity == pytest.approx(row.max(), abs=1e-5)
            assert match.matched == explanation.document_tokens[match.position]


def test_spans_are_the_words_that_matched_and_add_up(shared_retriever):
    explanation = shared_retriever.explain("What is Germany's capital", "berlin")
    assert explanation.text == "Berlin It is the capital of Germany."  # the title stands before the text
    added: dict = {}
    for match in explanation.tokens:
        added[match.position] = added.get(match.position, 0) + match.similarity
    by_word = {explanation.text[start:end]: contribution for start, end, contribution in explanation.spans}
    assert by_word["capital"] == pytest.approx(added[explanation.document_tokens.index("capital")])
    assert "Germany" in by_word
    nowhere = sum(added[i] for i in added if explanation.document_ranges[i] is None)
    assert sum(by_word.values()) + nowhere == pytest.approx(explanation.score)
    asked = [explanation.query[start:end] for start, end, _ in explanation.query_spans]
    assert asked == ["What", "is", "Germany", "'", "s", "capital"]
    without_special = sum(match.similarity for match in explanation.tokens if match.token not in explanation.special)
    assert sum(span.contribution for span in explanation.query_spans) == pytest.approx(without_special)


def test_markers_skipped_punctuation_and_truncation_keep_spans_in_place(tiny):
    retriever = Retriever(ColBERT(tiny, 16, device="cpu", max_length_query=8, max_length_document=9))
    retriever.add([("a", "Figs, pears, plums and a very long end.")])
    explanation = retriever.explain("Pear!", "a")
    assert explanation.document_tokens == ("[CLS]", "[D] ", "fig", "##s", "pear", "##s", "[SEP]")
    found = [each and explanation.text[slice(*each)] for each in explanation.document_ranges]
    assert found == [None, None, "Fig", "s", "pear", "s", None]
    assert [match.token for match in explanation.tokens][-2:] == ["[MASK]"] * 2
    assert [explanation.query[span.start : span.end] for span in explanation.query_spans] == ["Pear", "!"]
    assert {explanation.text[span.start : span.end] for span in explanation.spans} <= {"Figs", "pears"}


PIECES = ["<s>", "Ġdig", "est", "</s>"]


def join_begins(pieces):
    return "".join(pieces).replace("Ġ", " ").replace("▁", " ")


def test_pieces_of_byte_tokenizers_become_words():
    query, document = (TokenizedText("", tokens, [None] * 4) for tokens in (PIECES, ["<s>", "Ġthe", "Ġa", "</s>"]))
    matrix = np.eye(4, dtype="float32") + np.arange(4, dtype="float32")[:, None]
    alignment = Alignment(matrix.argmax(1), matrix.max(1), matrix)
    explanation = explain_alignment("d", alignment, query, document, ["<s>", "</s>"], join_begins)
    assert [match.word for match in explanation.words()] == ["digest", "(special tokens)"]
    assert explanation.score == 10


def test_characters_of_scripts_without_spaces_are_words_of_their_own():
    japanese = TokenizedText("東京は big", ["▁東", "京", "は", "▁b", "ig"], [(0, 1), (1, 2), (2, 3), (4, 5), (5, 7)])
    byte_by_byte = TokenizedText("京", ["▁a", "b"], [(0, 1), (0, 1)])
    matrix = np.ones((2, 5), dtype="float32")
    alignment = Alignment(matrix.argmax(1), matrix.max(1), matrix)
    explanation = explain_alignment("d", alignment, byte_by_byte, japanese, [], join_begins)
    words = [(word.text, word.range) for word in explanation.document_words]
    assert words == [("東", (0, 1)), ("京", (1, 2)), ("は", (2, 3)), ("big", (4, 7))]
    assert [word.positions for word in explanation.query_words] == [(0, 1)]


def test_what_cannot_be_explained(retriever, model):
    with pytest.raises(UnknownIdError, match="absent"):
        retriever.explain("fruit", "absent")
    retriever.index.add("vectors only", model.encode_document("Bananas."))
    with pytest.raises(LatelierError, match="'vectors only' was stored without its text"):
        retriever.explain("fruit", "vectors only")
    retriever.index.add("pooled", model.encode_document("Bananas are healthy.")[:3], texts="Bananas are healthy.")
    with pytest.raises(LatelierError, match=r"'pooled' has 3 rows, but its text has 6 tokens"):
        retriever.explain("fruit", "pooled")
    with pytest.raises(InvalidArgumentError, match="expected a text"):
        retriever.explain(["fruit"], "fruit")


PAGE = {"html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "details", "summary"}
CELL = {"style", "div", "p", "s", "mark", "sub", "span", "table", "caption", "thead", "tbody", "tr", "th", "td"}
HOSTILE = '<script>alert(1)</script> </title></style> fruit" onload="x() \u202egnp.exe \x00'


class Reader(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.elements, self.attributes, self.open, self.texts = set(), set(), [], {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.add(tag)
        self.attributes.update(name for name, _ in attributes)
        if tag != "meta":
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in self.open:
            self.texts[tag][-1] += data


def test_a_page_shows_the_text_the_words_and_all_similarities(shared_retriever, tmp_path):
    explanation = shared_retriever.explain("unhealthy fruit", "fruit")
    page = explanation.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    seen = Reader(page)
    marks = [f"{explanation.text[s.start : s.end]}{s.contribution:.2f}" for s in explanation.spans]
    assert seen.texts["mark"] == marks
    numbers = [float(text) for text in seen.texts["td"] if re.fullmatch(r"-?\.\d\d", text)]
    np.testing.assert_allclose(numbers, explanation.similarities.ravel(), atol=0.0051)
    assert "unhealthy" in seen.texts["th"]
    assert page.count(' best"') == len(explanation.tokens)
    with pytest.raises(StorageError, match=r"could not write .*absent"):
        explanation.to_html(tmp_path / "absent" / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_hostile_texts_become_no_markup(retriever):
    retriever.add([("bad</title>", HOSTILE)])
    explanation = retriever.explain(f"fruit {HOSTILE}", "bad</title>")
    for shown, elements in ((explanation.to_html(), PAGE | CELL), (explanation._repr_html_(), CELL)):
        seen = Reader(shown)
        assert seen.elements <= elements
        assert not any(name.startswith("on") or name in ("src", "href") for name in seen.attributes)
        assert not re.search("[\u202e\x00]|https?:|url\\(|@import", shown)
        assert "<script>alert(1)</script>" in re.sub(r"\d\.\d\d", "", "".join(seen.texts["p"]))
        assert r"\u202e" in shown


def test_two_bits_with_a_codebook_are_explained_by_the_vectors_that_the_search_scores(tiny, tmp_path):
    """As a folder is stored by default: explanation, why-not, excerpts and thresholds agree with the results."""
    words = ["pear", "fig", "plum", "moon", "sun", "river", "stone", "bread", "oven", "train"]
    chance = np.random.default_rng(0)
    texts = [" ".join(chance.choice(words, size=340)) for _ in range(110)]
    with Retriever(tiny, IVF(tmp_path / "index", nbits=2), device="cpu") as retriever:
        retriever.add(list(enumerate(texts)), passages=False)
        assert retriever.index.statistics().tokens > 1 << 15  # from which on an index has a codebook
        query = "a pear by the river"
        first, *_, last = retriever.search(query, k=5, mode="vectors", min_mean_score=-1)
        for result in (first, last):
            explanation = retriever.explain(query, result.id)
            assert explanation.score == pytest.approx(result.score, abs=1e-3)
            assert sum(match.contribution for match in explanation.words()) == pytest.approx(result.score, abs=1e-3)
        missing = retriever.why_not(query, retriever.search(query, k=6, mode="vectors")[-1].id, k=5, mode="vectors")
        assert (missing.rank, missing.exact_rank) == (None, 6)
        kept = retriever.search(query, k=5, mode="vectors", min_mean_score=last.mean_score - 1e-4)
        assert [result.id for result in kept][-1] == last.id
        fewer = retriever.search(query, k=5, mode="vectors", min_mean_score=last.mean_score + 1e-3)
        assert last.id not in [result.id for result in fewer]
