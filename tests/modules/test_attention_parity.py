"""For equal weights, `Attention` computes what the class of diffusers computes, over combinations of their options."""

from pathlib import Path

import numpy as np
import pytest
import torch
from attention_cases import (
    FAMILIES,
    QK_NORMS,
    Case,
    build,
    fill,
    given,
    import_peer,
    inputs,
    ours,
    outputs,
    product,
    stored_cases,
    theirs,
)

from latelier import modules
from latelier.errors import InvalidArgumentError

TOLERANCE = 1e-5
REFERENCES = Path(__file__).with_name("attention_references.npz")


@pytest.fixture(scope="module")
def peer():
    pytest.importorskip("diffusers", reason="compared with stored numbers only")
    return import_peer()


def largest_difference(first, second):
    assert [tensor.shape for tensor in first] == [tensor.shape for tensor in second]
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_state_dicts_load_and_outputs_agree(family, peer):
    different = {}
    for case in FAMILIES[family]():
        reference, module = theirs(peer, case), ours(case)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        module.load_state_dict(reference.state_dict())
        difference = largest_difference(outputs(reference, case), outputs(module, case))
        if not difference < TOLERANCE:
            different[case.name] = difference
    assert different == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_gives_the_same_weights(family, peer):
    for case in list(FAMILIES[family]())[::7]:
        reference, module = build(peer, case, None).state_dict(), build(modules, case, None).state_dict()
        assert list(reference) == list(module)
        assert all(torch.equal(reference[name], module[name]) for name in reference), case.name


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_agree_with_stored_numbers(family):
    found = np.concatenate(
        [out.flatten().numpy() for case in stored_cases(family) for out in outputs(ours(case), case)]
    )
    with np.load(REFERENCES) as references:
        np.testing.assert_allclose(found, references[family], rtol=TOLERANCE, atol=TOLERANCE)


def test_state_dicts_have_the_same_names_and_shapes(peer):
    """Also where no processor of diffusers computes such a module; `kv_heads` is needed there by norms across heads."""
    kinds = (*QK_NORMS, "layer_norm_across_heads", "rms_norm_across_heads")
    options = product(
        qk_norm=kinds,
        kv_heads=(1, 4),
        added_kv_proj_dim=(None, 6),
        context_pre_only=(None, True, False),
        only_cross_attention=(True, False),
        pre_only=(True, False),
        elementwise_affine=(True, False),
        out_dim=(None, 16),
    )
    compared = 0
    for chosen in options:
        arguments = {"query_dim": 8, "heads": 4, "dim_head": 4, **given(chosen)}
        try:
            module = modules.Attention(**arguments)
        except InvalidArgumentError:  # as diffusers, or options of added projections without them
            continue
        reference = peer.Attention(**arguments).state_dict()
        found = module.state_dict()
        assert {name: value.shape for name, value in reference.items()} == {
            name: value.shape for name, value in found.items()
        }
        compared += 1
    assert compared > 500


def test_gradients_agree(peer):
    case = Case({"query_dim": 8, "heads": 2, "dim_head": 4, "qk_norm": "rms_norm", "norm_num_groups": 2, "bias": True})
    gradients = []
    for module in (theirs(peer, case), ours(case)):
        hidden_states = inputs(case)[0].requires_grad_()
        module(hidden_states).square().sum().backward()
        gradients.append([hidden_states.grad, *(parameter.grad for parameter in module.parameters())])
    for reference, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, reference, rtol=1e-5, atol=1e-5)


def test_fused_state_dicts_load(peer):
    for arguments in ({}, {"cross_attention_dim": 6}, {"added_kv_proj_dim": 6, "context_pre_only": False}):
        reference, module = (library.Attention(8, heads=2, dim_head=4, **arguments) for library in (peer, modules))
        fill(reference).fuse_projections()
        module.fuse_projections()
        assert module.load_state_dict(reference.state_dict()).missing_keys == []
