"""All processors give the same outputs, gradients and dtypes."""

import copy

import pytest
import torch

from latelier.modules import (
    Attention,
    ExplicitProcessor,
    FusedProcessor,
    RotaryPositions,
    SDPAProcessor,
    SlicedProcessor,
)

CONFIGURATIONS = {
    "self": ({}, None),
    "cross": ({"cross_attention_dim": 6, "bias": True, "cross_attention_norm": "layer_norm"}, 6),
    "other source": ({"qk_norm": "rms_norm", "bias": True}, 8),
    "grouped": ({"kv_heads": 1, "residual_connection": True, "qk_norm": "l2"}, None),
    "causal": ({"is_causal": True, "kv_heads": 2}, None),
    "added": ({"added_kv_proj_dim": 6, "rescale_output_factor": 2.0}, 6),
    "only added": ({"added_kv_proj_dim": 6, "only_cross_attention": True, "kv_heads": 2}, 6),
    "joint": ({"added_kv_proj_dim": 6, "context_pre_only": False, "qk_norm": "layer_norm"}, 6),
    "joint, grouped": ({"added_kv_proj_dim": 6, "context_pre_only": True, "kv_heads": 2}, 6),
    "rotary": ({"kv_heads": 2}, None),
    "rotary, joint": ({"added_kv_proj_dim": 6, "context_pre_only": False}, 6),
    "upcast": ({"upcast_attention": True, "upcast_softmax": True, "scale_qk": False}, None),
}
OTHERS = [ExplicitProcessor(), SlicedProcessor(1), SlicedProcessor(3), FusedProcessor()]


def run(attention, processor, dtype, context_dim, mask, rotary):
    """Outputs as one tensor, and the gradients of inputs and of parameters by name."""
    torch.manual_seed(1)
    attention = copy.deepcopy(attention)
    names = [name for name, _ in attention.named_parameters()]
    if isinstance(processor, FusedProcessor):
        attention.fuse_projections()
    attention.set_processor(processor)
    hidden_states = torch.randn(2, 5, 8, dtype=dtype, requires_grad=True)
    context = None if context_dim is None else torch.randn(2, 3, context_dim, dtype=dtype, requires_grad=True)
    options = {"image_rotary_emb": RotaryPositions(2).table(5 if context is None else 8)} if rotary else {}
    out = attention(hidden_states, context, mask, **options)
    out = torch.cat([part.flatten() for part in out]) if isinstance(out, tuple) else out
    out.float().square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in attention.named_parameters()}
    gradients |= unfused(attention)
    gradients["hidden_states"], gradients["context"] = hidden_states.grad, None if context is None else context.grad
    return out, {name: gradients[name] for name in [*names, "hidden_states", "context"]}


def unfused(attention):
    """Gradients of fused weights under the names of the projections that they were made of."""
    parts = {
        "to_qkv": ["to_q", "to_k", "to_v"],
        "to_kv": ["to_k", "to_v"],
        "to_added_qkv": ["add_q_proj", "add_k_proj", "add_v_proj"],
    }
    found = {}
    for fused, names in parts.items():
        for kind, parameter in getattr(attention, fused, torch.nn.Module()).named_parameters():
            sizes = [getattr(attention, name).weight.shape[0] for name in names]
            if parameter.grad is not None:
                pieces = parameter.grad.split(sizes)
                found |= {f"{name}.{kind}": piece for name, piece in zip(names, pieces, strict=True)}
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [None, "boolean", "additive"])
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_outputs_and_gradients_are_equal(configuration, kind, dtype):
    arguments, context_dim = CONFIGURATIONS[configuration]
    torch.manual_seed(0)
    attention = Attention(8, heads=4, dim_head=2, **arguments).to(dtype)
    keys = 5 if context_dim is None else 3
    keys = 8 if attention.add_q_proj is not None and context_dim is not None else keys
    mask = None if kind is None else torch.rand(2, 1, keys) > 0.3
    if mask is not None:
        mask[..., 0] = True
    if kind == "additive":
        mask = torch.zeros(mask.shape).masked_fill(~mask, -3.0)
    rotary = configuration.startswith("rotary")
    out, gradients = run(attention, SDPAProcessor(), dtype, context_dim, mask, rotary)
    assert out.dtype == dtype
    for processor in OTHERS:
        found, other = run(attention, processor, dtype, context_dim, mask, rotary)
        # bfloat16: scores, probabilities and outputs are rounded one after another
        tolerance = 2e-5 if dtype == torch.float32 else 10 * torch.finfo(dtype).eps
        torch.testing.assert_close(found, out, rtol=tolerance, atol=tolerance)
        for name, gradient in gradients.items():
            assert (gradient is None) == (other[name] is None), (processor, name)
            if gradient is not None:
                scale = float(max(1, gradient.abs().max()))
                torch.testing.assert_close(other[name], gradient, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("processor", [SDPAProcessor(), *OTHERS], ids=repr)
@pytest.mark.parametrize("masked", [-1e9, torch.finfo(torch.float32).min, 1e9])
def test_keys_that_are_all_masked_alike_are_as_without_a_mask(processor, masked):
    torch.manual_seed(0)
    attention, sequence = Attention(8, heads=2, dim_head=4, pre_only=True), torch.randn(1, 4, 8)
    exact = copy.deepcopy(attention).double()
    query, key, value = (
        project(sequence.double()).unflatten(-1, (2, 4)).transpose(1, 2)
        for project in (exact.to_q, exact.to_k, exact.to_v)
    )
    expected = ((query @ key.mT / 2).softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
    expected.cos().sum().backward()
    if isinstance(processor, FusedProcessor):
        attention.fuse_projections()
    attention.set_processor(processor)
    out = attention(sequence, attention_mask=torch.full((1, 4), masked))
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    out.cos().sum().backward()
    found = {name: parameter.grad for name, parameter in attention.named_parameters()} | unfused(attention)
    for name, parameter in exact.named_parameters():
        torch.testing.assert_close(found[name].double(), parameter.grad, rtol=1e-5, atol=1e-5)


def test_probabilities_are_those_that_made_the_output():
    attention = Attention(8, heads=2, dim_head=4, processor=ExplicitProcessor())
    sequence = torch.randn(2, 3, 8)
    out, probabilities = attention(sequence, return_probabilities=True)
    assert probabilities.shape == (2, 2, 3, 3)
    torch.testing.assert_close(probabilities.sum(dim=-1), torch.ones(2, 2, 3))
    values = attention.to_v(sequence).unflatten(-1, (2, 4))
    mixed = torch.einsum("bhqk,bkhd->bqhd", probabilities, values).flatten(2)
    torch.testing.assert_close(attention.to_out[0](mixed), out)
