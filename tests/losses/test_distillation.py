"""`Distillation` against a loop over single candidates, and what it refuses and warns of."""

import warnings

import numpy as np
import pytest
import torch
from naive_losses import Lexicon, embed, features, naive_distillation, score_each, vocabulary_texts

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.losses import Distillation
from latelier.losses.distillation import relative_rounding
from latelier.models import ColBERT

pytestmark = pytest.mark.processor

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-5, torch.bfloat16: 2e-2}
QUERIES = ["are fruits healthy?", "how do planes fly?"]
DOCUMENTS = [
    ["Fruits are good (very good!) for health.", "Fruits...", "Fruits are sold by weight, or by the piece."],
    ["Planes are made of metal, mostly.", "Wings push air down; the air pushes back.", "Birds fly."],
]
ALL_DOCUMENTS = [text for rows in DOCUMENTS for text in rows]
LABELS = [[0.9, 0.1, 0.4], [0.2, 0.8, 0.5]]


def small_batch(n, model, b=3, seed=0):
    """Random texts of a lexicon: query features, features of each column, loop scores, labels."""
    queries = vocabulary_texts(b, seed, lowest=4)
    documents = [vocabulary_texts(n, seed + 10 + i) for i in range(b)]
    columns = [features([documents[i][j] for i in range(b)], "document") for j in range(n)]
    scores = [
        score_each(model.one(query, "query"), [model.one(document, "document") for document in candidates])
        for query, candidates in zip(queries, documents, strict=True)
    ]
    labels = torch.rand(b, n, generator=torch.Generator().manual_seed(seed)).tolist()
    return [features(queries, "query"), *columns], scores, labels


@pytest.mark.filterwarnings("ignore:each query has")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "raw"])
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_value_and_gradient_equal_the_loop(n, mean, normalize, dtype):
    model = Lexicon(dtype=dtype)
    batch, scores, labels = small_batch(n, model)
    loss = Distillation(model, size_average=mean, normalize_scores=normalize)(batch, torch.tensor(labels))
    expected = naive_distillation(scores, labels, normalize, mean)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    loss_gradient, expected_gradient = (torch.autograd.grad(x, model.table.weight)[0] for x in (loss, expected))
    torch.testing.assert_close(loss_gradient, expected_gradient, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert (expected_gradient.abs().max() > 1e-3) == (n == 3 or (n == 2 and not normalize))


@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "raw"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-5), (torch.bfloat16, 0.05)])
def test_a_real_model_gives_the_value_of_one_text_at_a_time(colbert, dtype, tolerance, normalize):
    colbert.to(dtype)

    scores = [
        score_each(embed(colbert, query, True), [embed(colbert, document, False) for document in candidates])
        for query, candidates in zip(QUERIES, DOCUMENTS, strict=True)
    ]
    flat = colbert.tokenize(ALL_DOCUMENTS, is_query=False)
    loss = Distillation(colbert, normalize_scores=normalize)(
        [colbert.tokenize(QUERIES, is_query=True), flat], torch.tensor(LABELS)
    )
    expected = naive_distillation(scores, LABELS, normalize)
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance, abs=tolerance)
    found, wanted = (torch.autograd.grad(x, colbert[1].linear.weight)[0].double() for x in (loss, expected))
    assert wanted.abs().max() > 1e-3
    assert (found - wanted).norm() <= rounding_of_a_gradient(scores, dtype, normalize) * wanted.norm()


def rounding_of_a_gradient(scores, dtype, normalize):
    """How far apart rounding alone may set two gradients, in the norm, relative to it.

    Two layers, there and back, round some forty times one after the other; that adds up like a random walk, on both
    sides of a comparison: ``2 sqrt(40) eps``. Scores are off by `relative_rounding`, which counts in proportion to the
    range that they are stretched from. Single elements may be off by several times as much; which ones depends on the
    order in which a processor adds.
    """
    rows = torch.tensor([[value.item() for value in row] for row in scores])
    unit = (rows.amax(1) - rows.amin(1)).min() if normalize else 1.0
    of_scores = relative_rounding(torch.float32, dtype, 16, 12) * rows.abs().max() / unit
    return 2 * 40**0.5 * torch.finfo(dtype).eps + of_scores


def test_the_loss_is_zero_where_the_student_agrees_with_the_teacher_up_to_a_constant():
    model = Lexicon()
    batch, scores, _ = small_batch(3, model)
    labels = torch.tensor([[value.item() for value in row] for row in scores])
    assert Distillation(model, normalize_scores=False)(batch, labels + 5).item() == pytest.approx(0, abs=1e-6)
    stretched = (labels - labels.amin(1, True)) / (labels.amax(1, True) - labels.amin(1, True))
    assert Distillation(model)(batch, stretched).item() == pytest.approx(0, abs=1e-6)
    assert Distillation(model)(batch, stretched.flip(1)).item() > 1e-3


