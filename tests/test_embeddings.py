"""The packed array that everything shares: round trips against a plain list of matrices."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError

KINDS = [("numpy", "float32"), ("numpy", "float16"), ("torch", "float32"), ("torch", "float16"), ("torch", "bfloat16")]
lengths_lists = st.lists(st.integers(0, 5), max_size=7)


def matrices(lengths, kind="torch", dtype="float32", dim=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(n, dim, generator=generator).to(getattr(torch, dtype)) for n in lengths]
    return [m.numpy() for m in made] if kind == "numpy" else made


def as_lists(embeddings):
    return [torch.as_tensor(m).float().tolist() for m in embeddings]


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_a_sequence_of_views(kind, dtype):
    source = matrices([2, 0, 3], kind, dtype)
    packed = TokenEmbeddings.from_list(source)
    assert (len(packed), packed.num_tokens, packed.dim) == (3, 5, 3)
    assert (packed.dtype, packed.is_torch) == (dtype, kind == "torch")
    assert packed.lengths.tolist() == [2, 0, 3]
    assert packed.offsets.dtype == np.int64
    assert as_lists(packed) == as_lists(source)
    packed[2][0, 0] = 7  # a view: writing to it writes to the packed array
    assert float(packed.vectors[2, 0]) == 7
    assert float(packed[1:][1][0, 0]) == 7
    assert packed[-1].shape == (3, 3)


@given(lengths_lists, st.data())
def test_indexing_is_that_of_a_list(lengths, data):
    source = matrices(lengths)
    packed = TokenEmbeddings.from_list(source, dim=3).to("torch")
    start, stop = data.draw(st.integers(-8, 8)), data.draw(st.integers(-8, 8))
    step = data.draw(st.sampled_from([1, 2, -1, -3]))
    assert as_lists(packed[start:stop:step]) == as_lists(source[start:stop:step])
    if lengths:
        chosen = data.draw(st.lists(st.integers(-len(lengths), len(lengths) - 1), max_size=6))
        assert as_lists(packed[chosen]) == as_lists([source[i] for i in chosen])


@given(lengths_lists)
def test_padding_and_back(lengths):
    packed = TokenEmbeddings.from_list(matrices(lengths), dim=3).to("torch")
    padded, mask = packed.pad()
    assert padded.shape == (len(lengths), max(lengths, default=0), 3)
    assert mask.sum(1).tolist() == lengths
    assert (padded[~mask] == 0).all()
    assert TokenEmbeddings.from_padded(padded, mask) == packed
    numpy_padded, numpy_mask = packed.to("numpy").pad()
    assert np.array_equal(numpy_padded, padded.numpy())
    assert np.array_equal(numpy_mask, mask.numpy())


def test_from_padded_drops_holes():
    padded = torch.arange(12.0).view(1, 4, 3)
    packed = TokenEmbeddings.from_padded(padded, torch.tensor([[1, 0, 1, 0]]))
    assert packed[0].tolist() == [[0, 1, 2], [6, 7, 8]]


def test_padding_keeps_the_gradient():
    vectors = torch.randn(5, 3, requires_grad=True)
    padded, _ = TokenEmbeddings(vectors, [0, 2, 5]).pad()
    (padded * torch.arange(1.0, 4.0)).sum().backward()
    assert vectors.grad.tolist() == [[1, 2, 3]] * 5


@given(st.lists(lengths_lists, min_size=1, max_size=4))
def test_concatenating_is_that_of_lists(parts):
    packed = [TokenEmbeddings.from_list(matrices(p, seed=i), dim=3).to("torch") for i, p in enumerate(parts)]
    assert as_lists(TokenEmbeddings.concatenate(packed)) == [m for part in packed for m in as_lists(part)]


@pytest.mark.parametrize(("kind", "dtype"), [*KINDS, ("numpy", "int8"), ("torch", "int8")])
def test_saved_and_loaded_it_is_the_same(tmp_path, kind, dtype):
    packed = TokenEmbeddings.from_list(matrices([2, 0, 3])).to(kind).to(dtype)
    packed.save(tmp_path / "a file.safetensors")
    again = TokenEmbeddings.load(tmp_path / "a file.safetensors")
    assert again == packed
    assert (again.dtype, again.is_torch) == (dtype, packed.is_torch)
    assert [p.name for p in tmp_path.iterdir()] == ["a file.safetensors"]


@given(st.integers(1, 40), st.floats(1e-3, 1e3))
def test_int8_is_off_by_at_most_half_a_step(tokens, size):
    packed = TokenEmbeddings.from_list([m * size for m in matrices([tokens, 0, 1], dim=16)])
    small = packed.to("int8")
    assert small.vectors.dtype == torch.int8
    step = packed.vectors.abs().amax(1, keepdim=True) / 127
    back = small.to("float32").vectors
    assert ((back - packed.vectors).abs() <= step * 0.5001).all()
    assert np.allclose(small[0], back[:tokens])


def test_int8_of_a_zero_token_is_zero():
    small = TokenEmbeddings(torch.zeros(1, 4), [0, 1]).to("int8")
    assert (small[0].tolist(), small.scales.tolist()) == ([[0.0] * 4], [0.0])


def test_conversions_between_kinds_and_dtypes():
    packed = TokenEmbeddings.from_list(matrices([2, 1], "numpy"))
    assert packed.to("float32") is packed
    assert packed.to("cpu").is_torch
    assert packed.to("bfloat16").dtype == "bfloat16"
    assert packed.to(torch.float16).dtype == "float16"
    assert packed.to("torch").to("numpy") == packed
    assert packed.to("int8").to("float16").scales is None
    assert packed.to("bfloat16").to("numpy").dtype == "float32"  # numpy has no bfloat16


def test_repr_and_equality():
    packed = TokenEmbeddings.from_list(matrices([2, 1]))
    assert repr(packed) == "TokenEmbeddings(2 texts, 3 tokens, dim=3, float32, cpu)"
    assert packed == packed.to("numpy")
    assert packed != packed[:1]
    assert packed != packed.to("float16")
    assert packed != "something else"


def test_an_interrupted_save_leaves_the_old_file(tmp_path):
    pytest.importorskip("resource", reason="file size limits are POSIX")
    path = tmp_path / "embeddings.safetensors"
    old = TokenEmbeddings.from_list(matrices([2]))
    old.save(path)
    script = (
        "import resource, signal, sys, torch; from latelier.embeddings import TokenEmbeddings\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "TokenEmbeddings(torch.zeros(10000, 8), [0, 10000]).save(sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 1
    assert "StorageError: could not write" in done.stderr
    assert TokenEmbeddings.load(path) == old
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenEmbeddings(torch.zeros(3), [0, 3]), r"type Tensor and shape torch.Size\(\[3\]\); expected a 2-D"),
        (lambda: TokenEmbeddings([[1.0]], [0, 1]), "type list .*from_list"),
        (lambda: TokenEmbeddings(torch.zeros(3, 2), [0, 2]), "offsets from 0 to 2 for 3 tokens"),
        (lambda: TokenEmbeddings(torch.zeros(3, 2), [0, 2, 1, 3]), "expected non-decreasing offsets"),
        (lambda: TokenEmbeddings(torch.zeros(3, 2), [0.0, 3.0]), "offsets of dtype float64"),
        (lambda: TokenEmbeddings(torch.zeros(3, 2, dtype=torch.int64), [0, 3]), "dtype torch.int64; expected one of"),
        (lambda: TokenEmbeddings(torch.zeros(3, 2, dtype=torch.int8), [0, 3]), "int8 vectors need one float32 scale"),
        (
            lambda: TokenEmbeddings(torch.zeros(1, 2, dtype=torch.int8), [0, 1], torch.ones(2)),
            r"scales of shape \(2,\)",
        ),
        (lambda: TokenEmbeddings.from_list([torch.zeros(1, 2), torch.zeros(2)]), r"text 1 has .* shape \(2,\)"),
        (
            lambda: TokenEmbeddings.from_list([torch.zeros(1, 2), torch.zeros(1, 3)]),
            "text 1 is torch float32 with dim",
        ),
        (lambda: TokenEmbeddings.from_list([torch.zeros(1, 2), np.zeros((1, 2))]), "text 1 is numpy float64"),
        (lambda: TokenEmbeddings.from_padded(torch.zeros(2, 3, 4), torch.ones(2, 4)), r"a mask of shape \(2, 4\)"),
        (lambda: TokenEmbeddings.concatenate([]), "received no batch"),
        (
            lambda: TokenEmbeddings.concatenate(
                [TokenEmbeddings(torch.zeros(1, 2), [0, 1]), TokenEmbeddings(torch.zeros(1, 2).half(), [0, 1])]
            ),
            "batch 1 is torch float16",
        ),
        (lambda: TokenEmbeddings(torch.zeros(1, 2), [0, 1]).to("float8"), "cannot convert embeddings to 'float8'"),
        (lambda: TokenEmbeddings(torch.zeros(1, 2), [0, 1])[[0.5]], "cannot select texts by float64"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises((EmbeddingsError, InvalidArgumentError), match=message):
        make()


def test_positions_outside_are_index_errors():
    packed = TokenEmbeddings(torch.zeros(1, 2), [0, 1])
    with pytest.raises(IndexError, match="text 1 was asked for, but there are 1"):
        packed[1]
    with pytest.raises(IndexError, match="text 5 was asked for"):
        packed[[0, 5]]


def test_foreign_and_damaged_files_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, tmp_path / "foreign")
    with pytest.raises(EmbeddingsError, match=r"was not written by TokenEmbeddings.save; it holds \['x'\]"):
        TokenEmbeddings.load(tmp_path / "foreign")
    path = tmp_path / "cut"
    TokenEmbeddings(torch.zeros(100, 2), [0, 100]).save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(EmbeddingsError, match="is not a whole safetensors file"):
        TokenEmbeddings.load(path)
    metadata = {"latelier": "TokenEmbeddings", "version": "99", "kind": "torch"}
    save_file({"vectors": torch.zeros(1, 2), "offsets": torch.tensor([0, 1])}, tmp_path / "newer", metadata=metadata)
    with pytest.raises(EmbeddingsError, match="has format version 99, we read 1; upgrade it"):
        TokenEmbeddings.load(tmp_path / "newer")
