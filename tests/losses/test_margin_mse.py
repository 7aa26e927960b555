"""`MarginMSE` against a loop over single margins, and what it refuses."""

import pytest
import torch
from naive_losses import Lexicon
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMarginMSELoss
from test_distillation import QUERIES, small_batch

from latelier.errors import InvalidArgumentError
from latelier.losses import MarginMSE

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-5, torch.bfloat16: 2e-2}


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
def test_value_and_gradient_equal_the_loop(form, n, mean, dtype):
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


def test_one_negative_takes_flat_margins():
    model = Lexicon()
    batch, _, _ = small_batch(2, model)
    loss = MarginMSE(model)
    assert loss(batch, [1.0, 2.0, 3.0]).item() == loss(batch, [[1.0], [2.0], [3.0]]).item()


@pytest.mark.parametrize(
    ("n", "labels", "message"),
    [
        (1, torch.ones(3, 1), "each query has one document; expected a positive and at least one negative"),
        (3, None, r"received no labels; expected the teacher's scores of shape \(3, 3\)"),
        (3, torch.ones(3), r"received labels of shape \(3,\); expected .* \(3, 3\)"),
        (3, torch.ones(3, 4), r"received labels of shape \(3, 4\); expected .* \(3, 3\)"),
        (2, torch.tensor([1.0, float("nan"), 2.0]), r"labels hold NaN or infinity: \[nan\]"),
    ],
)
def test_labels_that_give_no_margins_are_refused(n, labels, message):
    model = Lexicon()
    batch, _, _ = small_batch(n, model)
    with pytest.raises(InvalidArgumentError, match=message):
        MarginMSE(model)(batch, labels)


def test_settings_for_the_model_card():
    assert MarginMSE(Lexicon(), dims=(4,)).get_config_dict() == {
        "score_metric": "colbert_kd_scores",
        "size_average": True,
        "dims": (4,),
    }
    assert "2010.02666" in MarginMSE(Lexicon()).citation
