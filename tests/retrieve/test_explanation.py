"""Explanations: the parts of a score sum to the score, and pieces of words are put together again."""

import numpy as np
import pytest

from latelier.errors import LatelierError, UnknownIdError
from latelier.models import ColBERT
from latelier.retrieve import Retriever
from latelier.retrieve.explaining import TokenizedText, explain_alignment, group_words
from latelier.scores.topk import Alignment


@pytest.mark.parametrize("query", ["unhealthy fruit", "capital of Germany", "what is the distance to the moon?"])
def test_the_parts_sum_to_the_score_of_the_search(shared_retriever, query):
    for result in shared_retriever.search(query):
        explanation = shared_retriever.explain(query, result.id)
        assert explanation.score == pytest.approx(result.score, abs=1e-4)
        assert sum(match.contribution for match in explanation.words()) == pytest.approx(result.score, abs=1e-4)
        assert [match.token for match in explanation.tokens] == shared_retriever.model.tokens(query, is_query=True)


def test_each_token_is_matched_with_the_most_similar_one(shared_retriever):
    explanation = shared_retriever.explain("unhealthy fruit", "fruit")
    query = np.asarray(shared_retriever.model.encode_query("unhealthy fruit"))
    document = np.asarray(shared_retriever.model.encode_document("Bananas are healthy."))
    pieces = shared_retriever.model.tokens("Bananas are healthy.", is_query=False)
    for row, match in zip(query, explanation.tokens, strict=True):
        similarities = [float(row @ token) for token in document]
        assert match.position == int(np.argmax(similarities))
        assert match.matched == pieces[match.position]
        assert match.similarity == pytest.approx(max(similarities), abs=1e-5)


def test_words_are_whole(shared_retriever):
    words = shared_retriever.explain("unhealthy fruit", "fruit").words()
    assert [(match.word, match.matched) for match in words] == [
        ("[CLS]", words[0].matched),
        ("unhealthy", "healthy"),
        ("fruit", "bananas"),
        ("[SEP]", words[3].matched),
    ]


def test_prints_as_a_table_that_adds_up(shared_retriever):
    explanation = shared_retriever.explain("unhealthy fruit", "fruit")
    title, *rows = str(explanation).splitlines()
    assert title == f"'fruit' scores {explanation.score:.3f} for 'unhealthy fruit':"
    assert [row.split()[0] for row in rows] == ["unhealthy", "fruit", "(special"]
    assert sum(float(row.split()[-1]) for row in rows) == pytest.approx(explanation.score, abs=0.002)


@pytest.mark.parametrize("query", ["unhealthy fruit", "what is the distance to the moon?"])
def test_every_similarity_is_in_the_matrix(shared_retriever, query):
    explanation = shared_retriever.explain(query, "moon")
    rows = np.asarray(shared_retriever.model.encode_query(query))
    columns = np.asarray(shared_retriever.model.encode_document("The moon is far away from the earth."))
    assert explanation.similarities.shape == (len(explanation.tokens), len(explanation.document_tokens))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            assert explanation.similarities[i, j] == pytest.approx(float(row @ column), abs=1e-5)


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


def join_begins(pieces):
    return "".join(pieces).replace("Ġ", " ").replace("▁", " ")


def join_wordpiece(pieces):
    return " ".join(pieces).replace(" ##", "")


def tokenized(tokens, text="", ranges=None):
    return TokenizedText(text, tokens, ranges or [None] * len(tokens))


def explain(query, document, matrix, special, join):
    """The explanation of a matrix of similarities; texts are given by their tokens."""
    matrix = np.array(matrix, dtype="float32")
    return explain_alignment(
        "d", Alignment(matrix.argmax(1), matrix.max(1), matrix), tokenized(query), tokenized(document), special, join
    )


@pytest.mark.parametrize(
    ("query", "document", "join", "expected"),
    [
        (["<s>", "Ġdig", "est", "</s>"], ["<s>", "Ġthe", "Ġa", "</s>"], join_begins, ["<s>", "digest", "</s>"]),
        (["▁dig", "est"], ["▁the", "▁dig"], join_begins, ["digest"]),
        (["[CLS]", "dig", "##est", "of"], ["[CLS]", "dig", "a", "b"], join_wordpiece, ["[CLS]", "digest", "of"]),
        (["##est", "dig"], ["dig", "a"], join_wordpiece, ["est", "dig"]),
    ],
)
def test_pieces_of_three_kinds_of_tokenizers_become_words(query, document, join, expected):
    matrix = np.eye(len(query), len(document)) + np.arange(len(query))[:, None]
    explanation = explain(query, document, matrix, ["<s>", "</s>", "[CLS]"], join)
    assert [match.word for match in explanation.words()] == expected
    assert explanation.score == sum(range(1, len(query) + 1))


def test_a_word_is_matched_with_what_adds_most_to_it():
    matrix = [[0.5, 0.125], [0.0, 0.25], [0.25, 0.375]]
    join = "".join
    (match,) = explain(["▁a", "b", "c"], ["▁x", "▁y"], matrix, [], lambda p: join(p).replace("▁", "")).words()
    assert tuple(match) == ("abc", "y", 1.125)


def test_characters_of_scripts_without_spaces_are_words_of_their_own():
    text = TokenizedText("東京は big", ["▁東", "京", "は", "▁b", "ig"], [(0, 1), (1, 2), (2, 3), (4, 5), (5, 7)])
    words = group_words(text, [], True, join_begins)
    assert [(word.text, word.range) for word in words] == [
        ("東", (0, 1)), ("京", (1, 2)), ("は", (2, 3)), ("big", (4, 7)),
    ]  # fmt: skip
    byte_by_byte = TokenizedText("京", ["Ġa", "b"], [(0, 1), (0, 1)])
    assert [word.positions for word in group_words(byte_by_byte, [], True, join_begins)] == [(0, 1)]


def test_what_cannot_be_explained(retriever, model):
    with pytest.raises(UnknownIdError, match="absent"):
        retriever.explain("fruit", "absent")
    retriever.index.add("vectors only", model.encode_document("Bananas."))
    with pytest.raises(LatelierError, match="'vectors only' was stored without its text"):
        retriever.explain("fruit", "vectors only")
    retriever.index.add("pooled", model.encode_document("Bananas are healthy.")[:3], texts="Bananas are healthy.")
    with pytest.raises(LatelierError, match=r"'pooled' has 3 rows, but its text has 6 tokens"):
        retriever.explain("fruit", "pooled")
    assert Retriever(model).index.dim is None
