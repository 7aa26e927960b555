"""Which numbers encoding computes in and returns, and encoding as a stream."""

import logging
import threading
from functools import partial
from itertools import count, islice

import numpy as np
import pytest
import torch

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT, encoding

pytestmark = pytest.mark.processor

TEXTS = ["pear", "a longer text, which says more about pears!", "", *(f"number {i} of many" for i in range(9))]


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(encoding, "WINDOW", 4)


def least_cosine(computed, exact):
    return min(
        torch.cosine_similarity(rows, expected, dim=-1).min().item()
        for rows, expected in zip(computed, exact, strict=True)
    )


class TestPrecision:
    @pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
    def test_lists_and_packed(self, fresh, precision):
        dtype = getattr(torch, precision)
        exact = fresh.encode_document(TEXTS)
        rows = fresh.encode_document(TEXTS, precision=precision)
        assert all(torch.equal(row, expected.to(dtype)) for row, expected in zip(rows, exact, strict=True))
        packed = fresh.encode_document(TEXTS, precision=precision, packed=True)
        assert packed == TokenEmbeddings.from_list(rows)
        assert torch.equal(fresh.encode_document(TEXTS[1], precision=precision), rows[1])

    def test_int8_keeps_a_scale_per_token(self, fresh):
        packed = fresh.encode_document(TEXTS, precision="int8", packed=True)
        exact = TokenEmbeddings.from_list(fresh.encode_document(TEXTS))
        assert packed == exact.to("int8")
        assert (packed.to("float32").vectors - exact.vectors).abs().max() <= packed.scales.max() / 2 + 1e-7

    def test_arrays(self, fresh):
        rows = fresh.encode_document(TEXTS, precision="float16", convert_to_numpy=True)
        assert all(isinstance(row, np.ndarray) and row.dtype == np.float16 for row in rows)
        packed = fresh.encode_document(TEXTS, convert_to_numpy=True, packed=True)
        assert not packed.is_torch
        assert packed == TokenEmbeddings.from_list(fresh.encode_document(TEXTS))

    def test_pooled(self, fresh):
        pooled = fresh.encode_document(TEXTS, precision="int8", packed=True, pool_factor=2)
        exact = fresh.encode_document(TEXTS, packed=True, pool_factor=2)
        assert pooled == exact.to("int8")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"precision": "int4"},
                "received precision='int4'; expected 'float32', 'float16', 'bfloat16'",
            ),
            ({"precision": "int8"}, "precision='int8' needs packed=True"),
            ({"precision": "bfloat16", "convert_to_numpy": True}, "numpy has no bfloat16"),
            ({"precision": "float16", "output_value": None}, "features are returned unchanged"),
            ({"compute_dtype": "int4"}, "received compute_dtype='int4'; expected 'auto', 'float32'"),
            ({"compute_dtype": "bfloat16", "normalize_embeddings": True}, "with normalize_embeddings: that is encoded"),
            ({"batch_size": 0}, "received batch_size=0; expected an integer of at least 1"),
            ({"batch_size": 2**64}, "expected an integer of at least 1 and at most 9223372036854775807"),
            ({"pool_factor": 10**5000}, "received pool_factor=a value; expected an integer"),
            ({"truncate_dim": 10**5000}, "received truncate_dim=a value; expected an integer from 1 to 16"),
            ({"prompt_name": "passage"}, "received prompt_name='passage'; this model has 'query', 'document'"),
            ({"prompt_name": ["query"]}, r"received prompt_name=\['query'\]; this model has"),
            ({"output_value": "sentence_embedding"}, "received output_value='sentence_embedding'; expected 'token_"),
        ],
    )
    def test_impossible_options_are_errors(self, fresh, options, message):
        with pytest.raises(InvalidArgumentError, match=message):
            fresh.encode_document(TEXTS, **options)


