"""Blocks equal those of torch for shared weights, and the encoder equals its parts."""

import pytest
import torch
from torch import nn

from latelier.errors import InvalidArgumentError
from latelier.modules import RotaryPositions, TiedOutput, TransformerBlock, TransformerEncoder

IDS = torch.tensor([[0, 1, 2]])


def shared(block: TransformerBlock, peer: nn.TransformerEncoderLayer) -> None:
    state = block.state_dict()
    projections = [f"attention.to_{name}" for name in "qkv"]
    renamed = {"self_attn.out_proj": "attention.to_out.0", "linear1": "feed_forward.up", "linear2": "feed_forward.down"}
    renamed |= {"norm1": "norm1", "norm2": "norm2"}
    theirs = {f"{new}.{kind}": state[f"{old}.{kind}"] for new, old in renamed.items() for kind in ("weight", "bias")}
    for kind in ("weight", "bias"):
        theirs[f"self_attn.in_proj_{kind}"] = torch.cat([state[f"{name}.{kind}"] for name in projections])
    peer.load_state_dict(theirs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_block_equals_that_of_torch(norm_first, activation, masked, causal):
    options = {"activation": activation, "norm_first": norm_first}
    block = TransformerBlock(12, heads=3, hidden_dim=20, is_causal=causal, **options)
    peer = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True, **options)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    shared(block, peer)
    sequence = torch.randn(2, 5, 12, requires_grad=True)
    mask = torch.tensor([[True, False, True, True, False], [True] * 5]) if masked else None
    later = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    out = block(sequence, mask)
    expected = peer(sequence, src_mask=later, src_key_padding_mask=None if mask is None else ~mask)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn(2, 5, 12)
    found, wanted = (torch.autograd.grad((each * weights).sum(), sequence)[0] for each in (out, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", None])
@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_is_the_sequence_of_its_parts(norm_first, positions):
    encoder = TransformerEncoder(20, 8, num_layers=3, heads=2, positions=positions, norm_first=norm_first)
    ids, mask = torch.randint(20, (2, 6)), torch.tensor([[1, 1, 0, 1, 1, 0], [1] * 6])
    hidden_states = encoder.embeddings.weight[ids]
    if positions == "sinusoidal":
        hidden_states = encoder.sinusoidal(hidden_states)
    for layer in encoder.layers:
        table = RotaryPositions(4).table(6) if positions == "rotary" else None
        hidden_states = layer(hidden_states, mask.bool(), table)
    expected = nn.functional.layer_norm(hidden_states, (8,)) if norm_first else hidden_states
    torch.testing.assert_close(encoder(ids, mask), expected)


def test_masked_tokens_have_no_influence_but_a_vector():
    encoder, ids = TransformerEncoder(20, 8, heads=2), torch.randint(20, (1, 5))
    mask = torch.tensor([[True, False, True, True, False]])
    changed = torch.where(mask, ids, 7)
    out, other = encoder(ids, mask), encoder(changed, mask)
    torch.testing.assert_close(out[mask], other[mask])
    assert out[~mask].any()
    assert not torch.allclose(out[mask], encoder(ids)[mask], atol=1e-3)


def test_resizing_keeps_the_rows_and_shows_the_new_size():
    encoder = TransformerEncoder(5, 8, heads=2)
    before = encoder.embeddings.weight.clone()
    assert encoder.resize_token_embeddings(7) is encoder.get_input_embeddings()
    assert encoder.embeddings.weight.shape == (7, 8)
    assert torch.equal(encoder.embeddings.weight[:5], before)
    assert encoder.embeddings.weight.requires_grad
    assert encoder.arguments["vocabulary_size"] == 7
    assert "vocabulary_size=7" in repr(encoder)
    encoder.requires_grad_(False).resize_token_embeddings(3)
    assert not encoder.embeddings.weight.requires_grad
    assert torch.equal(encoder.embeddings.weight, before[:3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TransformerEncoder(9)(torch.zeros(3, dtype=int)), r"input_ids of shape \(3,\); expected \(batch, le"),
        (
            lambda: TransformerEncoder(9)(IDS + 7),
            r"received input_ids from 7 to 9; expected 0 to 8 \(vocabulary_size=9\)",
        ),
    ],
)
def test_wrong_arguments_raise(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_the_tied_output_trains_the_embeddings():
    encoder, ids = TransformerEncoder(20, 8, heads=2), torch.tensor([3, 4])
    output, hidden = TiedOutput(encoder), torch.randn(2, 8)
    assert [name for name, _ in output.named_parameters()] == ["bias"]
    scores = torch.tensor(
        [[float(row @ token) / 8**0.5 for token in encoder.embeddings.weight.detach()] for row in hidden]
    )
    torch.testing.assert_close(output(hidden), scores)
    expected = -(scores.softmax(-1)[[0, 1], ids].log()).mean()
    loss = output.loss(hidden, ids)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert encoder.embeddings.weight.grad.abs().sum() > 0
