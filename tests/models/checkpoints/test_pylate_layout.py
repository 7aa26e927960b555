"""What is saved for PyLate is read back with equal embeddings, by ourselves and by sentence-transformers."""

import json

import numpy as np
import pytest
from folders import dense_with_head
from layouts import LAYOUTS, Checkpoint
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT, Recipe

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
