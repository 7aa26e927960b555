"""Explanations: the parts of a score sum to the score, and pieces of words are put together again."""

import numpy as np
import pytest

from latelier.errors import LatelierError, UnknownIdError
from latelier.retrieve import Retriever
from latelier.retrieve.explanation import explain_alignment
from latelier.scores.alignment import Alignment


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


def join_begins(pieces):
    return "".join(pieces).replace("Ġ", " ").replace("▁", " ")


def join_wordpiece(pieces):
    return " ".join(pieces).replace(" ##", "")


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
    alignment = Alignment(np.zeros(len(query), dtype="int64"), np.arange(len(query), dtype="float32"))
    explanation = explain_alignment("d", "q", alignment, (query, document), ["<s>", "</s>", "[CLS]"], join)
    assert [match.word for match in explanation.words()] == expected
    assert explanation.score == sum(range(len(query)))


def test_a_word_is_matched_with_what_adds_most_to_it():
    alignment = Alignment(np.array([0, 1, 1]), np.array([0.5, 0.25, 0.375], dtype="float32"))
    pieces = ["a", "##b", "##c"], ["x", "y"]
    (match,) = explain_alignment("d", "q", alignment, pieces, [], lambda p: "".join(p).replace("##", "")).words()
    assert tuple(match) == ("abc", "y", 1.125)


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
