"""`DynamicsNetwork`: the formulas step by step, what the options change, and errors."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dynamics_cases import cases, fill, import_peer, ours, run, stored_numbers, theirs

from latelier.errors import InvalidArgumentError
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


def draw(batch=5, height=2, width=3, channels=6, hidden=4):
    torch.manual_seed(1)
    return torch.randn(batch, channels, height, width), (torch.randn(1, batch, hidden), torch.randn(1, batch, hidden))


def formulas(weights, encoding, hidden, cell):
    """One step with layer norms and no residual block, each state on its own, from the names of the weights."""

    def layer_norm(values, name):
        scaled = (values - values.mean()) / (values.var(unbiased=False) + 1e-5).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    height, width = encoding.shape[1:]
    padded = F.pad(encoding, (1, 1, 1, 1))
    convolved = torch.zeros(4, height, width)
    for out, y, x in itertools.product(range(4), range(height), range(width)):
        convolved[out, y, x] = (weights["conv.weight"][out] * padded[:, y : y + 3, x : x + 3]).sum()
    state = (layer_norm(convolved, "norm_common") + encoding[:4]).relu()

    reward = torch.einsum("oi,iyx->oyx", weights["conv1x1_reward.weight"][:, :, 0, 0], state)
    reward = layer_norm(reward + weights["conv1x1_reward.bias"][:, None, None], "norm_reward").relu().flatten()
    gates = weights["lstm.weight_ih_l0"] @ reward + weights["lstm.weight_hh_l0"] @ hidden
    gates = gates + weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"]
    enter, forget, new, show = gates.chunk(4)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    hidden = show.sigmoid() * cell.tanh()

    scaled = hidden / (1 + 1e-5) ** 0.5  # a new batch norm, in evaluation
    inner = weights["fc_reward_head.0.weight"] @ scaled.relu() + weights["fc_reward_head.0.bias"]
    inner = layer_norm(inner, "fc_reward_head.1").relu()
    return state, hidden, cell, weights["fc_reward_head.3.weight"] @ inner + weights["fc_reward_head.3.bias"]


def test_a_step_is_the_formulas():
    network = build(num_res_blocks=0, norm_type="LN")
    encoding, state = draw()
    with torch.no_grad():
        latent, (hidden, cell), logits = network(encoding, state)
    for row in range(5):
        expected = formulas(network.state_dict(), encoding[row], state[0][0, row], state[1][0, row])
        for found, wanted in zip((latent[row], hidden[0, row], cell[0, row], logits[row]), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_no_hidden_state_is_zeros():
    network = build()
    encoding, _ = draw()
    zeros = torch.zeros(1, 5, 4)
    assert torch.equal(network(encoding)[2], network(encoding, (zeros, zeros))[2])


def test_the_hidden_state_carries_earlier_steps():
    network = build()
    first, second = torch.randn(2, 5, 6, 2, 3)
    _, hidden, _ = network(first)
    latent, _, logits = network(second, hidden)
    assert torch.equal(latent, network(second)[0])
    assert not torch.equal(logits, network(second)[2])


def test_the_last_layer_starts_with_zeros():
    network = build(last_linear_layer_init_zero=True)
    assert not network(*draw())[2].any()
    assert build()(*draw())[2].any()


def test_training_updates_statistics_and_normalizes_by_the_batch():
    network = build().train()
    inputs = draw()
    logits = network(*inputs)[2]
    assert network.norm_value_prefix.num_batches_tracked == 1
    assert not torch.equal(logits, network.eval()(*inputs)[2])


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


WRONG_ARGUMENTS = {
    "norm_type": (None, "received norm_type=None; expected 'BN' or 'LN'"),
    "fc_reward_layers": ([8, 4], "received fc_reward_layers=[8, 4]; expected equal sizes"),
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_wrong_arguments(name):
    value, message = WRONG_ARGUMENTS[name]
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        build(**{name: value})


TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12}  # relative to the largest number


REFERENCES = Path(__file__).with_name("dynamics_references.npz")


@pytest.fixture(scope="module")
def peer():
    pytest.importorskip("lzero.model.efficientzero_model", reason="compared with stored numbers only")
    return import_peer()


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_state_dicts_load_and_outputs_gradients_and_statistics_agree(dtype, peer):
    different = {}
    for case in cases():
        reference, network = fill(theirs(peer, case)), ours(case)
        network.load_state_dict(reference.state_dict())
        expected, found = run(reference, case, dtype), run(network, case, dtype)
        for kind, tensors in expected.items():
            assert [tensor.shape for tensor in tensors] == [tensor.shape for tensor in found[kind]]
            largest = max(1.0, *(float(tensor.abs().max()) for tensor in tensors))
            difference = max(float((a - b).abs().max()) for a, b in zip(tensors, found[kind], strict=True)) / largest
            if not difference < TOLERANCES[dtype]:
                different[case, kind] = difference
    assert different == {}


def test_a_seed_gives_the_same_weights(peer):
    for case in list(cases())[::7]:
        torch.manual_seed(0)
        reference = theirs(peer, case).state_dict()
        torch.manual_seed(0)
        state = ours(case).state_dict()
        assert list(reference) == list(state)
        assert all(torch.equal(reference[name], state[name]) for name in reference), case


def test_means_agree(peer):
    for case in list(cases())[::37]:
        reference, network = fill(theirs(peer, case)), fill(ours(case))
        assert network.get_dynamic_mean() == pytest.approx(reference.get_dynamic_mean(), rel=1e-12)
        reference.fc = reference.fc_reward_head  # the name that their method looks for
        (weights, mean), (expected, expected_mean) = network.get_reward_mean(), reference.get_reward_mean()
        np.testing.assert_array_equal(weights, expected)
        assert mean == pytest.approx(expected_mean, rel=1e-6)


def test_outputs_gradients_and_statistics_agree_with_stored_numbers():
    found = stored_numbers(ours)
    with np.load(REFERENCES) as references:
        assert set(found) == set(references)
        for kind, numbers in found.items():
            np.testing.assert_allclose(numbers, references[kind], rtol=1e-6, atol=1e-6)


def test_cases_are_many_and_distinct():
    assert len(set(cases())) == len(list(cases())) == 1152


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
def test_wrong_arguments_value_support(size, epsilon, message):
    with pytest.raises(InvalidArgumentError, match=message):
        ValueSupport(size, epsilon=epsilon)
