"""For equal weights, `DynamicsNetwork` computes what the class of LightZero computes, over combinations of options."""

from pathlib import Path

import numpy as np
import pytest
import torch
from dynamics_cases import cases, fill, run
from dynamics_peer import import_peer, ours, stored_numbers, theirs

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
