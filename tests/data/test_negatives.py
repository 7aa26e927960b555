"""Hard negatives against a ranking written out, and what is left out of it."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder

from latelier import indexes
from latelier.data import TrainingSet, mine_hard_negatives, order_by_neighbours, teacher_scores
from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError, UnknownIdError
from latelier.models import ColBERT


class Compass:
    """A model whose texts are angles in degrees: near ones are similar."""

    def encode_query(self, texts, packed=True, **_):
        angles = torch.tensor([float(text) for text in texts]).deg2rad()
        vectors = torch.stack([angles.cos(), angles.sin()], dim=1)
        return TokenEmbeddings(vectors, range(len(texts) + 1))

    encode_document = encode_query


TEXTS = {f"d{angle}": str(angle) for angle in (0, 10, 20, 40, 70, 100)}


@pytest.fixture
def index():
    made = indexes.Flat()
    made.add(list(TEXTS), Compass().encode_document(TEXTS.values()), texts=list(TEXTS.values()))
    return made


def mined(index, judgements, **options):
    queries = {"q": "2", "r": "69"}
    return [list(row) for row in mine_hard_negatives(Compass(), index, queries, judgements, **options).documents]


def test_the_nearest_that_nobody_judged(index):
    assert mined(index, {"q": {"d10": 1}}, negatives=3) == [["10", "0", "20", "40"]]
    assert mined(index, {"q": {"d10": 1}, "r": {"d70": 2}}, batch_size=1) == [["10", "0"], ["70", "40"]]


def test_other_positives_are_no_negatives_and_judged_irrelevant_ones_are(index):
    assert mined(index, {"q": {"d10": 1, "d0": 1}}, negatives=2) == [["10", "20", "40"], ["0", "20", "40"]]
    assert mined(index, {"q": {"d10": 1, "d0": 0}}, negatives=2) == [["10", "0", "20"]]
    assert mined(index, {"q": {"d10": 0}}) == []


def test_copies_of_a_positive_are_no_negatives_whatever_their_id_and_white_space(index):
    copies = {f"copy {i}": f" 10{' ' * i}" for i in range(70)}
    index.add(list(copies), Compass().encode_document(copies.values()), texts=list(copies.values()))
    assert mined(index, {"q": {"d10": 1}}, negatives=3, ranks=(1, 3)) == [["10", "0", "20", "40"]]
    assert mined(index, {"q": {"copy 3": 1, "d0": 1}}, negatives=2) == [[" 10   ", "20", "40"], ["0", "20", "40"]]
    assert mined(index, {"q": {"d10": 1, "copy 1": 0}}) == [["10", "0"]]
    assert mined(index, {"q": {"d10": 1}}, documents={**TEXTS, **copies}) == [["10", "0"]]
    # "\N{FULLWIDTH DIGIT ONE}0" is "10" in normal form
    index.add("wide", Compass().encode_document(["10"]), texts="\N{FULLWIDTH DIGIT ONE}0")
    assert "\N{FULLWIDTH DIGIT ONE}0" not in mined(index, {"q": {"d0": 1, "d10": 1}}, negatives=4)[0]


def test_a_window_of_ranks(index):
    assert mined(index, {"q": {"d0": 1}}, ranks=(2, 3), negatives=2) == [["0", "20", "40"]]
    assert mined(index, {"q": {"d0": 1}}, ranks=(5, 9)) == [["0", "100"]]
    drawn = {tuple(mined(index, {"q": {"d0": 1}}, ranks=(1, 4), seed=seed)[0]) for seed in range(20)}
    assert drawn == {("0", "10"), ("0", "20"), ("0", "40"), ("0", "70")}
    assert mined(index, {"q": {"d0": 1}}, seed=np.int64(3)) == mined(index, {"q": {"d0": 1}}, seed=3)


def test_a_margin_below_the_positive(index):
    # cos 18 = 0.951, 90% of which is 0.856: more than cos 38, less than cos 8.
    assert mined(index, {"q": {"d20": 1}}) == [["20", "0"]]
    assert mined(index, {"q": {"d20": 1}}, margin=0.1) == [["20", "40"]]
    # The positive is not among the first two: its score is computed.
    assert mined(index, {"q": {"d70": 1}}, ranks=(1, 5), margin=0.0) == [["70", "100"]]
    assert mined(index, {"q": {"d70": 1}}, ranks=(1, 1), margin=0.0) == []


def test_texts_from_elsewhere():
    index = indexes.Flat()
    index.add(list(TEXTS), Compass().encode_document(TEXTS.values()))
    assert mined(index, {"q": {"d10": 1}}, documents=TEXTS) == [["10", "0"]]
    with pytest.raises(InvalidArgumentError, match=r"document 'd10' has no text; give documents=\{id"):
        mined(index, {"q": {"d10": 1}})


def test_unknown_ids_are_named(index):
    with pytest.raises(InvalidArgumentError, match="query 'x' has relevance judgements, but no text"):
        mined(index, {"x": {"d0": 1}})
    with pytest.raises(UnknownIdError, match="nowhere"):
        mined(index, {"q": {"nowhere": 1}})


def test_a_late_interaction_teacher(shallow):
    teacher = ColBERT.from_dense(shallow, device="cpu")
    examples = TrainingSet(["where is Rome?", "rust?"], [["On the Tiber.", "A novel."], ["A novel.", "Iron oxide."]])
    scored = teacher_scores(teacher, examples)
    for query, documents, scores in zip(examples.queries, examples.documents, scored.scores, strict=True):
        expected = teacher.scores([query] * 2, list(documents), tqdm_bar=False)
        assert scores == pytest.approx(expected.tolist(), abs=1e-4)
    assert scored.documents == examples.documents
    assert teacher_scores(teacher, TrainingSet([], [])).scores == []


def test_a_cross_encoder_teacher(tiny):
    teacher = CrossEncoder(tiny, num_labels=1, device="cpu")
    examples = TrainingSet(["where is Rome?"], [["On the Tiber.", "A novel.", "Iron oxide."]])
    expected = teacher.predict([("where is Rome?", text) for text in examples.documents[0]])
    assert teacher_scores(teacher, examples).scores == [pytest.approx(expected.tolist(), abs=1e-6)]


@pytest.mark.parametrize(
    ("predicted", "message"),
    [
        (np.ones((3, 2)), r"returned shape \(3, 2\) for 3 pairs; expected one number for each\. .* NLI"),
        ([1.0], r"the teacher's predict returned shape \(1,\) for 3 pairs; expected one number for each"),
    ],
)
def test_predictions_that_are_no_scores_are_refused(predicted, message):
    class Teacher:
        def predict(self, pairs, **options):
            return predicted

    with pytest.raises(InvalidArgumentError, match=message):
        teacher_scores(Teacher(), TrainingSet(["q"], [["x", "y", "z"]]))


def mined_hard_batches(negatives):
    """Row i with the positive ``Pi`` and the positives of other rows, or texts that are nobody's."""
    return TrainingSet(
        [f"q{i}" for i in range(len(negatives))],
        [[f"P{i}", *(f"P{j}" for j in others)] for i, others in enumerate(negatives)],
    )


