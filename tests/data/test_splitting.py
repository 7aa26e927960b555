"""A split keeps passages, and copies of a question, on one side."""

import random
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latelier.data import TrainingSet, load_training_set, split_validation
from latelier.errors import InvalidArgumentError


def normal(text):
    """The same text, whatever its normal form, case and white space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


FORMS = [
    str,
    str.upper,
    lambda text: f" {text} ",
    lambda text: text.replace(" ", "\N{NO-BREAK SPACE}\n"),
    lambda text: unicodedata.normalize("NFD", text),
]


def drawn(rng):
    """Rows of 20 to 40 passages with one to four questions each; texts are copies but for their form."""
    rows = []
    for i in range(rng.randint(20, 40)):
        for j in range(rng.randint(1, 4)):
            question = rng.choice([*FORMS, "{} ?".format])(f"wo liegt das Haus {i} {'ab'[j // 2]}")
            passage = rng.choice(FORMS)(f"Das \N{LATIN SMALL LETTER A WITH DIAERESIS}lteste Haus Nummer {i}.")
            rows.append((question, passage))
    rng.shuffle(rows)
    questions = [question for question, _ in rows]
    if rng.random() < 0.5:  # the positive is the candidate with the highest score
        return TrainingSet(questions, [["another", passage] for _, passage in rows], [[0.1, 0.9]] * len(rows))
    return TrainingSet(questions, [[passage] for _, passage in rows])


@given(st.integers(0, 10**9), st.integers(4, 20))
def test_no_component_is_on_both_sides(seed, queries):
    whole = drawn(random.Random(seed))
    training, validation = split_validation(whole, queries, seed % 7)
    assert len(training) + len(validation) == len(whole)
    assert 0 < len(set(validation.queries)) <= queries
    known = {normal(documents[-1]) for documents in training.documents}
    assert not known & {normal(documents[-1]) for documents in validation.documents}


def test_five_questions_for_each_passage_stay_together():
    questions = [f"question {ask} on thing {i}?" for i in range(100) for ask in "abcde"]
    data = TrainingSet(questions, [[f"Passage {i}."] for i in range(100) for _ in range(5)])
    training, validation = split_validation(data)
    assert (len(training), len(validation)) == (450, 50)
    assert not set(map(tuple, training.documents)) & set(map(tuple, validation.documents))
    other = split_validation(data, seed=1)[1]
    assert other.queries != validation.queries
    assert split_validation(data, np.int64(10), np.int64(0))[1].queries == split_validation(data, 10, 0)[1].queries


NEAR = [
    ("What is the pear 7", "what is the pear 7 ?"),
    ("how do engines of aeroplanes push air down", "please, how do engines of aeroplanes push air down?"),
    ("which data base stores the harbour lights", "which database stores the harbour lights"),
    ("when was the tower of Babel built", "when was built the tower of Babel"),
]


@pytest.mark.parametrize(("one", "other"), NEAR, ids=[one for one, _ in NEAR])
def test_near_copies_of_a_question_stay_together(one, other):
    fill = [f"what is the {word} of thing {i}" for i in range(10) for word in ("colour", "weight", "price")]
    questions = [one, other, *fill]
    data = TrainingSet(questions, [[f"Passage {i}."] for i in range(len(questions))])
    together = [{one, other} <= set(part.queries) for seed in range(40) for part in split_validation(data, seed=seed)]
    assert sum(together) == 40


def test_passages_of_one_document_stay_together():
    rows = [
        {"query": f"question {i} on {part}", "positive": f"Passage {i}, {part}.", "document_id": i}
        for i in range(30)
        for part in "ab"
    ]
    passages = [[{"title": f"Paper {row['document_id']}", "text": row["positive"]}] for row in rows]
    titled = [{"query": row["query"], "positive_passages": own} for row, own in zip(rows, passages, strict=True)]
    for data in (load_training_set(rows), load_training_set(titled), load_training_set(rows, max_memory=100)):
        assert "group" not in data.to_dataset().column_names
        training, validation = split_validation(data)
        assert len(validation) == 6
        assert not set(training.groups) & set(validation.groups)


def test_questions_of_one_template_are_no_copies():
    data = TrainingSet(
        [f"what is the population of the city of town{i} in the year 2010" for i in range(100)],
        [[f"Passage {i}."] for i in range(100)],
    )
    assert len(split_validation(data)[1]) == 10


def test_where_most_questions_share_passages_questions_alone_are_split():
    # a chain: question i has the passages i and i + 1
    questions = [f"question {i}" for i in range(50) for _ in range(2)]
    data = TrainingSet(questions, [[f"Passage {i + step}."] for i in range(50) for step in (0, 1)])
    training, validation = split_validation(data)
    assert len(set(validation.queries)) == 5
    assert not set(training.queries) & set(validation.queries)


def test_one_component_larger_than_a_tenth_is_taken_alone():
    questions = [f"question {ask} on thing {i}?" for i in range(8) for ask in "abcde"]
    data = TrainingSet(questions, [[f"Passage {i}."] for i in range(8) for _ in range(5)])
    assert len(split_validation(data)[1]) == 5
    assert len(split_validation(data, 3)[1]) == 3  # no more than asked for: questions alone


def test_few_rows_leave_no_validation_and_numbers_are_checked():
    data = TrainingSet(["a", "b"], [["x"], ["y"]])
    assert [len(part) for part in split_validation(data)] == [2, 0]
    assert [len(part) for part in split_validation(TrainingSet([], []))] == [0, 0]
    assert [len(part) for part in split_validation(data, share=0.5)] == [1, 1]
    with pytest.raises(InvalidArgumentError, match="queries=-1"):
        split_validation(data, -1)
    with pytest.raises(InvalidArgumentError, match=r"share=1\.5"):
        split_validation(data, share=1.5)
