"""`Attention`: the formula, torch's own multi-head attention, masks, options and errors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from attention_cases import CASES, ours
from torch import nn

from latelier.errors import InvalidArgumentError
from latelier.modules import Attention, ExplicitProcessor, FusedProcessor, SDPAProcessor, SlicedProcessor

SMALL = {"query_dim": 8, "heads": 2, "dim_head": 4}
PROCESSORS = [SDPAProcessor(), ExplicitProcessor(), SlicedProcessor(3)]


@pytest.mark.parametrize("processor", PROCESSORS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_multi_head_attention_of_torch(causal, masked, dtype, processor):
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    ours = Attention(16, heads=4, dim_head=4, bias=True, is_causal=causal, processor=processor)
    with torch.no_grad():
        theirs.in_proj_bias.uniform_()
        weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
        for layer, weight, bias in zip((ours.to_q, ours.to_k, ours.to_v), weights, biases, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        ours.to_out[0].load_state_dict(theirs.out_proj.state_dict())
    theirs, ours = theirs.to(dtype), ours.to(dtype)
    sequence = torch.randn(3, 5, 16, dtype=dtype)
    keys = torch.ones(3, 5, dtype=torch.bool)
    keys[1, 3:] = not masked
    future = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    expected, _ = theirs(sequence, sequence, sequence, key_padding_mask=~keys, attn_mask=future)
    # bfloat16: a few roundings of numbers around 1
    tolerance = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(ours(sequence, None, keys), expected, rtol=tolerance, atol=tolerance)


def test_masks_of_every_shape_and_kind_mean_the_same():
    attention, sequence = Attention(**SMALL), torch.randn(2, 3, 8)
    keys = torch.tensor([[True, True, False], [True, False, True]])
    expected = attention(sequence, None, keys)
    assert not torch.allclose(expected, attention(sequence), atol=1e-3)
    shapes = [(2, 1, 3), (2, 3, 3), (2, 1, 1, 3), (2, 2, 3, 3), (2, 2, 1, 3)]
    masks = [keys.view(2, *[1] * (len(shape) - 2), 3).expand(shape) for shape in shapes]
    masks.append(keys[:, None].repeat_interleave(2, dim=0))  # batch * heads first
    for mask in masks:
        additive = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
        for processor in PROCESSORS:
            attention.set_processor(processor)
            torch.testing.assert_close(attention(sequence, None, mask), expected)
            torch.testing.assert_close(attention(sequence, None, additive), expected)


@pytest.mark.parametrize("processor", PROCESSORS, ids=repr)
def test_a_query_without_keys_gets_zeros_and_no_nan_gradient(processor):
    attention = Attention(**SMALL, out_bias=False, processor=processor)
    sequence = torch.randn(2, 3, 8, requires_grad=True)
    mask = torch.tensor([[False, False, False], [True, True, False]])
    out = attention(sequence, None, mask)
    assert not out[0].any()
    assert out[1].any()
    out.sum().backward()
    assert sequence.grad.isfinite().all()
    assert sequence.grad[1].any()


def test_joint_attention_is_self_attention_over_both_sequences():
    attention = Attention(**SMALL, added_kv_proj_dim=8, context_pre_only=False, bias=True)
    plain = Attention(**SMALL, bias=True)
    state = {name: value for name, value in attention.state_dict().items() if name in plain.state_dict()}
    plain.load_state_dict(state)
    for added, own in (("add_q_proj", "to_q"), ("add_k_proj", "to_k"), ("add_v_proj", "to_v")):
        getattr(attention, added).load_state_dict(getattr(plain, own).state_dict())
    attention.to_add_out.load_state_dict(plain.to_out[0].state_dict())
    sequence, context = torch.randn(2, 4, 8), torch.randn(2, 3, 8)
    mask = torch.rand(2, 7) > 0.3
    found = torch.cat(attention(sequence, context, mask), dim=1)
    torch.testing.assert_close(found, plain(torch.cat([sequence, context], dim=1), None, mask))
    torch.testing.assert_close(attention(sequence), plain(sequence))


def test_added_keys_precede_and_a_mask_of_the_context_leaves_the_sequence_unmasked():
    attention = Attention(**SMALL, added_kv_proj_dim=6)
    sequence, context = torch.randn(2, 3, 8), torch.randn(2, 3, 6)
    mask = torch.tensor([[True, False, True], [False, True, True]])
    whole = torch.cat([mask, torch.ones(2, 3, dtype=torch.bool)], dim=1)
    expected = attention(sequence, context, whole)
    torch.testing.assert_close(attention(sequence, context, mask), expected)
    changed = context.masked_fill(~mask[..., None], 9.0)
    torch.testing.assert_close(attention(sequence, changed, mask), expected)


def test_fusing_and_unfusing():
    attention, sequence = Attention(**SMALL, bias=True), torch.randn(2, 3, 8)
    before, expected = attention.state_dict(), attention(sequence)
    random_state = torch.get_rng_state()
    attention.fuse_projections()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert attention.to_qkv.weight.shape == (24, 8)
    attention.set_processor(FusedProcessor())
    torch.testing.assert_close(attention(sequence), expected)
    with torch.no_grad():
        attention.to_qkv.weight.mul_(2)  # as training would change it
    changed = attention(sequence)
    attention.fuse_projections(False)
    assert attention.state_dict().keys() == before.keys()
    attention.set_processor(SDPAProcessor())
    torch.testing.assert_close(attention(sequence), changed)
    attention.fuse_projections(False)  # nothing to undo
    assert not attention.fused_projections


@pytest.mark.parametrize(
    ("arguments", "inputs", "message"),
    [
        ({}, {"hidden_states": torch.ones(3, 8)}, r"hidden_states of shape \(3, 8\); expected \(batch, length, 8\)"),
        ({}, {"attention_mask": torch.ones(2, 3, dtype=torch.int64)}, r"attention_mask of dtype torch.int64; expected"),
        ({}, {"attention_mask": torch.ones(2, 4)}, r"attention_mask of shape \(2, 4\) for 2 sequences, 2 heads, 3"),
    ],
)
def test_bad_inputs(arguments, inputs, message):
    attention = Attention(**{**SMALL, **arguments})
    with pytest.raises(InvalidArgumentError, match=message):
        attention(**{"hidden_states": torch.ones(2, 3, 8), **inputs})


def test_outputs_are_those_of_diffusers_for_equal_weights():
    place = 0
    with np.load(Path(__file__).with_name("attention_references.npz")) as references:
        expected = references["numbers"]
    for case in CASES:
        found = ours(case)
        np.testing.assert_allclose(found, expected[place : place + len(found)], rtol=1e-5, atol=1e-5, err_msg=str(case))
        place += len(found)
    assert place == len(expected)


def test_an_out_dim_that_is_no_multiple_makes_wider_heads():
    attention = Attention(8, dim_head=16, out_dim=36)
    assert (attention.heads, attention.inner_dim, attention.to_k.weight.shape) == (2, 36, (36, 8))
    sequence = torch.randn(2, 3, 8)
    heads = [layer(sequence).unflatten(-1, (2, 18)) for layer in (attention.to_q, attention.to_k, attention.to_v)]
    weights = (torch.einsum("bqhd,bkhd->bhqk", *heads[:2]) / 18**0.5).softmax(dim=-1)
    expected = attention.to_out[0](torch.einsum("bhqk,bkhd->bqhd", weights, heads[2]).flatten(2))
    torch.testing.assert_close(attention(sequence), expected)
    attention.set_processor(ExplicitProcessor())
    torch.testing.assert_close(attention(sequence), expected)


@pytest.mark.parametrize("out_dim", [12, 33])
def test_an_out_dim_that_its_heads_do_not_divide_is_an_error(out_dim):
    with pytest.raises(InvalidArgumentError, match=f"out_dim={out_dim} and dim_head=16"):
        Attention(8, dim_head=16, out_dim=out_dim)


@pytest.mark.parametrize("option", [{"kv_heads": 1}, {"qk_norm": "layer_norm"}])
def test_wider_heads_have_no_norms_and_no_other_key_heads(option):
    with pytest.raises(InvalidArgumentError, match="heads of 18 channels"):
        Attention(8, dim_head=16, out_dim=36, **option)


def test_added_projections_of_another_width_need_a_context():
    with pytest.raises(InvalidArgumentError, match=r"added_kv_proj_dim=6 needs them: \(batch, length, 6\)"):
        Attention(**SMALL, added_kv_proj_dim=6)(torch.ones(2, 3, 8))
    assert Attention(**SMALL, added_kv_proj_dim=8)(torch.ones(2, 3, 8)).shape == (2, 3, 8)


@pytest.mark.parametrize(
    ("method", "package"),
    [
        ("set_use_memory_efficient_attention_xformers", "xformers"),
        ("set_use_npu_flash_attention", "torch_npu"),
        ("set_use_xla_flash_attention", "torch_xla"),
    ],
)
def test_kernels_of_other_packages_are_named(method, package):
    attention = Attention(**SMALL, processor=ExplicitProcessor())
    with pytest.raises(InvalidArgumentError, match=f"no processor for the attention kernels of {package}"):
        getattr(attention, method)(True)
    assert isinstance(attention.processor, ExplicitProcessor)
    getattr(attention, method)(False)
    assert isinstance(attention.processor, SDPAProcessor)