class TestComputeDtype:
    def test_bfloat16_stays_close_and_of_length_one(self, fresh, dense):
        for model in (fresh, dense):
            rows = model.encode_document(TEXTS, compute_dtype="bfloat16")
            exact = model.encode_document(TEXTS)
            assert 0.999 < least_cosine(rows, exact) < 1 - 1e-7
            norms = torch.cat(rows).norm(dim=1)
            torch.testing.assert_close(norms, torch.ones_like(norms))
            assert all(row.dtype == torch.float32 for row in rows)

    @pytest.mark.parametrize("weights", ["float16", "bfloat16", "float64"])
    def test_weights_in_another_dtype(self, shallow, weights):
        model = ColBERT.from_dense(shallow, device="cpu").to(getattr(torch, weights))
        for dtype in {"float32", "bfloat16", "float16"} - {weights}:
            message = f"compute_dtype='{dtype}', but the model's weights are {weights}; .*model.float()"
            for call in (model.encode_document, partial(model.encode_query, normalize_embeddings=True)):
                if call is model.encode_document or dtype == "float32":
                    with pytest.raises(InvalidArgumentError, match=message):
                        call(TEXTS, compute_dtype=dtype)
            with pytest.raises(InvalidArgumentError, match=message):
                next(model.encode_stream(TEXTS, compute_dtype=dtype))
        for dtype in {"auto", weights} - {"float64"}:
            rows = model.encode_document(TEXTS, compute_dtype=dtype)
            assert all(torch.isfinite(row).all() for row in rows)

    def test_short_work_is_in_float32(self, fresh):
        exact = fresh.encode_document(TEXTS, compute_dtype="float32", packed=True)
        assert fresh.encode_document(TEXTS, packed=True) == exact

    def test_long_work_is_in_bfloat16_where_the_hardware_has_it(self, fresh, monkeypatch):
        monkeypatch.setattr(encoding, "_LONG_WORK", 20)
        monkeypatch.setattr(encoding, "prefers_bfloat16", lambda *_: True)
        assert fresh.encode_document(TEXTS, packed=True) == fresh.encode_document(
            TEXTS, compute_dtype="bfloat16", packed=True
        )
        monkeypatch.setattr(encoding, "prefers_bfloat16", lambda *_: False)
        assert fresh.encode_document(TEXTS, packed=True) == fresh.encode_document(
            TEXTS, compute_dtype="float32", packed=True
        )

    def test_long_work_is_in_float32_where_bfloat16_goes_too_far(self, fresh, monkeypatch, caplog):
        monkeypatch.setattr(encoding, "_LONG_WORK", 20)
        monkeypatch.setattr(encoding, "prefers_bfloat16", lambda *_: True)
        monkeypatch.setattr(encoding, "_LEAST_COSINE", 1.01)
        with caplog.at_level(logging.WARNING):
            packed = fresh.encode_document(TEXTS, packed=True)
        assert packed == fresh.encode_document(TEXTS, compute_dtype="float32", packed=True)
        assert "so it computes in float32" in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", ["cpu", "cuda"]])
def test_a_device_that_is_not_there_is_named(fresh, device):
    with pytest.raises(InvalidArgumentError, match="device 'cuda' was asked for"):
        fresh.encode_document(TEXTS, device=device)


class TestTruncation:
    def test_the_first_numbers_at_length_one(self, fresh, shallow, small_windows):
        expected = [
            torch.nn.functional.normalize(rows[:, :5], dim=1) for rows in fresh.encode_document(TEXTS, packed=False)
        ]
        for options in ({}, {"normalize_embeddings": True}):  # the second one is encoded by sentence-transformers
            for rows, exact in zip(fresh.encode_document(TEXTS, truncate_dim=5, **options), expected, strict=True):
                torch.testing.assert_close(rows, exact, rtol=1e-4, atol=1e-5)
        streamed = TokenEmbeddings.concatenate(fresh.encode_stream(TEXTS, truncate_dim=5, packed=True))
        torch.testing.assert_close(streamed.vectors, torch.cat(expected), rtol=1e-4, atol=1e-5)
        assert fresh.encode_document([], packed=True, truncate_dim=5).dim == 5

    def test_texts_with_gradients(self, fresh, tmp_path):
        fresh.save_pretrained(tmp_path / "model")
        model = type(fresh)(tmp_path / "model", device="cpu", truncate_dim=5)
        query, document = model.encode_query(["pear"]), model.encode_document(["a pear, ripe"])
        scores = model.scores(["pear"], ["a pear, ripe"], tqdm_bar=False)
        torch.testing.assert_close(scores.detach(), model.similarity_pairwise(query, document), rtol=1e-4, atol=1e-4)
        scores.sum().backward()
        assert model[1].linear.weight.grad[:5].abs().sum() > 0
        embedded = model(texts=["pear"])["embeddings"]
        torch.testing.assert_close(embedded[0].detach(), query[0], rtol=1e-4, atol=1e-5)
        assert model(texts=[])["embeddings"].shape == (0, 32, 5)
        features = model(model.tokenize(["pear"]))  # losses cut these vectors themselves
        assert features["token_embeddings"].shape[-1] == 16

    @pytest.mark.parametrize("dim", [0, 17, True, 2.0])
    def test_other_sizes_are_errors(self, fresh, dim):
        with pytest.raises(InvalidArgumentError, match=f"truncate_dim={dim}; expected an integer from 1 to 16"):
            fresh.encode_document(TEXTS, truncate_dim=dim)


