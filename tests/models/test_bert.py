"""The export of BERT without torch: it computes what transformers does, and leaves other models alone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from latelier.errors import ModelLoadError
from latelier.models import ColBERT, ExportedEncoder
from latelier.models.bert_export import export_int8, write_graph
from latelier.models.exported_encoder import OnnxEncoder, read_description
from latelier.retrieve import Retriever

pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")

TEXTS = [
    "Bananas are healthy.",
    "",
    "The MOON, by naïve café-goers' reckoning, is 384,400 km away 🌕 .",
    "东京 is a city " * 200,
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LATELIER_CACHE", str(tmp_path / "cache"))


def test_the_graph_computes_what_transformers_does(minilm, tmp_path):
    write_graph(Path(minilm), json.loads((Path(minilm) / "config.json").read_text()), tmp_path)
    tokens = AutoTokenizer.from_pretrained(minilm)(TEXTS[:3], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = AutoModel.from_pretrained(minilm)(**tokens).last_hidden_state
    names = ("input_ids", "attention_mask", "token_type_ids")
    hidden = OnnxEncoder(tmp_path).run(*(tokens[name].numpy() for name in names))
    used = tokens["attention_mask"].bool()
    assert used.sum() < used.numel()  # there is padding
    np.testing.assert_allclose(hidden[used], expected[used], rtol=0, atol=2e-5)


@pytest.mark.parametrize("lengths", [{}, {"max_length_document": 64, "max_length_query": 16}])
def test_it_describes_and_encodes_as_the_export_of_the_model(shallow, tmp_path, lengths):
    folder = export_int8(Path(shallow), lengths)
    ColBERT.from_dense(shallow, device="cpu", **lengths).export(tmp_path / "traced", compute_dtype="int8")
    described, expected = (read_description(each) for each in (folder, tmp_path / "traced"))
    for name in ("fingerprint", "files"):
        assert described.pop(name) != expected.pop(name)
    assert described == expected
    own, traced = ExportedEncoder(folder), ExportedEncoder(tmp_path / "traced")
    for task in ("query", "document"):
        left, right = (encoder.encode(TEXTS, task) for encoder in (own, traced))
        assert left.offsets.tolist() == right.offsets.tolist()
        assert (left.vectors * right.vectors).sum(axis=1).mean() > 0.999  # rounded to 8 bits in another order
    assert own.tokens(TEXTS[2]) == traced.tokens(TEXTS[2])
    assert export_int8(Path(shallow), lengths) == folder


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"hidden_act": "relu"}),
        ("config.json", {"position_embedding_type": "relative_key"}),
        ("config.json", {"model_type": "roberta"}),
        ("config.json", {"is_decoder": True}),
        ("sentence_bert_config.json", {"do_lower_case": True}),
        ("tokenizer_config.json", {"truncation_side": "left"}),
        ("config_sentence_transformers.json", {"prompts": {"query": "query: "}}),
    ],
)
def test_other_models_are_left_to_torch(minilm, tmp_path, file, change):
    folder = tmp_path / "changed"
    shutil.copytree(minilm, folder)
    settings = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(settings | change))
    assert export_int8(folder, {}) is None


def test_a_model_with_a_linear_layer_or_an_adapter_is_left_to_torch(minilm, tmp_path):
    folder = tmp_path / "changed"
    shutil.copytree(minilm, folder)
    modules = json.loads((folder / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps([*modules[:2], dense]))
    assert export_int8(folder, {}) is None
    shutil.copytree(minilm, tmp_path / "adapted")
    (tmp_path / "adapted" / "adapter_config.json").write_text("{}")
    assert export_int8(tmp_path / "adapted", {}) is None


def set_tensor(name, tensor):
    def change(folder):
        weights = load_file(folder / "model.safetensors")
        weights.pop(name, None)
        if tensor is not None:
            weights[name] = tensor
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return change


INNER = "encoder.layer.1.output.dense.bias"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_tensor(INNER, None), "lack encoder"),
        (set_tensor(INNER, torch.full([48], torch.nan)), "not finite"),
        (set_tensor("encoder.layer.2.output.dense.bias", torch.ones(48)), "hold encoder"),
        (lambda folder: torch.save(torch.ones(2, 2), folder / "colbert_linear.pt"), r"colbert_linear\.pt holds"),
        (
            lambda folder: (folder / "config_sentence_transformers.json").write_text('{"default_prompt_name": "q"}'),
            "no such prompt",
        ),
    ],
)
def test_a_faulty_checkpoint_is_an_error_in_int8_too(tiny, change, message, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "changed")
    change(Path(folder))
    with pytest.raises(ModelLoadError, match=message):
        Retriever(folder, index=tmp_path / "index", model_options={"compute_dtype": "int8"}).add(["A pear."])


FILL = """
import sys
from latelier.errors import InvalidArgumentError
from latelier.retrieve import Retriever

folder = sys.argv[1]
with Retriever(index=folder, model_options={"compute_dtype": "int8"}) as retriever:
    retriever.add([("a", "Bananas are healthy."), ("b", "The moon is far away.")])
    assert retriever.search("unhealthy fruit", k=1)[0].id == "a"
try:
    Retriever(index=folder, model_options={"compute_dtype": "float32"})
except InvalidArgumentError as error:
    assert "int8" in str(error)
else:
    raise AssertionError("vectors of two kinds in one index")
with Retriever(index=folder, device="cpu") as retriever:
    retriever.add([("c", "Paris is the capital of France.")])
    retriever.export_encoder()
with Retriever.open(folder) as retriever:
    assert retriever.search("a city", k=1)[0].id == "c"
    print(retriever.model_options, *[name for name in ("torch", "transformers") if name in sys.modules])
"""


def test_a_folder_is_filled_and_searched_without_torch(tmp_path):
    process = subprocess.run([sys.executable, "-c", FILL, str(tmp_path / "i")], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split("\n")[0] == "{'compute_dtype': 'int8'}"
