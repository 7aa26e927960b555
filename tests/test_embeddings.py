"""The packed array that everything shares: round trips against a plain list of matrices."""

import copy
import json
import os
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latelier.embeddings import TokenEmbeddings
from latelier.errors import EmbeddingsError, InvalidArgumentError, StorageError
from latelier.scores import colbert_scores

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


def test_nothing_is_concatenated_with_anything():
    nothing = TokenEmbeddings.from_list([])
    some = TokenEmbeddings.from_list(matrices([2, 3])).to("torch")
    assert TokenEmbeddings.concatenate([nothing, some, nothing, some]).lengths.tolist() == [2, 3, 2, 3]
    assert TokenEmbeddings.concatenate([nothing, nothing]) == nothing
    with pytest.raises(EmbeddingsError, match="dim 3 and of torch float32 with dim 5"):
        TokenEmbeddings.concatenate([nothing, some, TokenEmbeddings(torch.zeros(1, 5), [0, 1])])


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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_scale_of_a_token_that_is_not_finite_tells_so(kind):
    vectors = np.array([[np.nan, 1], [-np.inf, 1], [2, 1]], dtype="float32")
    small = TokenEmbeddings(vectors, [0, 3]).to(kind).to("int8").to("numpy")
    assert np.array_equal(small.scales, np.array([np.nan, np.inf, 2 / 127], dtype="float32"), equal_nan=True)
    assert small.vectors[2].tolist() == [127, 64]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_int8_of_many_tokens_is_that_of_each(kind, dtype):
    vectors = torch.randn(2500, 8, generator=torch.manual_seed(0)).to(getattr(torch, dtype))
    if kind == "numpy":
        vectors = (vectors.float() if dtype == "bfloat16" else vectors).numpy()
    small = TokenEmbeddings(vectors, [0, 2500]).to("int8").to("numpy")
    for row, codes, scale in zip(vectors, small.vectors, small.scales, strict=True):
        numbers = np.array([float(x) for x in row], dtype="float32")
        assert scale == np.abs(numbers).max() / np.float32(127)
        assert codes.tolist() == np.round(numbers / scale).tolist()


def test_conversions_between_kinds_and_dtypes():
    packed = TokenEmbeddings.from_list(matrices([2, 1], "numpy"))
    assert packed.to("float32") is packed
    assert packed.to("cpu").is_torch
    assert packed.to("bfloat16").dtype == "bfloat16"
    assert packed.to(torch.float16).dtype == "float16"
    assert packed.to("torch").to("numpy") == packed
    assert packed.to("int8").to("float16").scales is None
    assert packed.to("bfloat16").to("numpy").dtype == "float32"  # numpy has no bfloat16


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
        (lambda: TokenEmbeddings(torch.zeros(3, 2), [0, 2]), "offsets from 0 to 2 for 3 tokens"),
        (lambda: TokenEmbeddings(torch.zeros(3, 2), [0, 2, 1, 3]), "expected non-decreasing offsets"),
        (lambda: TokenEmbeddings(torch.zeros(3, 2, dtype=torch.int8), [0, 3]), "int8 vectors need one float32 scale"),
        (
            lambda: TokenEmbeddings(torch.zeros(1, 2, dtype=torch.int8), [0, 1], torch.ones(2)),
            r"scales of shape \(2,\)",
        ),
        (lambda: TokenEmbeddings.from_padded(torch.zeros(2, 3, 4), torch.ones(2, 4)), r"a mask of shape \(2, 4\)"),
    ],
)
def test_what_does_not_fit_is_rejected(make, message):
    with pytest.raises((EmbeddingsError, InvalidArgumentError), match=message):
        make()


LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, LARGEST, -2, 5], f"from {LARGEST} to -2 at text 1; expected non-decreasing"),  # differences overflow
        (np.array([0, 2**64 - 3, 5], dtype="uint64"), "from 18446744073709551613 to 5 at text 1"),
        ([-5, 0, 5], "offsets from -5 to 5"),
    ],
)
def test_offsets_that_would_lead_elsewhere_are_rejected(offsets, message):
    for vectors in (np.ones((5, 8), dtype="float32"), torch.ones(5, 8)):
        with pytest.raises(EmbeddingsError, match=message):
            TokenEmbeddings(vectors, offsets)


def test_offsets_cannot_change_after_they_were_checked():
    given = np.array([0, 2, 5])
    packed = TokenEmbeddings(np.ones((5, 8), dtype="float32"), given)
    given[1] = 10**6
    assert packed.offsets.tolist() == [0, 2, 5]
    for embeddings in (packed, packed[:1], packed[[0]], pickle.loads(pickle.dumps(packed)), copy.deepcopy(packed)):
        with pytest.raises(ValueError, match="read-only"):
            embeddings.offsets[1] = 10**6
        for name in ("vectors", "offsets", "scales"):
            with pytest.raises(AttributeError, match=name):
                setattr(embeddings, name, np.zeros(0))
    assert pickle.loads(pickle.dumps(packed.to("int8"))) == packed.to("int8")


