"""Every layout of checkpoints: from its files through encoding, export, the shell and a server, and written back."""

import json
import re
import sys
from dataclasses import replace

import pytest
import torch
from layouts import LAYOUTS, TEXTS, Checkpoint
from sentence_transformers import MultiVectorEncoder
from typer.testing import CliRunner

from latelier.cli import app
from latelier.errors import InvalidArgumentError, ModelLoadError
from latelier.models import ColBERT, ExportedEncoder, load
from latelier.retrieve import Retriever
from naive import naive_matrix

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("onnxscript", reason="needs the extra onnx")

from fastapi.testclient import TestClient

from latelier.serve import create_app

# The others say the same of other encoders, or take as long again.
QUICK = ("colbert-ko: PyLate 1.6", "LateOn, equal widths", "colbert-ir/colbertv2.0", "sentence-transformers 6")
# An index opens a model that only a file names from safetensors alone.
PICKLED = ("duqgen-colbert: ColBERT, a pickle", "neural-cherche", "BAAI/bge-m3")


def difference(found, expected):
    found = [torch.as_tensor(each).float() for each in found]
    assert [each.shape for each in found] == [each.shape for each in expected]
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


def encode(model):
    texts = TEXTS if isinstance(model, ColBERT) else [text.strip() for text in TEXTS]
    return [*model.encode_query(texts), *model.encode_document(texts)]


def run(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.filterwarnings("ignore:.*has several heads")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in LAYOUTS]
)
def test_from_the_files_to_the_shell_and_back(name, tmp_path):
    layout = LAYOUTS[name]
    checkpoint, folder = Checkpoint(layout), tmp_path / "model"
    checkpoint.write(folder)
    queries, documents = ([checkpoint.by_hand(text, task) for text in TEXTS] for task in ("query", "document"))
    expected, largest = [*queries, *documents], {}

    model = ColBERT(folder, device="cpu")
    largest["loaded"] = difference(encode(model), expected)
    model.save(tmp_path / "saved")
    readers = [ColBERT] if model.inserted_markers else [ColBERT, MultiVectorEncoder]
    largest["saved"] = max(
        difference(encode(read(str(tmp_path / "saved"), device="cpu")), expected) for read in readers
    )
    if model.similarity_fn_name == "maxsim":
        model.save(tmp_path / "pylate", layout="pylate")
        largest["saved for PyLate"] = difference(encode(ColBERT(tmp_path / "pylate", device="cpu")), expected)
    else:
        with pytest.raises(InvalidArgumentError, match="its similarity is 'meanmaxsim'"):
            model.save(tmp_path / "pylate", layout="pylate")
    model.export(tmp_path / "exported")
    exported = ExportedEncoder(tmp_path / "exported")
    found = [*exported.encode_queries(TEXTS), *exported.encode_documents(TEXTS)]
    largest["exported"] = difference(found, expected)

    records = "".join(json.dumps({"id": str(i), "text": text}) + "\n" for i, text in enumerate(TEXTS) if text)
    (tmp_path / "records.jsonl").write_text(records)
    index = tmp_path / "index"
    options = ("--model", folder, "--passages", "none", "--exact")
    assert run("index", tmp_path / "records.jsonl", index, *options)["documents"] == 4
    tokens = len(queries[0]) if model.similarity_fn_name == "meanmaxsim" else 1
    scores = naive_matrix(queries[:1], documents)[0] / tokens
    hits = run("search", index, TEXTS[0], "--mode", "vectors")["results"]
    assert len(hits) == 4
    largest["searched"] = max(abs(hit["score"] - scores[int(hit["id"])]) for hit in hits)

    given = {"model": folder} if name in PICKLED else {}
    retriever = Retriever.open(index, backend="auto" if given else "torch", device="cpu", **given)
    with retriever, TestClient(create_app({"texts": retriever}), base_url="http://localhost") as client:
        body = {"texts": [text for text in TEXTS if text], "input_type": "document"}
        served = client.post("/v1/encode", json=body).json()["embeddings"]
    largest["served"] = difference(map(torch.tensor, served), [documents[i] for i in map(TEXTS.index, body["texts"])])

    sys.stdout.write(f"{name}: {' '.join(f'{step} {each:.1e}' for step, each in largest.items())}\n")  # pytest -s
    if layout.dtype == torch.float32:
        assert max(largest.pop("loaded"), largest.pop("saved")) < 2e-6
        assert largest.pop("searched") < layout.lengths[0] * 2**-11  # the index stores float16
        assert max(largest.values()) < 1e-5
    else:
        assert largest.pop("searched") < 0.2
        assert max(largest.values()) < 0.03


def written(name, folder, **settings):
    layout = LAYOUTS[name]
    Checkpoint(replace(layout, settings={**layout.settings, **settings})).write(folder)
    return folder


def test_which_head_is_used_is_said(tmp_path):
    folder = written("colbert-ko-0.1b: several heads", tmp_path / "several")
    for size, used, other in (
        (None, "linear.weight (16 x 32)", "colbert_linear_8.weight (8 x 32)"),
        (8, "colbert_linear_8.weight (8 x 32)", "linear.weight (16 x 32)"),
    ):
        with pytest.warns(UserWarning, match=re.escape(f"has several heads: {used} is used, not {other}")):
            assert ColBERT(folder, size, device="cpu").embedding_size == (size or 16)


def test_a_checkpoint_that_needs_a_newer_package_is_not_loaded(tmp_path):
    folder = written("sentence-transformers 6", tmp_path / "model", requirements={"torch": ">=99"})
    with pytest.raises(ModelLoadError, match="torch>=99"):
        ColBERT(folder, device="cpu")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model-Q8_0.gguf", "", r"are GGUF \(llama\.cpp\)"),
        ("model.tflite", "", "are LiteRT"),
        ("onnx/model.onnx", "", "are ONNX alone"),
        ("config.json", '{"quantization": {"bits": 4}}', "are quantised for MLX"),
    ],
)
def test_weights_for_other_programs_are_named(tmp_path, file, content, message):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(content)
    with pytest.raises(ModelLoadError, match=f"{message}. Take the checkpoint that they were made from"):
        load(str(tmp_path))


def test_a_name_on_the_hub_tells_of_weights_for_other_programs():
    with pytest.raises(ModelLoadError, match=r"are GGUF \(llama\.cpp\)\. Take the checkpoint"):
        load("someone/model-v1-GGUF")
