"""Encoding without padding: the same vectors as with it. On a CPU, a loop over the texts stands in for the kernel."""

import logging
import sys

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from latelier.embeddings import TokenEmbeddings
from latelier.models import ColBERT, encoding, engines, gpu

LENGTHS = [7, 1, 90, 33, 0, 12, 60, 2, 45, 5]
TEXTS = [" ".join(f"word {i}, and more!" for i in range(n // 5 + 1)) if n else "" for n in LENGTHS]


def attend_in_a_loop(query, key, value, offsets, key_offsets, longest, longest_key, *, scale, window_size):
    assert torch.equal(offsets, key_offsets)
    assert longest == longest_key == offsets.diff().max()
    reach = window_size[0] if window_size[0] >= 0 else longest
    attended = []
    for begin, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        places = torch.arange(end - begin)
        mask = (places[:, None] - places).abs() <= reach
        rows = [states[begin:end].transpose(0, 1) for states in (query, key, value)]
        attended.append(scaled_dot_product_attention(*rows, attn_mask=mask, scale=scale).transpose(0, 1))
    return torch.cat(attended)


@pytest.fixture
def on_a_cpu(monkeypatch):
    packings = []
    encode = gpu.encode_unpadded

    def count(*args):
        batch = encode(*args)
        packings.append(batch)
        return batch

    monkeypatch.setattr(gpu, "_has_kernel", lambda *_: True)
    monkeypatch.setattr(gpu, "varlen_kernel", lambda: attend_in_a_loop)
    monkeypatch.setattr(encoding, "encode_unpadded", count)
    return packings


def padded(model, texts, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "ENGINES", [each for each in engines.ENGINES if not each.is_packed])
        return model.encode_document(texts, packed=True, **options)


class TestEqualsPadding:
    def test_documents(self, encoder_folder, on_a_cpu):
        model = ColBERT(encoder_folder, 16, "cpu")  # with markers and a skiplist
        found = model.encode_document(TEXTS, packed=True)
        takes_kernels = hasattr(sys.modules[type(model[0].model).__module__], "ALL_ATTENTION_FUNCTIONS")
        assert bool(on_a_cpu) == takes_kernels  # all, with transformers later than 5.0
        expected = padded(model, TEXTS)
        assert found.lengths.tolist() == expected.lengths.tolist()
        torch.testing.assert_close(found.vectors, expected.vectors, rtol=1e-4, atol=1e-5)
        assert model[0].model.config._attn_implementation == "sdpa"

    @pytest.mark.parametrize(
        "options", [{"truncate_dim": 5}, {"pool_factor": 2}, {"precision": "float16"}, {"batch_size": 1}]
    )
    def test_options(self, bert, on_a_cpu, monkeypatch, options):
        monkeypatch.setattr(encoding, "_GPU_TOKENS", 16)
        model = ColBERT(bert, 16, "cpu", max_length_document=40)
        found = model.encode_document(TEXTS, packed=True, **options)
        assert on_a_cpu
        expected = padded(model, TEXTS, **options)
        assert found.lengths.tolist() == expected.lengths.tolist()
        torch.testing.assert_close(found.vectors, expected.vectors, rtol=1e-3, atol=1e-3)
        if "batch_size" in options:
            assert len(on_a_cpu) > 1

    def test_windows_and_streams(self, bert, on_a_cpu, monkeypatch):
        monkeypatch.setattr(encoding, "WINDOW", 4)
        model = ColBERT(bert, 16, "cpu")
        expected = padded(model, TEXTS)
        found = TokenEmbeddings.concatenate(model.encode_stream(TEXTS, packed=True))
        assert len(on_a_cpu) == 3
        torch.testing.assert_close(found.vectors, expected.vectors, rtol=1e-4, atol=1e-5)
        arrays = model.encode_document(TEXTS, convert_to_numpy=True)
        np.testing.assert_allclose(np.concatenate(arrays), expected.vectors.numpy(), rtol=1e-4, atol=1e-5)


class TestStaysPadded:
    @pytest.mark.parametrize("task", ["query", "document"])
    def test_expanded_queries_one_text_and_recorded_attention(self, bert, on_a_cpu, task):
        model = ColBERT(bert, 16, "cpu")
        if task == "query":
            model.encode_query(TEXTS)
        model.encode(TEXTS[0], task=task)
        model.encode_document(TEXTS, packed=True, num_vectors=4, pool_method="attention-ward")
        assert not on_a_cpu

    def test_models_that_pool_or_are_watched(self, bert, on_a_cpu):
        model = ColBERT.from_dense(bert, device="cpu")
        model[0].register_forward_hook(lambda *_: None)
        model.encode_document(TEXTS)
        compressed = ColBERT.from_dense(bert, device="cpu")
        compressed.compress_documents(num_vectors=4)
        compressed.encode_document(TEXTS)
        padded(ColBERT.from_dense(bert, device="cpu"), TEXTS)
        assert not on_a_cpu

    def test_where_the_vectors_differ(self, bert, on_a_cpu, monkeypatch, caplog):
        monkeypatch.setattr(gpu, "varlen_kernel", lambda: lambda query, *_, **__: -query)
        model = ColBERT.from_dense(bert, device="cpu")
        with caplog.at_level(logging.WARNING):
            found = model.encode_document(TEXTS, packed=True)
        assert not on_a_cpu
        assert "so its batches are padded" in caplog.text
        torch.testing.assert_close(found.vectors, padded(model, TEXTS).vectors)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnGpu:
    @pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
    def test_half_weights(self, encoder_folder, half, monkeypatch):
        model = ColBERT(encoder_folder, 16, "cuda").to(half)
        batches = []
        encode = encoding.encode_unpadded
        monkeypatch.setattr(encoding, "encode_unpadded", lambda *args: batches.append(1) or encode(*args))
        found = model.encode_document(TEXTS, packed=True)
        assert batches
        expected = padded(model, TEXTS)
        assert found.device.type == "cuda"
        assert found.lengths.tolist() == expected.lengths.tolist()
        cosines = torch.cosine_similarity(found.vectors.float(), expected.vectors.float(), dim=1)
        assert cosines.min() > 0.99
        assert cosines.mean() > 0.999

    def test_autocast_stays_close_to_float32(self, encoder_folder):
        model = ColBERT(encoder_folder, 16, "cuda")
        exact = model.encode_document(TEXTS, packed=True, compute_dtype="float32")
        found = model.encode_document(TEXTS, packed=True, compute_dtype="bfloat16")
        assert found.dtype == "float32"
        assert torch.cosine_similarity(found.vectors, exact.vectors, dim=1).mean() > 0.99
        torch.testing.assert_close(found.vectors.norm(dim=1), torch.ones(found.num_tokens, device="cuda"))

    def test_streams_come_back_in_order_in_host_memory(self, bert, monkeypatch):
        monkeypatch.setattr(encoding, "WINDOW", 3)
        model = ColBERT(bert, 16, "cuda").to(torch.bfloat16)
        expected = model.encode_document(TEXTS, packed=True).to("cpu")
        for precision in ("float16", "int8"):
            parts = list(model.encode_stream(TEXTS, packed=True, precision=precision))
            found = TokenEmbeddings.concatenate(parts)
            assert found.device.type == "cpu"
            assert not found.vectors.is_pinned()
            rows = found.to("float32").vectors
            torch.testing.assert_close(rows, expected.vectors.float(), rtol=0, atol=0.03)
        arrays = model.encode_document(TEXTS, convert_to_numpy=True)
        np.testing.assert_allclose(np.concatenate(arrays), expected.vectors.float().numpy(), rtol=0, atol=0.03)