def test_scales_of_any_floating_type_are_kept_as_float32(kernel):
    packed = TokenEmbeddings.from_list(matrices([20, 3], "numpy"))
    coded = packed.to("int8")
    wanted = colbert_scores(packed[:1], coded).tolist()
    for scales in (coded.scales.astype("float64"), torch.from_numpy(coded.scales)):
        again = TokenEmbeddings(coded.vectors, coded.offsets, scales)
        assert (type(again.scales), again.scales.dtype) == (np.ndarray, np.float32)
        assert colbert_scores(packed[:1], again).tolist() == wanted
    half = TokenEmbeddings(torch.from_numpy(coded.vectors), coded.offsets, coded.scales.astype("float16"))
    assert half.scales.dtype == torch.float32
    np.testing.assert_allclose(colbert_scores(packed[:1], half), wanted, rtol=1e-3)


def test_vectors_are_scored_however_they_lie_in_memory(kernel, tmp_path):
    packed = TokenEmbeddings.from_list(matrices([20, 3], "numpy", dim=8))
    wanted = colbert_scores(packed[:1], packed).tolist()
    np.save(tmp_path / "vectors.npy", packed.vectors)
    wide = np.zeros((46, 24), dtype="float32")
    wide[::2, ::3] = packed.vectors
    frozen = packed.vectors.copy()
    frozen.flags.writeable = False
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    shifted = np.frombuffer(b"." + packed.vectors.tobytes(), dtype="uint8")[1:].view("float32").reshape(23, 8)
    for vectors in (np.asfortranarray(frozen), frozen, mapped, wide[::2, ::3], frozen[::-1].copy()[::-1], shifted):
        for form in (vectors, torch.from_numpy(np.array(vectors)).T.contiguous().T):
            assert colbert_scores(packed[:1], TokenEmbeddings(form, packed.offsets)).tolist() == wanted


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("", InvalidArgumentError, "is a folder; give a file"),
        ("missing", InvalidArgumentError, "there is no file '.*missing'"),
        ("half\ud800", InvalidArgumentError, r"there is no file '.*half\\ud800'"),
        ("n" * 300, StorageError, "cannot read .*nnn"),
    ],
)
def test_paths_without_a_file(tmp_path, name, error, message):
    with pytest.raises(error, match=message):
        TokenEmbeddings.load(tmp_path / name)
    if name != "missing":
        with pytest.raises(StorageError, match="could not write '"):
            TokenEmbeddings.from_list(matrices([2])).save(tmp_path / name)
    assert not list(tmp_path.iterdir())
    for path, received in (("", "''"), ("a\0", r"'a\\x00'")):
        for call in (TokenEmbeddings.load, TokenEmbeddings.from_list([[[1.0]]]).save):
            with pytest.raises(InvalidArgumentError, match=f"received {received} as path; give a "):
                call(path)


def test_foreign_and_damaged_files_are_rejected(tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, tmp_path / "foreign")
    with pytest.raises(EmbeddingsError, match=r"holds \['x'\]"):
        TokenEmbeddings.load(tmp_path / "foreign")
    path = tmp_path / "cut"
    TokenEmbeddings(torch.zeros(100, 2), [0, 100]).save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(EmbeddingsError, match="is not a complete safetensors file"):
        TokenEmbeddings.load(path)
    metadata = {"latelier": "TokenEmbeddings", "version": "99", "kind": "torch"}
    save_file({"vectors": torch.zeros(1, 2), "offsets": torch.tensor([0, 1])}, tmp_path / "newer", metadata=metadata)
    with pytest.raises(EmbeddingsError, match="has format version 99"):
        TokenEmbeddings.load(tmp_path / "newer")


OURS = {"latelier": "TokenEmbeddings", "version": "1", "kind": "numpy"}
VECTORS, OFFSETS = torch.ones(5, 8), torch.tensor([0, 5])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"vectors": VECTORS}, "is damaged: 'offsets'"),
        ({"vectors": VECTORS, "offsets": torch.tensor([0, LARGEST, 5])}, "is damaged: .* expected non-decreasing"),
        ({"vectors": VECTORS[0], "offsets": OFFSETS}, "is damaged: received vectors of type Tensor and shape"),
        ({"vectors": VECTORS, "offsets": OFFSETS, "scales": torch.ones(5)}, "no other dtype takes scales"),
        ({"vectors": VECTORS.to(torch.int8), "offsets": OFFSETS}, "int8 vectors need one float32 scale"),
        ({"vectors": VECTORS.to(torch.int8), "offsets": OFFSETS, "scales": torch.tensor(1.0)}, r"scales of shape \(\)"),
    ],
)
def test_files_of_wrong_tensors_are_rejected(tmp_path, tensors, message):
    from safetensors.torch import save_file

    save_file(tensors, tmp_path / "wrong", metadata=OURS)
    with pytest.raises(EmbeddingsError, match=message):
        TokenEmbeddings.load(tmp_path / "wrong")


def described(shape):
    vectors = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    offsets = {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}
    return json.dumps({"__metadata__": OURS, "vectors": vectors, "offsets": offsets}).encode()


@pytest.mark.parametrize(
    ("header", "length"),
    [
        (b"", None),
        (b"{", 2**63),
        (b"[" * 100_000, None),
        (described([0, 2**62]), None),
        (described([2**62, 0]), None),
        (described([2**33, 2**33]), None),
    ],
)
def test_files_of_hostile_headers_are_rejected(tmp_path, header, length):
    length = len(header) if length is None else length
    (tmp_path / "hostile").write_bytes(struct.pack("<Q", length) + header + struct.pack("<qq", 0, 2**62))
    with pytest.raises(EmbeddingsError, match=r"hostile is (damaged|not a complete safetensors file): "):
        TokenEmbeddings.load(tmp_path / "hostile")
