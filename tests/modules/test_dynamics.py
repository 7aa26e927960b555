"""`DynamicsNetwork`: the formulas step by step, what the options change, and errors."""

import itertools
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from latelier.errors import InvalidArgumentError
from latelier.modules import DynamicsNetwork

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


@pytest.mark.parametrize("norm_type", ["BN", "LN"])
def test_downsampled_states_are_16_times_smaller_rounded_up(norm_type):
    network = build(observation_shape=(3, 17, 48), downsample=True, norm_type=norm_type)
    latent, _, logits = network(*draw())
    assert (latent.shape, logits.shape) == ((5, 4, 2, 3), (5, 5))


def test_the_last_layer_starts_with_zeros():
    network = build(last_linear_layer_init_zero=True)
    assert not network(*draw())[2].any()
    assert build()(*draw())[2].any()


def test_norm_types_choose_the_norms():
    def norms(network):
        kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)
        return {name: type(module).__name__ for name, module in network.named_modules() if isinstance(module, kinds)}

    blocks = {"resblocks.0.conv1.1": "BatchNorm2d", "resblocks.0.conv2.1": "BatchNorm2d"}
    assert norms(build()) == {
        **blocks,
        "norm_common": "BatchNorm2d",
        "norm_reward": "BatchNorm2d",
        "norm_value_prefix": "BatchNorm1d",
        "fc_reward_head.1": "BatchNorm1d",
    }
    assert norms(build(norm_type="LN")) == {
        **blocks,
        "norm_common": "LayerNorm",
        "norm_reward": "LayerNorm",
        "norm_value_prefix": "BatchNorm1d",
        "fc_reward_head.1": "LayerNorm",
    }


def test_the_default_activation_is_in_place_and_belongs_to_one_network():
    first, second = build(), build()
    assert first.activation.inplace
    assert first.activation is first.resblocks[0].act
    assert first.activation is not second.activation
    encoding, state = draw()
    before = [tensor.clone() for tensor in (encoding, *state)]
    latent, *_ = first(encoding, state)
    copy = latent.clone()
    first(encoding, state)
    assert all(torch.equal(now, then) for now, then in zip((encoding, *state), before, strict=True))
    assert torch.equal(latent, copy)


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


def test_an_export_takes_any_batch_size():
    network, batch = build(), torch.export.Dim("batch")
    sizes = ({0: batch}, ({1: batch}, {1: batch}))
    exported = torch.export.export(network, draw(batch=5), dynamic_shapes=sizes).module()
    torch.testing.assert_close(exported(*draw(batch=9)), network(*draw(batch=9)))


WRONG_ARGUMENTS = {
    "action_encoding_dim": (6, "received num_channels=6 and action_encoding_dim=6; expected more channels"),
    "num_res_blocks": (-1, "received num_res_blocks=-1; expected an integer of at least 0"),
    "lstm_hidden_size": (0, "received lstm_hidden_size=0; expected an integer of at least 1"),
    "norm_type": (None, "received norm_type=None; expected 'BN' or 'LN'"),
    "downsample": ("no", "received downsample='no'; expected True or False"),
    "activation": (torch.relu, "expected a module, or None for ReLU"),
    "fc_reward_layers": ([8, 4], "received fc_reward_layers=[8, 4]; expected equal sizes"),
    "observation_shape": ((3,), "received observation_shape=(3,); expected (channels, height, width)"),
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_wrong_arguments(name):
    value, message = WRONG_ARGUMENTS[name]
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        build(**{name: value})


WRONG_INPUTS = {
    "channels": ({}, {"channels": 5}, "shape (5, 5, 2, 3); expected (batch, 6, height, width)"),
    "size": ({}, {"width": 4}, "of 2 x 4, which gives the reward head 3 * 2 * 4 = 24 inputs; expected"),
    "size, LN": ({"norm_type": "LN"}, {"width": 4}, "shape (5, 6, 2, 4); expected (batch, 6, 2, 3)"),
    "hidden": ({}, {"hidden": 3}, "shapes (1, 5, 3) and (1, 5, 3); expected (1, 5, 4) for both"),
}


@pytest.mark.parametrize("name", WRONG_INPUTS)
def test_wrong_shapes(name):
    options, shape, message = WRONG_INPUTS[name]
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        build(**options)(*draw(**shape))


def test_an_encoding_is_a_tensor():
    with pytest.raises(InvalidArgumentError, match="received None as state_action_encoding; expected a tensor"):
        build()(None)


def test_a_hidden_state_is_a_pair():
    encoding, (hidden, _) = draw()
    with pytest.raises(InvalidArgumentError, match=r"received a Tensor as reward_hidden_state; expected a pair of"):
        build()(encoding, hidden)


def test_training_needs_a_batch_of_two():
    network = build().train()
    with pytest.raises(InvalidArgumentError, match="received a batch of 1 in training mode"):
        network(*draw(batch=1))
    assert network.norm_common.num_batches_tracked == 0
    assert network.eval()(*draw(batch=1))[2].shape == (1, 5)
