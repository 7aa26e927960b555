"""Scores that are equal up to rounding teach nothing under `Distillation`, and scores that nearly are, no more."""

import contextlib
import warnings

import pytest
import torch
from naive_losses import Lexicon, features, naive_distillation, score_each
from torch import nn

from latelier.losses import Distillation
from latelier.losses.distillation import computing_dtype, min_max_normalize, relative_rounding, row_weights

DIM, TOKENS = 16, 4
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
LABELS = [0.9, 0.1, 0.4, 0.7]
pytestmark = pytest.mark.filterwarnings("ignore:all candidates of a query")


def of_scores(scores, temperature=1.0, mean=True, labels=LABELS):
    """The loss of given scores ``(b, 4)``, through the public class, and its gradient at them."""
    scores = scores.detach().requires_grad_()
    columns = [features([[4 + j, 9]] * len(scores), "document") for j in range(scores.shape[1])]
    queries = features([[5, 6, 7, 8][:TOKENS]] * len(scores), "query")
    loss = Distillation(Lexicon(dim=DIM), lambda *_, **__: scores, mean, temperature=temperature)
    value = loss([queries, *columns], torch.tensor([labels] * len(scores)))
    return value, torch.autograd.grad(value, scores)[0]


def full_range(scores, dtype):
    """The range of scores from which on a row counts in full."""
    rounding = relative_rounding(dtype, torch.float32, DIM, TOKENS)
    return max(2**-8, 2 * rounding) * scores.abs().amax(dim=1).double()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ordinary_scores_give_the_published_value_and_gradient(dtype, temperature):
    scores = (10 + 4 * torch.rand(5, 4, dtype=torch.float64)).to(dtype)
    value, gradient = of_scores(scores, temperature)
    exact = scores.double().requires_grad_()
    soft = nn.functional.log_softmax(stretched(exact) / temperature, dim=1)
    teacher = nn.functional.log_softmax(torch.tensor([LABELS] * 5).double() / temperature, dim=1)
    expected = (teacher.exp() * (teacher - soft)).sum() * temperature**2 / 5
    # Some twenty roundings lead to a value, in float32 or wider; the gradient is rounded to the scores' own numbers.
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    assert value.item() == pytest.approx(expected.item(), rel=100 * eps + 1e-7, abs=100 * eps)
    (expected_gradient,) = torch.autograd.grad(expected, exact)
    bound = 4 * temperature / 5 * (torch.finfo(dtype).eps + 20 * eps)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=0, atol=bound + 1e-7)
    assert gradient.abs().max() > 1e-3


def stretched(scores):
    low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
    return (scores - low) / (high - low + 1e-8)


def test_the_gradient_is_the_derivative():
    scores = (10 + 4 * torch.rand(3, 4, dtype=torch.float64)).requires_grad_()
    columns = [features([[4 + j]] * 3, "document") for j in range(4)]

    def loss(scores):
        metric = Distillation(Lexicon(dim=DIM), lambda *_, **__: scores)
        return metric([features([[5, 6]] * 3, "query"), *columns], torch.tensor([LABELS] * 3, dtype=torch.float64))

    assert torch.autograd.gradcheck(loss, scores)


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


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_equal_scores_of_any_size_contribute_nothing(size):
    value, gradient = of_scores(torch.full((1, 4), size))
    assert value.item() == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_row_pulls_harder_than_the_bound_however_near_its_scores(dtype, temperature):
    """`4 T / full`, as the module derives, for ranges from a last digit to as large as the scores."""
    shape = torch.tensor([0.0, 1.0, 0.3, 0.0], dtype=torch.float64)
    for size in (1.0, 12.7, 31.0):
        shares = torch.logspace(-12, 0, 200, dtype=torch.float64)[:, None]
        scores = (size * (1 + shares * shape)).to(dtype)
        _, gradients = of_scores(scores, temperature, mean=False)
        norms = gradients.double().abs().sum(dim=1)
        assert gradients.isfinite().all()
        assert (norms <= 4 * temperature / full_range(scores, dtype) * (1 + 4 * torch.finfo(dtype).eps)).all()
        assert (norms > 0).any()