class TestBatches:
    def test_windows_and_batches_come_back_in_order(self, dense, small_windows):
        expected = [dense.encode_document(text) for text in TEXTS]
        for options in ({}, {"batch_size": 1}):
            for row, exact in zip(dense.encode_document(TEXTS, **options), expected, strict=True):
                torch.testing.assert_close(row, exact, rtol=1e-4, atol=1e-5)
            packed = dense.encode_document(TEXTS, packed=True, **options)
            assert packed.lengths.tolist() == [len(exact) for exact in expected]
            torch.testing.assert_close(packed.vectors, torch.cat(expected), rtol=1e-4, atol=1e-5)


class TestStream:
    def test_equals_encode(self, fresh, small_windows):
        expected = fresh.encode_document(TEXTS)
        rows = list(fresh.encode_stream(iter(TEXTS)))
        assert all(torch.equal(row, exact) for row, exact in zip(rows, expected, strict=True))
        assert all(row.untyped_storage().nbytes() == row.nbytes for row in rows)
        queries = list(fresh.encode_stream(TEXTS, is_query=True))
        assert torch.equal(torch.stack(queries), torch.stack(fresh.encode_query(TEXTS)))

    def test_packed(self, fresh, small_windows):
        parts = list(fresh.encode_stream(TEXTS, packed=True, precision="int8"))
        assert [len(part) for part in parts] == [4, 4, 4]
        assert TokenEmbeddings.concatenate(parts) == fresh.encode_document(TEXTS, packed=True, precision="int8")
        pooled = list(fresh.encode_stream(TEXTS, packed=True, pool_factor=2, precision="float16"))
        expected = fresh.encode_document(TEXTS, packed=True, pool_factor=2, precision="float16")
        assert TokenEmbeddings.concatenate(pooled) == expected

    def test_reads_a_window_ahead_and_in_the_callers_thread(self, dense, small_windows):
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

    def test_a_row_that_is_not_a_text_is_an_error_when_it_is_reached(self, dense, small_windows):
        stream = dense.encode_stream(["a", "b", None])
        with pytest.raises(InvalidArgumentError, match=r"texts\[2\] is None; expected str"):
            list(stream)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("one text",), "received 'one text' \\(str\\) as texts"),
            ((7,), "received 7 \\(int\\) as texts"),
        ],
    )
    def test_an_argument_that_is_not_a_stream_is_an_error_at_once(self, dense, arguments, message):
        with pytest.raises(InvalidArgumentError, match=message):
            dense.encode_stream(*arguments)
        with pytest.raises(InvalidArgumentError, match="needs packed=True"):
            dense.encode_stream([], precision="int8")


def test_other_encoders_stream_too(dense, monkeypatch, small_windows):
    monkeypatch.setattr(encoding, "encodes_by_budget", lambda model: False)
    expected = dense.encode_document(TEXTS)
    for row, exact in zip(dense.encode_stream(TEXTS), expected, strict=True):
        torch.testing.assert_close(row, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "auto", "bfloat16"])
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
        for rows, same in zip(model.encode_document(TEXTS, compute_dtype=dtype), expected, strict=True):
            assert torch.equal(rows, same)
        for rows, same in zip(model.encode_stream(TEXTS, compute_dtype=dtype), expected, strict=True):
            assert torch.equal(rows, same)
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
