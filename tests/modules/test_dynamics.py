"""`DynamicsNetwork`: the formulas step by step, what the options change, and errors."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from dynamics_cases import ours, stored_numbers

from latelier.modules import DynamicsNetwork, ValueSupport

SMALL = {
    "observation_shape": (3, 2, 3),
    "num_channels": 6,
    "reward_head_channels": 3,
    "fc_reward_layers": (7,),
    "output_support_size": 5,
    "flatten_output_size_for_reward_head": 18,
    "lstm_hidden_size": 4,
    "last_linear_layer_init_zero": False,
}


def build(**options):
    torch.manual_seed(0)
    return DynamicsNetwork(**{**SMALL, **options}).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_means_are_those_of_absolute_weights(dtype):
    network = build(num_res_blocks=2).to(dtype)
    state = {name: tensor.detach().double().abs() for name, tensor in network.named_parameters()}
    dynamic = torch.cat([state[name].flatten() for name in state if name.startswith(("conv.", "resblocks."))])
    reward = [name for name in state if name == "conv1x1_reward.weight" or name.startswith("fc_reward_head.")]
    reward = torch.cat([state[name].flatten() for name in reward])
    assert network.get_dynamic_mean() == pytest.approx(dynamic.mean().item(), rel=1e-12)
    weights, mean = network.get_reward_mean()
    assert mean == pytest.approx(reward.mean().item(), rel=1e-12)
    np.testing.assert_array_equal(np.abs(weights), reward.numpy())


REFERENCES = Path(__file__).with_name("dynamics_references.npz")


def test_outputs_gradients_and_statistics_agree_with_stored_numbers():
    found = stored_numbers(ours)
    with np.load(REFERENCES) as references:
        assert set(found) == set(references)
        for kind, numbers in found.items():
            np.testing.assert_allclose(numbers, references[kind], rtol=1e-6, atol=1e-6)


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


def test_the_newer_names_of_lightzero_mean_the_same():
    old = build()
    newer = {"reward_head_hidden_channels": (7,), "flatten_input_size_for_reward_head": 18}
    torch.manual_seed(0)
    renamed = {name: value for name, value in SMALL.items() if name not in ("fc_reward_layers",)}
    del renamed["flatten_output_size_for_reward_head"]
    new = DynamicsNetwork(**renamed, **newer)
    assert repr(new) == repr(old)
    for name, tensor in old.state_dict().items():
        torch.testing.assert_close(new.state_dict()[name], tensor)
