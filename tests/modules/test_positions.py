"""Position encodings equal their formulas, written with complex numbers, and those of transformers and diffusers."""

import cmath
import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from latelier.modules import Attention, RotaryPositions, SinusoidalPositions

YARN = {"rope_type": "yarn", "factor": 4.0}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def naive_rotary(rows, start, base=10_000.0, scale=1.0, alpha=1.0):
    dim = len(rows[0])
    if alpha != 1:
        base *= alpha ** (dim / (dim - 2))
    turned = []
    for position, row in enumerate(rows, start):
        turned.append([])
        for i in range(dim // 2):
            number = complex(row[2 * i], row[2 * i + 1]) * cmath.exp(1j * position / scale / base ** (2 * i / dim))
            turned[-1] += [number.real, number.imag]
    return turned


def from_halves(heads):
    """Channels in LLaMA's order, where ``i`` and ``i + d / 2`` are a pair, to the order of neighbouring pairs."""
    return heads.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


@pytest.mark.parametrize("start", [0, 7, 1000])
@pytest.mark.parametrize("options", [{}, {"base": 500.0, "scale": 4.0}, {"alpha": 8.0}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rotary_equals_complex_numbers(dtype, options, start):
    rows = torch.randn(2, 3, 5, 6).to(dtype)
    found = RotaryPositions(6, **options)(rows, start)
    assert found.dtype == dtype
    expected = torch.tensor([[naive_rotary(head.tolist(), start, **options) for head in each] for each in rows])
    # angles are float32, so their error grows with the position; the result is rounded once
    tolerance = 4 * max(torch.finfo(dtype).eps, (start + 5) * torch.finfo(torch.float32).eps)
    torch.testing.assert_close(found, expected.to(dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({}, {}),
        ({"base": 500_000.0}, {"rope_theta": 500_000.0}),
        ({"scale": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"scale": 4.0, "original_length": 512}, {**YARN, "original_max_position_embeddings": 512}),
        ({"scale": 4.0, "original_length": 9}, {**YARN, "original_max_position_embeddings": 9}),
    ],
    ids=str,
)
@pytest.mark.parametrize("start", [0, 100])
def test_rotary_equals_llama_in_transformers(options, theirs, start):
    parameters = {"rope_type": "default", "rope_theta": 10_000.0, **theirs}
    config = LlamaConfig(hidden_size=32, num_attention_heads=2, head_dim=16, rope_parameters=parameters)
    query, key = torch.randn(2, 2, 2, 5, 16)
    cos, sin = LlamaRotaryEmbedding(config)(query, torch.arange(start, start + 5)[None])
    expected = [from_halves(heads) for heads in apply_rotary_pos_emb(query, key, cos, sin)]
    rotary = RotaryPositions(16, **options)
    for heads, other in zip((query, key), expected, strict=True):
        torch.testing.assert_close(rotary(from_halves(heads), start), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sinusoidal_equals_the_formula(dtype):
    rows = torch.randn(2, 4, 6).to(dtype)
    found = SinusoidalPositions(6, base=100.0)(rows, start=3)
    assert found.dtype == dtype
    for position in range(4):
        for channel in range(6):
            wave = math.cos if channel % 2 else math.sin
            value = wave((position + 3) / 100.0 ** (channel // 2 * 2 / 6))
            torch.testing.assert_close(
                found[:, position, channel], rows[:, position, channel] + torch.tensor(value).to(dtype)
            )


@pytest.mark.parametrize("module", [RotaryPositions(6), SinusoidalPositions(6)], ids=str)
def test_angles_stay_in_float32_when_a_module_is_converted(module):
    rows = torch.randn(1, 3, 6)
    expected = module(rows, start=999)
    assert torch.equal(module.to(torch.bfloat16)(rows, start=999), expected)


def test_attention_rotates_queries_and_keys():
    attention, rotary = Attention(8, heads=2, dim_head=4), RotaryPositions(4)
    hidden_states, table = torch.randn(2, 5, 8), rotary.table(5)
    query, key, value = (
        layer(hidden_states).unflatten(-1, (2, 4)).transpose(1, 2)
        for layer in (attention.to_q, attention.to_k, attention.to_v)
    )
    attended = ((rotary(query) @ rotary(key).mT) / 2).softmax(dim=-1) @ value
    expected = attention.to_out[0](attended.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(hidden_states, image_rotary_emb=table), expected)
    assert not torch.allclose(attention(hidden_states), expected, atol=1e-3)
    later = attention(hidden_states, image_rotary_emb=rotary.table(5, start=20))
    torch.testing.assert_close(later, expected, rtol=1e-4, atol=1e-4)
    each = tuple(part.expand(2, 1, 5, 4) for part in table)  # positions of each sequence
    torch.testing.assert_close(attention(hidden_states, image_rotary_emb=each), expected)
