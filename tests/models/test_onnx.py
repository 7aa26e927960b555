"""ONNX Runtime computes what the transformer computes, follows its weights, and leaves nothing behind."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.models import ColBERT

pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")

from latelier.models import onnx_export
from latelier.models.exported_encoder import OnnxEncoder

TEXTS = ["pear", "a longer text, which says more about pears!", "", "un-hyphenated words " * 12]


@pytest.fixture
def no_more_exports(tiny, monkeypatch):
    ColBERT.from_dense(tiny, "orthogonal", 16, "cpu", backend="onnx").encode_query("pear")  # exports it if none has yet

    def export(*args):
        raise AssertionError("exported again")

    monkeypatch.setattr(onnx_export, "export_float32", export)


@pytest.fixture(scope="module")
def torch_model(tiny):
    return ColBERT.from_dense(tiny, "orthogonal", 16, "cpu")


@pytest.fixture
def model(tiny):
    return ColBERT.from_dense(tiny, "orthogonal", 16, "cpu", backend="onnx")


def assert_same(model, expected, task="document"):
    for row, other in zip(model.encode(TEXTS, task=task), expected.encode(TEXTS, task=task), strict=True):
        torch.testing.assert_close(row, other, rtol=0, atol=1e-5)


@pytest.fixture
def runs(monkeypatch):
    seen, run = [], OnnxEncoder.run

    def noting(self, ids, mask, types):
        seen.append(ids.shape)
        return run(self, ids, mask, types)

    monkeypatch.setattr(OnnxEncoder, "run", noting)
    return seen


@pytest.mark.parametrize("task", ["query", "document"])
def test_vectors_are_those_of_torch(model, torch_model, task, runs):
    model.encode_query("pear")
    runs.clear()  # an export is compared with the transformer when it is made
    assert_same(model, torch_model, task)
    assert sum(n for n, _ in runs) == len(TEXTS)


def test_other_forms_of_the_result_and_int8(model, torch_model):
    options = {"packed": True, "precision": "int8", "truncate_dim": 8, "pool_factor": 2}
    ours, expected = (each.encode_document(TEXTS, **options).to("float32") for each in (model, torch_model))
    np.testing.assert_array_equal(ours.offsets, expected.offsets)
    torch.testing.assert_close(ours.vectors, expected.vectors, rtol=0, atol=0.02)
    computed = model.encode_document(TEXTS, compute_dtype="int8")
    for row, exact in zip(computed, torch_model.encode_document(TEXTS), strict=True):
        assert 0.97 < torch.cosine_similarity(row, exact).min() < 1


def change_in_place(model):
    model[0].model.encoder.layer[1].intermediate.dense.weight.mul_(1.5)


def replace_a_layer(model):
    model[0].model.encoder.layer[0].attention.self.query = nn.Linear(48, 48)


@pytest.mark.parametrize("change", [change_in_place, replace_a_layer])
def test_changed_weights_are_computed_by_torch(model, change, no_more_exports):
    before = model.encode_document(TEXTS)
    with torch.no_grad():
        change(model)
    after = model.encode_document(TEXTS)
    assert not torch.allclose(after[1], before[1], atol=1e-3)
    model.cpu_backend = "torch"
    for row, expected in zip(after, model.encode_document(TEXTS), strict=True):
        torch.testing.assert_close(row, expected)
    model.cpu_backend = "onnx"
    with pytest.raises(LatelierError, match="the weights have changed since"):
        model.encode_query("pear", compute_dtype="int8")


def test_weights_of_half_precision_are_computed_in_float32(tiny, tmp_path):
    dtype = torch.float16
    ColBERT.from_dense(tiny, "orthogonal", 16, "cpu").to(dtype).save(tmp_path / "half")
    half = ColBERT(tmp_path / "half", device="cpu", backend="onnx")
    exact = ColBERT(tmp_path / "half", device="cpu").float()
    assert_same(half, exact)
    for row, other in zip(half.encode(TEXTS, compute_dtype="int8"), exact.encode(TEXTS), strict=True):
        assert torch.cosine_similarity(row, other).min() > 0.97
    assert ColBERT(tmp_path / "half", device="cpu", backend="auto").encode("pear").dtype == dtype
    assert_same(half.float(), exact)


def test_adapters_are_computed_by_torch(model, torch_model, runs, tmp_path):
    peft = pytest.importorskip("peft", reason="needs the extra train")
    model.add_adapter(peft.LoraConfig(r=4, target_modules=["query"], init_lora_weights=False))
    adapted = model.encode_document(TEXTS)
    assert not torch.allclose(adapted[1], torch_model.encode_document(TEXTS)[1], atol=1e-3)
    model.disable_adapters()  # changes no weight
    assert_same(model, torch_model)
    assert runs == []
    with pytest.raises(LatelierError, match="onnx: it has adapters inside"):
        model.encode_query("pear", compute_dtype="int8")
    with pytest.raises(InvalidArgumentError, match="adapters of peft; merge them"):
        model.export(tmp_path / "exported")


def test_a_damaged_export_is_made_again(tiny, torch_model, model, tmp_path, monkeypatch):
    model.encode_query("pear")
    for weights in Path(os.environ["LATELIER_CACHE"], "onnx").glob("*-float32/encoder.onnx.data"):
        if weights.stat().st_size < 10 << 20:  # those of tiny models
            shutil.copytree(weights.parent, tmp_path / "onnx" / weights.parent.name)
    monkeypatch.setenv("LATELIER_CACHE", str(tmp_path))
    assert_same(ColBERT.from_dense(tiny, "orthogonal", 16, "cpu", backend="onnx"), torch_model)
    damaged = {path: bytearray(path.read_bytes()) for path in (tmp_path / "onnx").glob("*-float32/encoder.onnx.data")}
    for path, content in damaged.items():
        content[len(content) // 2] ^= 255
        path.write_bytes(content)
    assert_same(ColBERT.from_dense(tiny, "orthogonal", 16, "cpu", backend="onnx"), torch_model)
    assert any(path.read_bytes() != content for path, content in damaged.items())
    assert [path.name for path in (tmp_path / "onnx").iterdir() if "unfinished" in path.name] == []


def test_auto_is_onnx_runtime_where_the_model_exports(tiny, torch_model, runs, monkeypatch):
    auto = ColBERT.from_dense(tiny, "orthogonal", 16, "cpu", backend="auto")
    assert_same(auto, torch_model)
    assert sum(n for n, _ in runs) >= len(TEXTS)

    def fail(*args):
        exports.append(args)
        raise LatelierError("cannot be exported")

    exports = []
    runs.clear()
    monkeypatch.setattr("latelier.models.frozen.stored_export", fail)
    auto = ColBERT.from_dense(tiny, "orthogonal", 16, "cpu", backend="auto")
    assert_same(auto, torch_model)
    assert_same(auto, torch_model)
    assert (runs, len(exports)) == ([], 1)


def test_without_the_extra_auto_is_torch(tiny, torch_model, monkeypatch):
    monkeypatch.setattr(onnx_export, "is_installed", lambda: False)
    assert_same(ColBERT.from_dense(tiny, "orthogonal", 16, "cpu", backend="auto"), torch_model)
    with pytest.raises(ImportError, match=r'pip install "latelier\[onnx\]"'):
        ColBERT(tiny, device="cpu", backend="onnx")
