"""`Distillation` against a loop over single candidates, and what it refuses and warns of."""

import warnings

import numpy as np
import pytest
import torch
from naive_losses import Lexicon, embed, features, naive_distillation, score_each, vocabulary_texts
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMarginMSELoss

from latelier.errors import InvalidArgumentError
from latelier.losses import Distillation, MarginMSE
from latelier.losses.distillation import relative_rounding, row_weights

pytestmark = [pytest.mark.processor, pytest.mark.filterwarnings("ignore:all candidates of a query")]

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-5, torch.bfloat16: 2e-2}
QUERIES = ["are fruits healthy?", "how do planes fly?"]

DOCUMENTS = [
    ["Fruits are good (very good!) for health.", "Fruits...", "Fruits are sold by weight, or by the piece."],
    ["Planes are made of metal, mostly.", "Wings push air down; the air pushes back.", "Birds fly."],
]

ALL_DOCUMENTS = [text for rows in DOCUMENTS for text in rows]
LABELS = [[0.9, 0.1, 0.4], [0.2, 0.8, 0.5]]


def small_batch(n, model, b=3, seed=0):
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
    """How far apart rounding alone may set two gradients, in the norm, relative to it."""
    rows = torch.tensor([[value.item() for value in row] for row in scores])
    unit = (rows.amax(1) - rows.amin(1)).min() if normalize else 1.0
    of_scores = relative_rounding(torch.float32, dtype, 16, 12) * rows.abs().max() / unit
    return 2 * 40**0.5 * torch.finfo(dtype).eps + of_scores


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
        (torch.ones(3, 3), r"received labels of shape \(3, 3\); expected .* \(3, 2\)"),
        (torch.tensor([[1, 2], [3, float("nan")], [0, 1]]), r"labels hold NaN or infinity: \[nan\]"),
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


def naive(scores, labels, mean):
    terms = []
    for row, teacher in zip(scores, labels, strict=True):
        for i in range(1, len(row)):
            terms.append(((row[0] - row[i]) - (teacher[0] - teacher[i])) ** 2)
    return sum(terms) / len(terms) if mean else sum(terms)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("form", ["scores", "margins"])
def test_value_and_gradient_equal_the_loop_margin_mse(form, n, mean, dtype):
    model = Lexicon(dtype=dtype)
    batch, scores, labels = small_batch(n, model)
    given = torch.tensor(labels)
    given = given if form == "scores" else given[:, :1] - given[:, 1:]
    loss, expected = MarginMSE(model, size_average=mean)(batch, given), naive(scores, labels, mean)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    gradient, wanted = (torch.autograd.grad(x, model.table.weight)[0].float() for x in (loss, expected))
    scale = wanted.abs().max()
    assert scale > 1e-2
    torch.testing.assert_close(gradient / scale, wanted / scale, rtol=0, atol=TOLERANCE[dtype])


def test_a_real_model_gets_the_value_of_sentence_transformers(colbert):
    positives, negatives = ["Fruits are good.", "Wings push air down."], ["Fruits rot (fast)!", "Planes are metal."]
    columns = [QUERIES, positives, negatives]
    batch = [colbert.tokenize(column, is_query=column is QUERIES) for column in columns]
    labels = torch.tensor([[5.0, 2.0], [3.0, 1.5]])
    expected = MultiVectorMarginMSELoss(colbert)(batch, labels)
    assert MarginMSE(colbert)(batch, labels).item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize(
    ("n", "labels", "message"),
    [
        (1, torch.ones(3, 1), "each query has one document; expected a positive and at least one negative"),
        (3, None, r"received no labels; expected the teacher's scores of shape \(3, 3\)"),
        (2, torch.tensor([1.0, float("nan"), 2.0]), r"labels hold NaN or infinity: \[nan\]"),
    ],
)
def test_labels_that_give_no_margins_are_refused(n, labels, message):
    model = Lexicon()
    batch, _, _ = small_batch(n, model)
    with pytest.raises(InvalidArgumentError, match=message):
        MarginMSE(model)(batch, labels)


DIM, TOKENS = 16, 4
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
LABELS_NORMALIZATION = [0.9, 0.1, 0.4, 0.7]


def of_scores(scores, temperature=1.0, mean=True, labels=LABELS_NORMALIZATION):
    scores = scores.detach().requires_grad_()
    columns = [features([[4 + j, 9]] * len(scores), "document") for j in range(scores.shape[1])]
    queries = features([[5, 6, 7, 8][:TOKENS]] * len(scores), "query")
    loss = Distillation(Lexicon(dim=DIM), lambda *_, **__: scores, mean, temperature=temperature)
    value = loss([queries, *columns], torch.tensor([labels] * len(scores)))
    return value, torch.autograd.grad(value, scores)[0]


def step(value, ulps, dtype):
    for _ in range(ulps):
        value = torch.nextafter(value, torch.full_like(value, torch.inf))
    return value


@pytest.mark.parametrize("size", [-30.0, -1e-3, 0.1, 1.0, 1.999, 31.0, 1e4])
@pytest.mark.parametrize(
    ("dtype", "ulps"),
    [(dtype, ulps) for dtype in DTYPES for ulps in (0, 1, 2, 4, 16) if ulps < 2 or dtype not in DTYPES[2:]],
    ids=str,
)
def test_scores_that_are_equal_up_to_rounding_contribute_nothing(dtype, ulps, size):
    ordinary = torch.tensor([10, 12, 11, 14.5], dtype=dtype)
    alone, expected = of_scores(ordinary[None], mean=False)
    for position in range(4):
        row = torch.full((4,), size, dtype=dtype)
        row[position] = step(row[position], ulps, dtype)
        value, gradient = of_scores(row[None])
        assert value.item() == 0
        assert (gradient == 0).all()
        both, gradients = of_scores(torch.stack([ordinary, row]), mean=False)
        assert both.item() == pytest.approx(alone.item(), rel=1e-6) != 0
        assert torch.equal(gradients, torch.stack([expected[0], torch.zeros(4, dtype=dtype)]))


def test_the_loss_rises_from_zero_to_the_published_one_without_a_jump():
    shape = torch.tensor([0.0, 1.0, 0.3, 0.0], dtype=torch.float64)
    ranges = torch.linspace(0, 2 * 2**-8, 400, dtype=torch.float64)
    values = torch.stack([of_scores(1 + r * shape[None])[0] for r in ranges]).detach()
    published = naive_distillation([list(1 + 0.1 * shape)], [LABELS_NORMALIZATION]).item()
    assert values[0] == 0
    assert values[-1].item() == pytest.approx(published, rel=1e-5)
    steps = values.diff()
    assert (steps > -1e-6).all()
    assert steps.max() < 0.011 * published  # 200 equal steps, and what is added to the denominator


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_scores_without_a_number_are_not_passed_over(bad):
    value, _ = of_scores(torch.tensor([[1.0, 2.0, bad, 3.0]]))
    assert not value.isfinite()
    assert row_weights(torch.tensor([[bad, bad], [1.0, 2.0]]), 1e-3).isnan().tolist() == [True, False]