def test_the_loss_rises_from_zero_to_the_published_one_without_a_jump():
    shape = torch.tensor([0.0, 1.0, 0.3, 0.0], dtype=torch.float64)
    ranges = torch.linspace(0, 2 * 2**-8, 400, dtype=torch.float64)
    values = torch.stack([of_scores(1 + r * shape[None])[0] for r in ranges]).detach()
    published = naive_distillation([list(1 + 0.1 * shape)], [LABELS]).item()
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


@pytest.mark.parametrize("kernels", ["generic", None])
def test_texts_whose_scored_tokens_are_equal_score_apart_by_rounding_alone(kernels, monkeypatch):
    """Token ids differ, vectors do not: only their places in the products do."""
    if kernels:
        monkeypatch.setenv("LATELIER_KERNELS", kernels)
    model = Lexicon(dim=128)
    skipped = [[1], [2], [3], [1, 1], [1, 2], [2, 3, 1], [3, 3, 3], [2, 1, 2, 1], [1] * 9]
    for body in range(4, 26):
        columns = [features([[*skip, body, body + 2, body + 4]], "document") for skip in skipped]
        queries = features([[body, 9, 12, 25, 28, 29, 11]], "query")
        value = Distillation(model)([queries, *columns], [list(range(9))])
        value.backward()
        assert value.item() == 0
        assert not model.table.weight.grad.any()


def test_candidates_of_one_text_contribute_nothing():
    model = Lexicon()
    query, text = features([[7]], "query"), features([[5, 6]], "document")
    loss = Distillation(model)([query, text, text, text], torch.tensor([[0.5, 0.2, 0.5]]))
    loss.backward()
    assert loss.item() == 0
    assert (model.table.weight.grad == 0).all()


REAL_LABELS = [[0.9, 0.1, 0.4], [0.2, 0.8, 0.5], [0.3, 0.6, 0.1]]
REAL_QUERIES = ["are fruits healthy?", "how do planes fly?", "where does sand come from?"]
REAL_DOCUMENTS = [
    ["Fruits are good (very good!) for health.", "Fruits...", "Fruits are sold by weight, or by the piece."],
    ["Sand is what is left of rocks."] * 3,
    ["Rivers grind stone.", "Shells, broken by the waves.", "Sand."],
]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16", "float16 autocast", "bfloat16 autocast"])
def test_identical_documents_of_a_real_model_contribute_nothing(colbert, precision, training):
    dtype, *autocast = precision.split()
    context = torch.autocast("cpu", getattr(torch, dtype)) if autocast else contextlib.nullcontext()
    colbert.train(training).to(torch.float32 if autocast else getattr(torch, dtype))

    def gradients(rows):
        colbert.zero_grad()
        torch.manual_seed(0)  # of dropout
        documents = [text for i in rows for text in REAL_DOCUMENTS[i]]
        with context:
            value = Distillation(colbert)(
                [
                    colbert.tokenize([REAL_QUERIES[i] for i in rows], is_query=True),
                    colbert.tokenize(documents, is_query=False),
                ],
                torch.tensor([REAL_LABELS[i] for i in rows]),
            )
        value.backward()
        return value.item(), {name: p.grad for name, p in colbert.named_parameters() if p.grad is not None}

    value, found = gradients([1])
    assert value == 0
    assert found
    assert not any(gradient.any() for gradient in found.values())
    value, found = gradients([0, 1, 2])
    assert value > 1e-3
    assert all(gradient.isfinite().all() for gradient in found.values())
    norm = torch.stack([gradient.float().norm() for gradient in found.values()]).norm()
    assert 1e-3 < norm < 100
    if not training:  # dropout draws other numbers for a batch of another shape
        fewer, expected = gradients([0, 2])
        tolerance = 20 * torch.finfo(getattr(torch, dtype)).eps
        assert value * 3 == pytest.approx(fewer * 2, rel=tolerance)
        if dtype == "float32":
            weight = "1.linear.weight"
            torch.testing.assert_close(found[weight] * 3, expected[weight] * 2, rtol=1e-3, atol=1e-4)


