"""`ValueSupport`: both directions against a loop over the formulas, and against LightZero where it is installed."""

import math

import pytest
import torch

from latelier.errors import InvalidArgumentError
from latelier.modules import ValueSupport

VALUES = torch.tensor([0.0, 1e-6, 0.3, -0.3, 1.0, -2.5, 42.0, -1000.0, 80000.0], dtype=torch.float64)


def scaled(value, epsilon):
    return math.copysign(math.sqrt(abs(value) + 1) - 1, value) + epsilon * value


@pytest.mark.parametrize("epsilon", [0.001, 0.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_encode_shares_the_scaled_value_between_two_integers(dtype, epsilon):
    support = ValueSupport(801, epsilon=epsilon)
    for value, row in zip(VALUES.tolist(), support.encode(VALUES.to(dtype)), strict=True):
        expected = torch.zeros(801, dtype=torch.float64)
        low = math.floor(scaled(value, epsilon))
        expected[400 + low] = 1 - (scaled(value, epsilon) - low)
        expected[400 + low + 1] = scaled(value, epsilon) - low
        assert row.dtype == dtype
        # positions up to 400 are rounded
        torch.testing.assert_close(row.double(), expected, rtol=0, atol=400 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("epsilon", [0.001, 0.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_decode_undoes_encode(dtype, epsilon):
    support = ValueSupport(801, epsilon=epsilon)
    logits = support.encode(VALUES.to(dtype).reshape(3, 3)).log()
    # a rounding of h(x) grows by the slope of the inverse, 2 * sqrt(x + 1): less than 600
    torch.testing.assert_close(support.decode(logits).double(), VALUES.reshape(3, 3), rtol=1e-4, atol=1e-6)


def test_values_outside_the_support_are_clamped():
    found = ValueSupport(5, epsilon=0.0).encode(torch.tensor([100.0, -100.0, 1e38, -1e38]))
    assert found.tolist() == [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(dtype):
    support, logits = ValueSupport(21), torch.randn(4, 21).to(dtype)
    assert torch.equal(support.decode(logits), support.decode(logits.float()))
    assert torch.equal(support.encode(logits), support.encode(logits.float()))


def test_equal_logits_are_exactly_zero_and_gradients_flow():
    logits = torch.zeros(2, 601, requires_grad=True)
    assert ValueSupport().decode(logits).tolist() == [0.0, 0.0]
    noise = torch.randn(2, 21, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ValueSupport(21).decode, noise)


def test_lightzero_agrees():
    peer = pytest.importorskip("lzero.policy.scaling_transform", reason="LightZero is not installed")
    support = ValueSupport(601)
    values = VALUES[VALUES.abs() < 80000].reshape(2, 4)
    targets = peer.phi_transform(peer.DiscreteSupport(-300, 300), peer.scalar_transform(values).float())
    torch.testing.assert_close(support.encode(values).float(), targets, rtol=0, atol=2e-5)
    logits = torch.randn(50, 601, dtype=torch.float64) * 5
    torch.testing.assert_close(support.decode(logits), peer.inverse_scalar_transform(logits, 300).squeeze(1))


@pytest.mark.parametrize(
    ("size", "epsilon", "message"), [(600, 0.001, "odd number"), (1, 0.001, "at least 3"), (3, -1.0, "epsilon=-1.0")]
)
def test_wrong_arguments(size, epsilon, message):
    with pytest.raises(InvalidArgumentError, match=message):
        ValueSupport(size, epsilon=epsilon)


def test_wrong_inputs():
    with pytest.raises(InvalidArgumentError, match=r"logits of shape \(2, 5\); expected \(..., 7\)"):
        ValueSupport(7).decode(torch.zeros(2, 5))
    for wrong in (math.nan, math.inf):
        with pytest.raises(InvalidArgumentError, match="received NaN or infinity among the values"):
            ValueSupport(7).encode(torch.tensor([0.0, wrong]))
    with pytest.raises(InvalidArgumentError, match=r"received \[1.0\] \(list\) as values; expected a tensor"):
        ValueSupport(7).encode([1.0])
    with pytest.raises(InvalidArgumentError, match="received None as logits; expected a tensor"):
        ValueSupport(7).decode(None)