@given(st.data(), st.integers(0, 4), st.integers(0, 2), st.integers(1, 3), st.integers(0, 99))
def test_every_row_comes_once_a_pass_with_negatives_of_its_own(data, neighbours, negatives, passes, seed):
    rows = data.draw(st.integers(1, 12))
    others = [
        data.draw(st.lists(st.integers(0, 15).filter(lambda j, i=i: j != i), min_size=3, max_size=3))
        for i in range(rows)
    ]
    given_rows = mined_hard_batches(others)
    ordered = order_by_neighbours(given_rows, neighbours, negatives=negatives, passes=passes, seed=seed)
    assert Counter(ordered.queries) == dict.fromkeys(given_rows.queries, passes)
    for start in range(0, len(ordered), rows):
        assert set(ordered.queries[start : start + rows]) == set(given_rows.queries)
    for query, documents in zip(ordered.queries, ordered.documents, strict=True):
        positive, *own = given_rows.documents[int(query[1:])]
        assert documents[0] == positive
        assert len(documents) == 1 + negatives
        assert not Counter(documents[1:]) - Counter(own)


def test_neighbours_follow_hardest_first_and_passes_differ():
    # Each row of a group of four is hard for the others, the next one most.
    groups = mined_hard_batches([[4 * (i // 4) + (i + step) % 4 for step in (1, 2, 3)] for i in range(40)])
    ordered = order_by_neighbours(groups, neighbours=3, passes=2)
    numbers = [int(query[1:]) for query in ordered.queries]
    for start in range(0, 80, 4):
        first = numbers[start]
        assert numbers[start : start + 4] == [4 * (first // 4) + (first + step) % 4 for step in range(4)]
    assert numbers[:40] != numbers[40:]
    alone = order_by_neighbours(groups, neighbours=0)
    assert sum(a // 4 == b // 4 for a, b in pairwise(numbers[:40])) == 30
    rows = [int(query[1:]) for query in alone.queries]
    assert sum(a // 4 == b // 4 for a, b in pairwise(rows)) < 10
    assert order_by_neighbours(groups, neighbours=3, passes=2, seed=np.int64(0)) == ordered
