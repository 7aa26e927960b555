"""Folders of models that are damaged or incomplete: an error that names the folder and the fault."""

import json
import re
import shutil

import pytest
from transformers import AutoTokenizer

from latelier.errors import ModelLoadError
from latelier.models import ColBERT


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    ColBERT(tiny, embedding_size=8, device="cpu").save(folder)
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def assert_is_refused(folder, reason):
    with pytest.raises(ModelLoadError, match=f"^could not load the model '{re.escape(str(folder))}': {reason}"):
        ColBERT(folder, device="cpu")


MISSING = {
    "1_Dense/config.json": "TypeError: .* missing 2 required positional arguments: 'in_features' and 'out_features'",
    "1_Dense/model.safetensors": "ValueError: Could not find 'model.safetensors'",
    "config.json": "ValueError: Unrecognized model in",
    "tokenizer.json": r"its tokenizer knows 7 tokens for 30,524 embeddings, .* none of tokenizer\.json, vocab\.txt\.",
}


@pytest.mark.parametrize(("file", "reason"), MISSING.items(), ids=MISSING)
def test_missing_files(copy, file, reason):
    (copy / file).unlink()
    assert_is_refused(copy, reason)


TRUNCATED = {
    "1_Dense/config.json": "JSONDecodeError: ",
    "1_Dense/model.safetensors": "SafetensorError: ",
    "2_MultiVectorMask/config.json": "JSONDecodeError: ",
    "config_sentence_transformers.json": "JSONDecodeError: ",
    "model.safetensors": "SafetensorError: ",
    "modules.json": "JSONDecodeError: ",
    "tokenizer.json": "ValueError: ",
}


@pytest.mark.parametrize(("file", "reason"), TRUNCATED.items(), ids=TRUNCATED)
def test_truncated_files(copy, file, reason):
    contents = (copy / file).read_bytes()
    (copy / file).write_bytes(contents[: len(contents) // 2])
    assert_is_refused(copy, reason)


def test_other_contents(copy):
    config = json.loads((copy / "1_Dense" / "config.json").read_text())
    (copy / "1_Dense" / "config.json").write_text(json.dumps({**config, "out_features": 5}))
    assert_is_refused(copy, "RuntimeError: ")
    (copy / "modules.json").write_text("[]")
    assert_is_refused(copy, r"its modules\.json lists no modules\.")


def test_errors_of_arguments_stay_as_they_are(copy):
    with pytest.raises(TypeError, match="unknown_argument"):
        ColBERT(copy, device="cpu", model_kwargs={"unknown_argument": 1})
    (copy / "modules.json").write_text("{")
    with pytest.raises(ModelLoadError, match="JSONDecodeError"):
        ColBERT(copy, device="cpu", model_kwargs={"attn_implementation": "eager"}, trust_remote_code=True)


def test_a_vocabulary_in_another_format_is_enough(copy):
    tokenizer = AutoTokenizer.from_pretrained(copy)
    expected = ColBERT(copy, device="cpu").tokens("a pear, a fig")
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    (copy / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary))
    (copy / "tokenizer.json").unlink()
    assert ColBERT(copy, device="cpu").tokens("a pear, a fig") == expected
