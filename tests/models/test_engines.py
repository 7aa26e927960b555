"""Which engine computes, and what is said where none does."""

import pytest
import torch

from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT, engines
from latelier.models.engines import Work, choose_engine
from latelier.models.onnx_export import Unfit

CPU = torch.device("cpu")
FEATURES = {"input_ids": torch.zeros(2, 3, dtype=torch.long), "attention_mask": torch.ones(2, 3, dtype=torch.long)}


def make(folder, **options):
    return ColBERT.from_dense(folder, "orthogonal", 16, "cpu", **options)


@pytest.mark.parametrize(
    ("backend", "dtype", "reads_attention", "name"),
    [
        ("torch", None, False, "torch"),
        ("torch", "bfloat16", False, "torch"),
        ("onnx", None, False, "onnx"),
        ("onnx", "float32", False, "onnx"),
        ("onnx", "int8", False, "onnx"),
        ("onnx", "bfloat16", False, "torch"),
        ("onnx", None, True, "torch"),
        ("auto", None, False, "onnx"),
        ("auto", "float16", False, "torch"),
    ],
)
def test_the_first_engine_that_fits(tiny, backend, dtype, reads_attention, name):
    pytest.importorskip("onnxruntime")
    model = make(tiny, backend=backend)
    engine, computes = choose_engine(Work(model, "document", CPU, dtype, reads_attention), FEATURES)
    assert engine.name == name
    assert (computes is model) == reads_attention


def test_every_engine_says_why_it_computes_no_int8(tiny):
    model = make(tiny)
    reasons = r'onnx: .*backend="onnx".*; unpadded: .*; torch: it computes no int8'
    with pytest.raises(InvalidArgumentError, match=reasons):
        model.encode_document("pear", compute_dtype="int8")
    model.encode_document("pear")


def test_an_engine_of_the_list_is_tried_first(tiny, monkeypatch):
    asked = []

    class Own(engines.TorchEngine):
        name = "own"

        def prepare(self, work, features):
            asked.append(features["input_ids"].shape[0])
            if len(asked) > 1:
                raise Unfit("it computes once")
            return super().prepare(work, features)

    expected = make(tiny).encode_document(["pear", "plum"])
    monkeypatch.setattr(engines, "ENGINES", (Own(), *engines.ENGINES))
    model = make(tiny)
    for _ in range(2):
        for vectors, other in zip(model.encode_document(["pear", "plum"]), expected, strict=True):
            torch.testing.assert_close(vectors, other)
    assert asked == [2, 2]


def test_watched_models_are_computed_by_themselves(tiny):
    model = make(tiny, backend="auto")
    model[0].model.embeddings.register_forward_hook(lambda *_: None)
    engine, computes = choose_engine(Work(model, "document", CPU, None, False), FEATURES)
    assert (engine.name, computes) == ("torch", model)
