"""Which numbers encoding computes in and returns, in batches, as a stream and by worker processes."""

import threading
from itertools import count, islice

import numpy as np
import pytest
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT

pytestmark = pytest.mark.processor

TEXTS = ["pear", "a longer text, which says more about pears!", "", *(f"number {i} of many" for i in range(9))]


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr("latelier.models.encoding.WINDOW", 4)


def assert_close(found, expected, rtol=1e-4, atol=1e-5):
    for row, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(row), torch.as_tensor(exact), rtol=rtol, atol=atol)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_precision_of_lists_packed_and_arrays(fresh, precision):
    dtype = getattr(torch, precision)
    exact = fresh.encode_document(TEXTS)
    rows = fresh.encode_document(TEXTS, precision=precision)
    assert all(torch.equal(row, expected.to(dtype)) for row, expected in zip(rows, exact, strict=True))
    packed = fresh.encode_document(TEXTS, precision=precision, packed=True)
    assert packed == TokenEmbeddings.from_list(rows)
    assert torch.equal(fresh.encode_document(TEXTS[1], precision=precision), rows[1])
    if precision != "bfloat16":
        arrays = fresh.encode_document(TEXTS, precision=precision, convert_to_numpy=True)
        assert all(isinstance(a, np.ndarray) and np.array_equal(a, r) for a, r in zip(arrays, rows, strict=True))


def test_bfloat16_stays_close_and_of_length_one(fresh, dense):
    for model in (fresh, dense):
        rows, exact = (torch.cat(model.encode_document(TEXTS, compute_dtype=d)) for d in ("bfloat16", "float32"))
        assert 0.999 < torch.cosine_similarity(rows, exact).min() < 1 - 1e-7
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)))
        assert rows.dtype == torch.float32


@pytest.mark.parametrize("weights", ["float16", "bfloat16", "float64"])
def test_weights_in_another_dtype(tiny, weights):
    model = ColBERT.from_dense(tiny, device="cpu").to(getattr(torch, weights))
    for dtype in {"float32", "bfloat16", "float16"} - {weights}:
        with pytest.raises(InvalidArgumentError, match=f"weights are {weights}; .*model.float"):
            model.encode_document(TEXTS, compute_dtype=dtype)
        with pytest.raises(InvalidArgumentError, match=f"weights are {weights}"):
            next(model.encode_stream(TEXTS, compute_dtype=dtype))
    exact = ColBERT.from_dense(tiny, device="cpu").encode_document(TEXTS)
    assert_close((row.float() for row in model.encode_document(TEXTS)), exact, rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("is_fast", "least_cosine", "computed"), [(True, 0.9, "bfloat16"), (False, 0.9, "float32"), (True, 1.01, "float32")]
)
def test_long_work_is_in_bfloat16_where_it_is_fast_and_close(fresh, monkeypatch, is_fast, least_cosine, computed):
    short = fresh.encode_document(TEXTS, packed=True)
    assert short == fresh.encode_document(TEXTS, compute_dtype="float32", packed=True)
    monkeypatch.setattr("latelier.models.encoding.LONG_WORK", 20)
    monkeypatch.setattr("latelier.models.encoding.prefers_bfloat16", lambda *_: is_fast)
    monkeypatch.setattr("latelier.models.engines._LEAST_COSINE", least_cosine)
    found = fresh.encode_document(TEXTS, packed=True)
    assert found == fresh.encode_document(TEXTS, compute_dtype=computed, packed=True)
    assert (found == short) == (computed == "float32")


def test_truncated_vectors_are_the_first_numbers_at_length_one(fresh, small_windows):
    expected = [torch.nn.functional.normalize(rows[:, :5], dim=1) for rows in fresh.encode_document(TEXTS)]
    for options in ({}, {"normalize_embeddings": True}):  # the second one is encoded by sentence-transformers
        assert_close(fresh.encode_document(TEXTS, truncate_dim=5, **options), expected)
    assert_close(TokenEmbeddings.concatenate(fresh.encode_stream(TEXTS, truncate_dim=5, packed=True)), expected)
    assert fresh.encode_document([], packed=True, truncate_dim=5).dim == 5


def test_windows_and_batches_come_back_in_order(dense, small_windows):
    texts = [*TEXTS, *(" ".join(["pear"] * n) for n in (40, 3, 200, 7))]
    expected = [dense.encode_document(text) for text in texts]
    for options in ({}, {"batch_size": 1}, {"batch_size": 64}):
        assert_close(dense.encode_document(texts, **options), expected)
        packed = dense.encode_document(texts, packed=True, **options)
        assert packed.lengths.tolist() == [len(exact) for exact in expected]
        assert_close(packed, expected)


def test_a_stream_equals_encode(fresh, small_windows):
    expected = fresh.encode_document(TEXTS)
    rows = list(fresh.encode_stream(iter(TEXTS)))
    assert all(torch.equal(row, exact) for row, exact in zip(rows, expected, strict=True))
    assert all(row.untyped_storage().nbytes() == row.nbytes for row in rows)
    queries = list(fresh.encode_stream(TEXTS, is_query=True))
    assert torch.equal(torch.stack(queries), torch.stack(fresh.encode_query(TEXTS)))
    for options in ({"precision": "int8"}, {"precision": "float16", "pool_factor": 2}):
        parts = list(fresh.encode_stream(TEXTS, packed=True, **options))
        assert [len(part) for part in parts] == [4, 4, 4]
        assert TokenEmbeddings.concatenate(parts) == fresh.encode_document(TEXTS, packed=True, **options)


def test_a_stream_reads_a_window_ahead_and_in_the_callers_thread(dense, small_windows):
    read = []

    def endless():
        for i in count():
            read.append(threading.get_ident())
            yield f"number {i}"

    stream = dense.encode_stream(endless())
    assert read == []
    assert len(list(islice(stream, 6))) == 6
    assert 6 <= len(read) <= 16
    assert set(read) == {threading.get_ident()}
    stream.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_autocast_that_a_trainer_leaves_on_a_model_decides_nothing(tiny, dtype):
    """Trainers of mixed precision wrap the model's forward by accelerate, and leave it so."""
    accelerate = pytest.importorskip("accelerate")
    model = ColBERT(tiny, embedding_size=16, device="cpu")
    expected = model.encode_document(TEXTS, compute_dtype=dtype)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    try:
        assert accelerator.prepare(model) is model
        rounded = model(model.tokenize(TEXTS, is_query=False))["token_embeddings"]
        assert not torch.equal(rounded[0, : len(expected[0])], expected[0])
        assert_close(model.encode_document(TEXTS, compute_dtype=dtype), expected, rtol=0, atol=0)
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


AVAILABLE = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


@pytest.mark.parametrize("device", AVAILABLE)
def test_scores_and_embeddings_on(device, shallow):
    if not AVAILABLE[device]:
        pytest.skip(f"this machine has no {device}")
    model = ColBERT(shallow, device=device)
    assert model.encode_query(TEXTS)[0].device.type == device
    scores = model.scores(TEXTS[:2], TEXTS[1:3], tqdm_bar=False)
    assert (model.device.type, scores.device.type) == (device, device)
    expected = ColBERT(shallow, device="cpu").scores(TEXTS[:2], TEXTS[1:3], tqdm_bar=False)
    torch.testing.assert_close(scores.cpu(), expected, rtol=1e-3, atol=1e-2)
