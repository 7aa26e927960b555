"""IVF on a device: the same hits as exact search on the CPU, and kernels that compute what torch does."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from ivf_helpers import EARLY, collection, recall

from latelier import indexes
from latelier.embeddings import TokenEmbeddings
from latelier.indexes.ivf import gpu
from latelier.indexes.ivf.codec import Codec
from latelier.indexes.store.segments import Part, Segment

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if not find_spec("triton"):
        pytest.skip("triton is not installed")
    if request.param == "cuda" and (INTERPRETED or not torch.cuda.is_available()):
        pytest.skip("there is no CUDA device")
    if request.param == "cpu" and not INTERPRETED:
        pytest.skip("runs in test_the_same_by_the_interpreter")
    return request.param


def texts(lengths, dim, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(40, dim))
    rows = [centers[rng.choice(40, n)] + 0.7 * rng.normal(size=(n, dim)) for n in lengths]
    return [(each / np.linalg.norm(each, axis=1, keepdims=True)).astype("float32") for each in rows]


def near(documents, lengths, seed=1):
    """Return queries of some tokens of some documents, with noise."""
    rng = np.random.default_rng(seed)
    found = []
    for n in lengths:
        rows = documents[rng.choice([i for i, each in enumerate(documents) if len(each)])]
        rows = rows[rng.choice(len(rows), n)]
        found.append((rows + 0.05 * rng.normal(size=rows.shape)).astype("float32"))
    return found


def coded(bits, dim, lengths, device):
    """Return codes of texts on a device, their codec, and prepared queries of 3, 40 and 16 tokens."""
    documents = texts(lengths, dim)
    vectors = np.concatenate(documents)
    codec = Codec(bits, dim)
    if codec.has_cells:
        codec = Codec(bits, dim, codebook=codec.choose_codebook(vectors))
    packed = TokenEmbeddings.from_list(documents)
    numbers = np.arange(len(lengths))
    part = Part(Segment.build(numbers, numbers.tolist(), lengths, codec.encode(packed)), numbers)
    table = gpu.DocumentTable([part], codec, np.zeros(0, "int64"))
    scope = gpu.Scope(table, None, np.zeros(0, "uint8"), numbers)
    held = gpu.CodedSearch(torch.device(device))._load(scope)
    queries = TokenEmbeddings.from_list(near(documents, [3, 40, 16])).to(device)
    return held.codes, codec, gpu._prepare(held, codec, queries)


@pytest.mark.parametrize(("bits", "dim"), [(8, 40), (4, 128), (2, 128), (2, 96), (1, 64), (4, 200)])
def test_the_kernel_scores_as_torch_does(bits, dim, device):
    from latelier.indexes.ivf.kernels import triton

    codes, codec, queries = coded(bits, dim, [5, 0, 70, 1, 130, 9, 2, 3, 4, 5, 6], device)
    own = torch.tensor([[0, 1, 4], [10, 2, 2], [3, 4, 1]], device=device)
    for documents in (torch.arange(11, device=device), own):
        for rounded in (False, True):
            found = triton.score_codes(codes, codec.shape, queries, documents, rounded=rounded).cpu()
            on_cpu = [type(each)(*(t.cpu() for t in each)) for each in (codes, queries)]
            expected = gpu._score(on_cpu[0], codec, on_cpu[1], documents.cpu(), rounded=rounded)
            torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize(("bits", "dim"), [(8, 40), (4, 128), (2, 96), (1, 200)])
def test_the_kernel_decodes_as_torch_does(bits, dim, device):
    from latelier.indexes.ivf.kernels import triton

    codes, codec, _ = coded(bits, dim, [5, 0, 70, 1, 130], device)
    rows = torch.tensor([*range(100), 205, 3], device=device)
    found = torch.zeros(len(rows), 32 * -(-dim // 32) + 16, dtype=torch.float16, device=device)
    expected = found.cpu()
    triton.write_decoded(codes, codec.shape, rows, 0.5, found)
    gpu._write_decoded(type(codes)(*(each.cpu() for each in codes)), codec, rows.cpu(), 0.5, expected)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-6)


def test_the_best_list_of_a_token_adds_to_the_sum_of_a_document(device):
    from latelier.indexes.ivf.kernels import triton

    rng = np.random.default_rng(3)
    sizes = rng.integers(0, 300, 20)
    offsets = torch.tensor([0, *np.cumsum(sizes)])
    entries = torch.tensor(np.concatenate([np.sort(rng.choice(400, n, replace=False)) for n in sizes])).int()
    lists = torch.tensor(np.stack([rng.choice(20, (32, 5)), rng.choice(20, (32, 5))])).int()
    lists[1, 7:] = -1
    excess = torch.tensor(-np.sort(-rng.integers(0, 99, (2, 32, 5)), axis=2)).int()
    both = []
    for add, place in ((gpu._add, "cpu"), (triton.add_imputed, device)):
        words = torch.zeros(2, 400, 2, dtype=torch.int32, device=place)
        add(*(each.to(place) for each in (lists, excess, offsets, entries)), words)
        both.append(words[:, :, 1].cpu())
    assert both[0].max() > 99
    assert torch.equal(*both)


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED or not find_spec("triton"), reason="triton is not installed")
def test_the_same_by_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cpu", __file__]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) == 11


@pytest.mark.skipif(INTERPRETED, reason="no kernel of triton")
@pytest.mark.parametrize("nbits", [8, 4, 2, 1])
def test_all_documents_are_scored_as_on_the_cpu(nbits):
    documents = texts(np.random.default_rng(1).integers(1, 9, 300), 24)
    index = indexes.IVF(nbits=nbits)
    index.add(range(300), documents, metadata=[{"n": i} for i in range(300)])
    index.remove([3, 77])
    queries = near(documents, [1, 5, 20])
    exact = index.search(queries, 7, effort="exact")
    narrow = index.search(queries, 7, effort="exact", filter="n % 9 = 1")
    index._gpu = gpu.CodedSearch(torch.device("cpu"), queries_at_once=2)
    for wanted, found in ((exact, index.search(queries, 7)), (narrow, index.search(queries, 7, filter="n % 9 = 1"))):
        assert [[hit.id for hit in row] for row in found] == [[hit.id for hit in row] for row in wanted]
        for row, own in zip(wanted, found, strict=True):
            np.testing.assert_allclose([h.score for h in own], [h.score for h in row], rtol=2e-6, atol=2e-6)
    many = near(documents, [1, 5, 20, *[10] * 30])  # so many that documents are decoded once for all of them
    wanted = index.search(many, 7, effort="exact", filter="n % 9 < 6")
    index._gpu = gpu.CodedSearch(torch.device("cpu"))
    for row, own in zip(wanted, index.search(many, 7, filter="n % 9 < 6"), strict=True):
        np.testing.assert_allclose([h.score for h in own], [h.score for h in row], rtol=2e-6, atol=2e-6)
        assert [hit.id for hit in own] == [hit.id for hit in row]
    index.update(int(exact[0][0].id), documents[5])
    index.add("new", queries[0])
    assert index.search(queries[0], 1)[0][0].id == "new"
    assert index.search(queries[0], 400)[0][-1].score > -np.inf


@pytest.mark.skipif(INTERPRETED, reason="no kernel of triton")
def test_lists_find_what_scoring_all_documents_finds(monkeypatch):
    monkeypatch.setattr(indexes.IVF, "_thresholds", EARLY)
    documents, queries = collection(300)
    index = indexes.IVF(nbits=2)
    index.add(range(295), documents[:295], metadata=[{"n": i % 2} for i in range(295)])
    index.add(range(295, 300), documents[295:], metadata=[{"n": i % 2} for i in range(295, 300)])
    index.remove([25, 8])
    assert 0 < index._load(index._storage.snapshot())[0].listed < 300
    index._gpu = gpu.CodedSearch(torch.device("cpu"), queries_at_once=4, scanned=0)
    scored = []
    score = gpu._score

    def counted(codes, codec, asked, chosen, *, rounded):
        scored.append(chosen.shape[-1])
        return score(codes, codec, asked, chosen, rounded=rounded)

    monkeypatch.setattr(gpu, "_score", counted)
    found = index.search(queries[:8], 5, candidates=60, nprobe=24)
    assert max(scored) <= 60 + 5
    assert not {hit.id for row in found for hit in row} & {25, 8}
    assert recall(index, queries[:8], 5, candidates=60, nprobe=24) > 0.85
    assert recall(index, queries[:8], 5, candidates=60, nprobe=24, filter="n = 1") > 0.85
    assert recall(index, queries[:8], 5, candidates=1, nprobe=1) < 0.9
