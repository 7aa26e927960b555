"""Fused scoring against the double loop: on a GPU where there is one, and on the CPU by Triton's interpreter."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.scores import colbert_kd_scores, colbert_scores, colbert_scores_pairwise, cuda
from latelier.scores.colbert import choose_engine
from latelier.scores.inputs import read_sides
from naive import naive_matrix, naive_tensor_maxsim, ragged

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NEEDS_TRITON = "triton is not installed"
FUNCTIONS = [colbert_scores, colbert_kd_scores, colbert_scores_pairwise]
# Vectors that a program keeps on the chip, and wider ones that it reads in steps.
KINDS = [(torch.float32, 8), (torch.float32, 140), (torch.float16, 16), (torch.bfloat16, 48), (torch.float16, 300)]
# Inputs are rounded before either side sees them; gradients come out in their dtype.
GRADIENT_TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if not cuda.is_installed():
        pytest.skip(NEEDS_TRITON)
    if request.param == "cuda" and (INTERPRETED or not torch.cuda.is_available()):
        pytest.skip("there is no CUDA device")
    if request.param == "cpu":
        if not INTERPRETED:
            pytest.skip("runs in test_the_same_by_the_interpreter")
        monkeypatch.setattr(cuda.FusedEngine, "unfit", lambda *sides: None)
    return request.param


@pytest.fixture(params=KINDS, ids=lambda kind: f"{str(kind[0]).removeprefix('torch.')}-{kind[1]}")
def kind(request, device):
    if device == "cpu" and request.param[0] == torch.bfloat16:
        pytest.skip("Triton's interpreter does not multiply bfloat16")
    return request.param


def score(function, queries, documents, device, **masks):
    queries, documents = (
        TokenEmbeddings.from_list(side) if isinstance(side, list) else side for side in (queries, documents)
    )
    masks = {name: mask.to(device) for name, mask in masks.items()}
    scores = function(queries.to(device), documents.to(device), **masks, backend="fused")
    assert scores.dtype == torch.float32
    assert scores.device.type == device
    return scores


def check_scores(scores, expected, tolerance=2e-5):
    np.testing.assert_allclose(scores.detach().cpu().numpy(), expected, rtol=tolerance, atol=tolerance)


def test_all_pairs_equal_the_double_loop(kind, device):
    dtype, dim = kind
    # Longer than a tile, of one token, and empty.
    queries = ragged([5, 1, 40, 0], dim, seed=1, dtype=dtype)
    documents = ragged([7, 1, 70, 2], dim, seed=2, dtype=dtype)
    scores = score(colbert_scores, queries, documents, device)
    check_scores(scores, naive_matrix(queries, documents), tolerance=1e-4)  # sums of 40 maxima, of size 1,000


@pytest.mark.parametrize("function", FUNCTIONS)
def test_masks_with_holes_and_gradients(function, kind, device):
    dtype, dim = kind
    shape = (3, 2, 9, dim) if function is colbert_kd_scores else (3, 9, dim)

    def inputs(device="cpu"):
        generator = torch.Generator().manual_seed(0)
        sides = [torch.randn(*size, generator=generator).to(dtype) for size in ((3, 6, dim), shape)]
        masks = [torch.rand(side.shape[:-1], generator=generator) > 0.4 for side in sides]
        masks[1][..., 4] = True
        return [side.to(device).requires_grad_() for side in sides], masks

    (queries, documents), (queries_mask, documents_mask) = inputs(device)
    scores = score(function, queries, documents, device, queries_mask=queries_mask, documents_mask=documents_mask)
    weights = torch.linspace(-1, 1, scores.numel()).view(scores.shape)
    (scores * weights.to(device)).sum().backward()

    (naive_queries, naive_documents), _ = inputs()
    left = [q[m].double() for q, m in zip(naive_queries, queries_mask, strict=True)]
    flat = zip(naive_documents.flatten(0, -3), documents_mask.flatten(0, -2), strict=True)
    right = [d[m].double() for d, m in flat]
    if function is colbert_scores:
        pairs = [(q, d) for q in left for d in right]
    else:
        pairs = [(left[i * 3 // len(right)], d) for i, d in enumerate(right)]
    naive = torch.stack([naive_tensor_maxsim(q, d) for q, d in pairs]).view(scores.shape)
    (naive * weights).sum().backward()

    check_scores(scores, naive.detach(), tolerance=5e-5)
    for ours, theirs in ((queries, naive_queries), (documents, naive_documents)):
        assert ours.grad.dtype == dtype
        tolerance = GRADIENT_TOLERANCE[dtype]
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=tolerance, atol=tolerance)
    assert (documents.grad.cpu()[~documents_mask] == 0).all()


def test_negative_similarities_are_not_beaten_by_padding(kind, device):
    dtype, dim = kind
    queries = ragged([3, 2], dim, dtype=dtype, shift=4.0)
    documents = ragged([2, 5], dim, seed=9, dtype=dtype, shift=-4.0)
    expected = naive_matrix(queries, documents)
    assert (expected < 0).all()
    (q, qm), (d, dm) = (TokenEmbeddings.from_list(side).pad() for side in (queries, documents))
    check_scores(score(colbert_scores, q, d, device, queries_mask=qm, documents_mask=dm), expected, tolerance=1e-4)


def test_empty_documents_score_minus_infinity_and_empty_queries_zero(kind, device):
    dtype, dim = kind
    queries, documents = ragged([2, 0], dim, dtype=dtype), ragged([0, 3], dim, seed=1, dtype=dtype)
    leaves = [[m.to(device).requires_grad_() for m in side] for side in (queries, documents)]
    scores = score(colbert_scores, *leaves, device)
    assert scores[:, 0].tolist() == [-np.inf, -np.inf]
    check_scores(scores[:, 1], naive_matrix(queries, documents)[:, 1])
    scores[0].softmax(0)[1].log().backward()
    assert torch.isfinite(leaves[0][0].grad).all()
    grouped = score(colbert_kd_scores, queries, documents * 2, device)
    assert grouped[:, 0].tolist() == [-np.inf, -np.inf]
    check_scores(grouped[:, 1], [naive_matrix(queries, documents)[0, 1], 0])


def test_nothing_to_score(device):
    documents = TokenEmbeddings.from_list(ragged([2, 3]))
    none = TokenEmbeddings(torch.zeros(0, 8), [0])
    assert score(colbert_scores, none, documents, device).shape == (0, 2)
    assert score(colbert_scores, documents, none, device).shape == (2, 0)
    no_tokens = TokenEmbeddings(torch.zeros(0, 8, requires_grad=True), [0, 0, 0])
    assert score(colbert_scores, documents, no_tokens, device).tolist() == [[-np.inf] * 2] * 2
    scores = score(colbert_scores, no_tokens, documents, device)
    assert scores.tolist() == [[0, 0], [0, 0]]
    scores.sum().backward()
    assert no_tokens.vectors.grad.shape == (0, 8)


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
def test_mixed_dtypes_and_int8(device):
    queries = ragged([3, 2])
    half = ragged([4, 2], seed=1, dtype=torch.float16)
    check_scores(score(colbert_scores, queries, half, device), naive_matrix(queries, half))
    small = TokenEmbeddings.from_list(half).to("int8")
    small.offsets.setflags(write=False)  # as those of a memory map
    check_scores(score(colbert_scores, queries, small, device), naive_matrix(queries, list(small)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_best_token_receives_the_gradient_and_the_first_of_equal_ones(device, dtype):
    documents = torch.ones(2, 150, 16, dtype=dtype)
    documents[1, [90, 140]] = 2.0
    documents = documents.to(device).requires_grad_()
    score(colbert_scores, torch.ones(1, 2, 16, dtype=dtype), documents, device).sum().backward()
    assert documents.grad.sum(dim=2).nonzero().tolist() == [[0, 0], [1, 90]]
    assert documents.grad[1, 90].tolist() == [2.0] * 16


def test_autocast_decides_the_precision_as_for_a_matrix_product(device):
    queries, documents = (torch.randn(2, n, 16, device=device, requires_grad=True) for n in (3, 5))
    with torch.autocast(device, torch.float16):
        scores = score(colbert_scores, queries, documents, device)
    assert torch.equal(scores, score(colbert_scores, queries.half(), documents.half(), device))
    assert not torch.equal(scores, score(colbert_scores, queries, documents, device))
    scores.sum().backward()
    assert queries.grad.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED or not cuda.is_installed(), reason=NEEDS_TRITON)
def test_the_same_by_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cpu", __file__]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 20


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed")
def test_the_kernels_compile_for_gpus():
    # As launching does, but without a GPU; in a new process, since this one may have kernels for the interpreter.
    code = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from latelier.scores import triton_kernels as kernels

class Compiler:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 80, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

driver.set_active(Compiler())
scores, positions = torch.zeros(1, 1), torch.zeros(1, 128, dtype=torch.int32)
texts, mask = torch.zeros(2, dtype=torch.int64), torch.zeros(8, dtype=torch.uint8)
done = []
for dtype, dim in ((torch.float32, 128), (torch.bfloat16, 128), (torch.bfloat16, 384)):
    vectors = torch.zeros(8, dim, dtype=dtype)
    packed, padded = (vectors, texts, None, 7, 9), (vectors, None, mask, 7, 9)
    for sides, share, step, places in ((packed * 2, 7, 0, None), (padded * 2, 2, 2, positions)):
        tile = kernels._tile(256, dim, dtype.itemsize, vectors.device, positions=places is not None)
        numbers = (share, step, 1, 16, dim, 32, *tile[:3], 256)
        options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages, "precision": "tf32x3"}
        done.append(kernels._forward.warmup(*sides, scores, places, *numbers, **options, grid=(1,)))
        outputs = (scores, positions, scores, scores)
        numbers = (share, step, 32, 128, dim, 32, 16, 128)
        done.append(kernels._backward.warmup(*sides, *outputs, *numbers, grid=(1, 1, 1)))
for kernel in done:
    print(len(kernel.asm["cubin"]) > 0, kernel.metadata.shared <= 99 << 10)
"""
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    # Every GPU of compute capability 8.0 or later has 99 KiB of shared memory.
    assert done.stdout.split() == ["True", "True"] * 12, done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_auto_takes_it_where_it_fits():
    def chosen(dtype=torch.float32, device="cuda", backend="auto", gradient=False):
        tensors = torch.randn(2, 3, 16, dtype=dtype, device=device, requires_grad=gradient)
        return choose_engine(backend, *read_sides(tensors, tensors, None, None)).name

    if not cuda.is_installed():
        pytest.skip(NEEDS_TRITON)
    assert [chosen(), chosen(torch.bfloat16, gradient=True)] == ["fused", "fused"]
    assert [chosen(torch.float64), chosen(device="cpu")] == ["torch", "packed"]
    with pytest.raises(InvalidArgumentError, match="'fused' takes float32, float16"):
        chosen(torch.float64, backend="fused")
    torch.use_deterministic_algorithms(True)
    try:
        assert [chosen(gradient=True), chosen()] == ["torch", "fused"]
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_training_batch_fits_where_its_similarities_would_not(device, dtype):
    if device == "cpu":
        pytest.skip("memory is measured on a GPU")
    queries, documents = (torch.randn(128, n, 128, device=device, dtype=dtype, requires_grad=True) for n in (32, 256))
    score(colbert_scores, queries, documents, device).sum().backward()  # compiles and tunes
    queries.grad = documents.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    score(colbert_scores, queries, documents, device).sum().backward()
    inputs = (queries.numel() + documents.numel()) * 4
    # All similarities would be 128 * 32 * 128 * 256 * 4 bytes = 512 MiB; a few copies of the inputs are 17 MiB each.
    assert torch.cuda.max_memory_allocated() - before < 8 * inputs < 512 << 20