def test_candidates_of_one_text_still_serve_the_other_queries_as_negatives():
    model = Lexicon(dim=DIM)
    same = [features([[5, 6], [7, 8]], "document")] * 3
    batch, labels = [features([[9, 10], [11, 12]], "query"), *same], torch.rand(2, 3)
    assert Distillation(model)(batch, labels).item() == 0
    both = Distillation(model, in_batch_weight=1.0)(batch, labels)
    one, two = ([model.one(text, "document") for text in texts] for texts in ([[5, 6], [7, 8]], [[7, 8], [5, 6]]))
    own = [score_each(model.one([9, 10], "query"), one), score_each(model.one([11, 12], "query"), two)]
    # Each candidate of the other query is a negative, the second and third copies too.
    rows = [torch.stack([positive, *[negative] * 3]) for positive, negative in own]
    expected = sum(nn.functional.cross_entropy(row, torch.tensor(0)) for row in rows) / 2
    assert both.item() == pytest.approx(expected.item(), rel=1e-5)


def test_raw_scores_are_not_weighed():
    """Without a division there is nothing to keep small: equal scores are told which one the teacher prefers."""
    scores = torch.full((1, 4), 3.0, requires_grad=True)
    columns = [features([[4 + j]], "document") for j in range(4)]
    value = Distillation(Lexicon(), lambda *_, **__: scores, normalize_scores=False)(
        [features([[5]], "query"), *columns], [LABELS]
    )
    (gradient,) = torch.autograd.grad(value, scores)
    torch.testing.assert_close(gradient[0], 0.25 - torch.tensor(LABELS).softmax(0))


def test_a_batch_that_teaches_nothing_is_named_once():
    model = Lexicon()
    loss, same = Distillation(model), features([[5, 6]], "document")
    batch = [features([[7]], "query"), same, same, same]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            loss(batch, [[0.5, 0.2, 0.1]])
    (warning,) = caught
    assert "score the same up to rounding" in str(warning.message)
    assert "normalize_scores=False" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_coarsest_numbers_decide(dtype):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(dtype))
    expected = dtype if torch.finfo(dtype).eps > torch.finfo(torch.float32).eps else torch.float32
    assert computing_dtype(model, "cpu") == expected
    assert computing_dtype(nn.Linear(2, 2).to(dtype), "cpu") == dtype
    with torch.autocast("cpu", torch.bfloat16):
        assert computing_dtype(model, "cpu") == torch.bfloat16
    assert computing_dtype(nn.Identity(), "cpu") == torch.float32


@pytest.mark.parametrize("vectors", DTYPES, ids=str)
@pytest.mark.parametrize("scores", DTYPES, ids=str)
def test_rounding_covers_sums_in_another_order(scores, vectors):
    """Scores of one text, its tokens rounded anew and summed in another order each time."""
    allowed = relative_rounding(scores, vectors, 128, 32)
    generator = torch.Generator().manual_seed(0)
    queries = nn.functional.normalize(torch.randn(32, 128, generator=generator), dim=1)
    documents = nn.functional.normalize(queries + 0.1 * torch.randn(32, 128, generator=generator), dim=1)
    found = []
    wide = torch.promote_types(scores, torch.float32)
    for _ in range(20):
        order = torch.randperm(128, generator=generator)
        noise = 1 + torch.finfo(vectors).eps * (torch.rand(32, 128, generator=generator, dtype=torch.float64) - 0.5)
        rounded = (documents.double() * noise)[:, order].to(wide)
        similarities = (queries[:, order].to(wide) @ rounded.T).amax(dim=1)
        total = torch.zeros((), dtype=wide)
        for i in torch.randperm(32, generator=generator):
            total = total + similarities[i]
        found.append(total.to(scores).double())
    found = torch.stack(found)
    assert found.max() - found.min() <= allowed * found.abs().max()


def test_stretch_maps_each_row_onto_zero_to_one():
    rows = torch.tensor([[3.0, 5.0, 4.0], [-1.0, -3.0, -2.0]])
    torch.testing.assert_close(min_max_normalize(rows), torch.tensor([[0.0, 1.0, 0.5], [1.0, 0.0, 0.5]]))