def test_order_of_the_candidates_does_not_matter_as_long_as_labels_follow():
    model = Lexicon()
    batch, _, labels = small_batch(3, model)
    order = [2, 0, 1]
    shuffled = [batch[0], *[batch[1 + i] for i in order]]
    loss = Distillation(model)
    first = loss(batch, torch.tensor(labels))
    assert loss(shuffled, torch.tensor(labels)[:, order]).item() == pytest.approx(first.item(), abs=1e-6)
    assert abs(loss(shuffled, torch.tensor(labels)).item() - first.item()) > 1e-3


def test_labels_may_be_integers_or_lists():
    model = Lexicon()
    batch, scores, _ = small_batch(3, model)
    labels = [[1, 0, 2], [0, 0, 1], [3, 1, 0]]
    expected = naive_distillation(scores, labels).item()
    assert Distillation(model)(batch, labels).item() == pytest.approx(expected, rel=1e-5)
    assert Distillation(model)(batch, torch.tensor(labels)).item() == pytest.approx(expected, rel=1e-5)
    rows = [torch.tensor(labels[0]), np.array(labels[1]), labels[2]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Distillation(model)(batch, rows).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, r"received no labels; expected the teacher's scores of shape \(3, 2\).*column 'scores'"),
        ({"a": 1}, r"received {'a': 1} \(dict\) as labels; expected numbers"),
        ("high", r"received 'high' \(str\) as labels; expected numbers"),
        (torch.ones(3, 2) * 1j, "received complex labels; expected real numbers"),
        (torch.ones(3), r"received labels of shape \(3,\); expected the teacher's scores of shape \(3, 2\)"),
        (torch.ones(3, 3), r"received labels of shape \(3, 3\); expected .* \(3, 2\)"),
        (torch.ones(2, 3), r"received labels of shape \(2, 3\); expected .* \(3, 2\)"),
        (torch.tensor([[1, 2], [3, float("nan")], [0, 1]]), r"labels hold NaN or infinity: \[nan\]"),
        (torch.tensor([[1, 2], [3, 4], [-float("inf"), 1]]), r"labels hold NaN or infinity: \[-inf\]"),
    ],
)
def test_labels_of_another_shape_or_without_a_number_are_refused(labels, message):
    model = Lexicon()
    batch, _, _ = small_batch(2, model)
    with pytest.raises(InvalidArgumentError, match=message):
        Distillation(model, normalize_scores=False)(batch, labels)


def warnings_of(loss, batch, labels, calls=3):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            loss(batch, torch.tensor(labels))
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("n", "normalize", "expected"),
    [
        (1, True, ["one candidate"]),
        (1, False, ["one candidate"]),
        (2, True, ["two candidates"]),
        (2, False, []),
        (3, True, []),
    ],
)
def test_a_loss_without_gradient_says_so_once_per_object(n, normalize, expected):
    model = Lexicon()
    batch, _, labels = small_batch(n, model)
    for loss in (Distillation(model, normalize_scores=normalize), Distillation(model, normalize_scores=normalize)):
        messages = warnings_of(loss, batch, labels)
        assert [word for word in ("one candidate", "two candidates") for m in messages if word in m] == expected
        assert len(messages) == len(expected)


def test_the_warning_of_two_candidates_says_what_to_do():
    model = Lexicon()
    batch, _, labels = small_batch(2, model)
    with pytest.warns(UserWarning, match=r"no gradient. Use Distillation\(..., normalize_scores=False\), or give") as w:
        Distillation(model)(batch, torch.tensor(labels))
    assert w[0].filename == __file__


def test_features_of_unknown_side_stop_training(colbert):
    batch = [dict(colbert.tokenize(QUERIES)), dict(colbert.tokenize(DOCUMENTS[0][:2], is_query=False))]
    for column in batch:
        del column["task"]
    with pytest.raises(LatelierError, match=r"do not say whether they are queries.*MultiVectorEncoderTrainer"):
        Distillation(colbert.train())(batch, torch.ones(2, 1))


def test_a_model_without_markers_needs_no_side(shallow):
    model = ColBERT.from_dense(shallow, device="cpu").train()
    batch = [dict(model.tokenize(QUERIES)), dict(model.tokenize(ALL_DOCUMENTS, is_query=False))]
    loss = Distillation(model)
    torch.manual_seed(1)  # dropout is on
    expected = loss(batch, LABELS).item()
    for column in batch:
        del column["task"]
    torch.manual_seed(1)
    assert loss(batch, LABELS).item() == pytest.approx(expected, abs=1e-6)


def test_settings_for_the_model_card():
    loss = Distillation(Lexicon(), size_average=False)
    assert loss.get_config_dict() == {
        "score_metric": "colbert_kd_scores",
        "size_average": False,
        "normalize_scores": True,
    }
    assert loss.citation.strip().startswith("@inproceedings{santhanam-etal-2022-colbertv2,")
