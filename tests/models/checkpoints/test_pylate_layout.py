"""What is saved for PyLate is read back with equal embeddings, by ourselves, sentence-transformers and PyLate itself.

PyLate 1.6 needs another version of sentence-transformers, and so an environment of its own. Where there is one, this
compares with PyLate itself:

    LATELIER_PYLATE_PYTHON=/that/environment/bin/python pytest tests/models/checkpoints/test_pylate_layout.py
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from folders import dense_with_head
from layouts import LAYOUTS, Checkpoint
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT, Recipe

PYTHON = os.environ.get("LATELIER_PYLATE_PYTHON")
TEXTS = [
    "what is a pear?",
    "fruits are healthy.",
    "",
    "Fruits, like pears (and apples), are good for health!",
    'A pear; a fig: "plums" -- and 3.5% more...',
    "naïve Éclairs, 東京 and Straße",
    " ".join(["pear tree"] * 60),
    "[Q] is not a marker in a text, is it?",
    "x",
    "The quick brown fox jumps over the lazy dog, twice, and the dog does not mind at all.",
]
MODELS = {
    "from_dense": lambda tiny, folder: ColBERT.from_dense(tiny, device="cpu"),
    "recipe": lambda tiny, folder: ColBERT(tiny, device="cpu"),
    "no expansion": lambda tiny, folder: ColBERT(tiny, 32, "cpu", 12, 100, recipe=Recipe(query_expansion=False)),
    "own skiplist": lambda tiny, folder: ColBERT(tiny, 32, "cpu", recipe=Recipe(skiplist=("a", ".", "pear tree"))),
    "one marker": lambda tiny, folder: ColBERT(
        tiny, 32, "cpu", recipe=Recipe(query_marker="", document_marker="[DOC] ", skiplist=())
    ),
    "trained heads": lambda tiny, folder: ColBERT(
        dense_with_head(tiny, folder / "dense", 48, activation="activation.Tanh", bias=True), device="cpu"
    ),
    "marker and prompt": lambda tiny, folder: ColBERT(
        tiny, 16, "cpu", prompts={"query": "[Q] find: ", "document": "[D] "}
    ),
}


def embeddings(model):
    return [*model.encode_query(TEXTS), *model.encode_document(TEXTS)]


def difference(left, right):
    assert [tuple(matrix.shape) for matrix in left] == [tuple(matrix.shape) for matrix in right]
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_we_and_sentence_transformers_read_it_back(name, tiny, tmp_path):
    model = MODELS[name](tiny, tmp_path)
    model.save_pretrained(tmp_path / "saved", layout="pylate")
    expected = embeddings(model)
    again = ColBERT(tmp_path / "saved", device="cpu")
    assert difference(expected, embeddings(again)) < 2e-6
    assert (again.max_length_query, again.max_length_document) == (model.max_length_query, model.max_length_document)
    assert difference(expected, embeddings(MultiVectorEncoder(str(tmp_path / "saved"), device="cpu"))) < 2e-6


def test_the_files_are_those_of_pylate(tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    Checkpoint(LAYOUTS["colbert-ko: PyLate 1.6"]).write(theirs)
    ColBERT(theirs, device="cpu").save(ours, layout="pylate")
    for name in ("modules.json", "config_sentence_transformers.json", "1_Dense/config.json"):
        written, expected = (json.loads((folder / name).read_text()) for folder in (ours, theirs))
        assert (
            {key: written[key] for key in expected} == expected if isinstance(expected, dict) else written == expected
        )
    assert sorted(path.name for path in (ours / "1_Dense").iterdir()) == ["config.json", "model.safetensors"]
    assert (ours / "README.md").is_file()
    tokenizer = json.loads((ours / "tokenizer_config.json").read_text())
    assert tokenizer["additional_special_tokens"] == ["[Q] ", "[D] "]
    assert "extra_special_tokens" not in tokenizer  # a list of them stops transformers 4


REFUSED = {
    "this model consists of Transformer, Dense, Multi": lambda m: m.append(HierarchicalTokenPooling(2)),
    "expanded by the strategy 'min'": lambda m: setattr(m[0], "query_expansion", {"strategy": "min", "length": 8}),
    "skiplist is for": lambda m: setattr(m[2], "skiplist_tasks", ["query", "document"]),
    "its similarity is 'meanmaxsim'": lambda m: setattr(m, "similarity_fn_name", "meanmaxsim"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_pylate_cannot_express_is_refused_before_anything_is_written(tiny, tmp_path, message):
    model = ColBERT(tiny, 16, "cpu")
    REFUSED[message](model)
    with pytest.raises(InvalidArgumentError, match=message):
        model.save(tmp_path / "saved", layout="pylate")
    assert not (tmp_path / "saved").exists()


@pytest.mark.skipif(not PYTHON, reason="LATELIER_PYLATE_PYTHON names no interpreter that has PyLate 1.6")
@pytest.mark.parametrize("name", MODELS)
def test_pylate_reads_it_and_we_read_what_pylate_saves(name, tiny, tmp_path):
    model = MODELS[name](tiny, tmp_path)
    model.save(tmp_path / "saved", layout="pylate")
    script = """
import json, sys
import numpy as np
from pylate import models
folder, texts = sys.argv[1], json.loads(sys.argv[2])
model = models.ColBERT(folder + "/saved", device="cpu")
prompts = [model.prompts.get(task) or None for task in ("query", "document")]
sides = [model.encode(texts, is_query=i == 0, prompt=prompts[i]) for i in (0, 1)]
np.savez(folder + "/theirs.npz", *(matrix for side in sides for matrix in side))
model.save(folder + "/theirs_saved")
"""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [PYTHON, "-c", script, str(tmp_path), json.dumps(TEXTS)]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    with np.load(tmp_path / "theirs.npz") as archive:
        theirs = [archive[f"arr_{i}"] for i in range(2 * len(TEXTS))]
    there, back = (
        difference(embeddings(model), theirs),
        difference(embeddings(ColBERT(Path(tmp_path / "theirs_saved"), device="cpu")), theirs),
    )
    sys.stdout.write(f"largest difference: ours in PyLate {there:.1e}, PyLate's in ours {back:.1e}\n")  # pytest -s
    assert max(there, back) < 2e-6
