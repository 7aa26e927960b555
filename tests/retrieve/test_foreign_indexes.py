"""Indexes of strangers: what they say about their model is checked, and a model that they name runs nothing."""

import json
import shutil

import pytest

from latelier import indexes
from latelier.errors import IndexFormatError, InvalidArgumentError, ModelLoadError
from latelier.retrieve import Retriever

FINGERPRINT = [0.5] * 384
GOOD = {"name": "someone/model", "options": {}, "fingerprint": FINGERPRINT}


@pytest.fixture(scope="module")
def filled(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("filled") / "index"
    with Retriever(model, folder) as retriever:
        retriever.add([("a", "Bananas are healthy.")])
    return folder


def claim(folder, identity):
    with indexes.open(folder) as index:
        index.settings["retriever"] = identity
    return folder


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("trust_remote_code", True),
        ("model_kwargs", {"weights_only": False}),
        ("max_length_document", 10**9),
        ("prompts", {"query": 5}),
        ("similarity_fn_name", "cosine"),
        ("revision", "../../main"),
        ("x" * 10_000, 1),
        ("\x1b[2J", 1),
    ],
)
def test_options_that_may_not_be_stored(filled, tmp_path, option, value):
    folder = claim(shutil.copytree(filled, tmp_path / "index"), {**GOOD, "options": {option: value}})
    with pytest.raises(IndexFormatError, match=r"the option .* Give the model") as raised:
        Retriever.open(folder, device="cpu", read_only=True)
    assert len(str(raised.value)) < 800


@pytest.mark.parametrize(
    "stored",
    [
        "text",
        {},
        {**GOOD, "options": [["trust_remote_code", True]]},
        {**GOOD, "fingerprint": None},
        {**GOOD, "fingerprint": [1e300] * 384},
        {**GOOD, "unstored": "trust_remote_code"},
    ],
)
def test_claims_of_another_form(filled, tmp_path, stored):
    folder = claim(shutil.copytree(filled, tmp_path / "index"), stored)
    with pytest.raises(IndexFormatError, match="does not write"):
        Retriever.open(folder, device="cpu", read_only=True)


def test_whatever_an_index_claims_a_model_given_by_hand_searches_it(filled, model, tmp_path):
    folder = shutil.copytree(filled, tmp_path / "index")
    with indexes.open(folder) as index:
        fingerprint = index.settings["retriever"]["fingerprint"]
    claim(folder, {**GOOD, "fingerprint": fingerprint, "options": {"trust_remote_code": True}})
    with Retriever(model, folder) as retriever:
        assert len(retriever.search("fruit")) == 1
    claim(folder, {**GOOD, "fingerprint": fingerprint[::-1], "options": 5})
    with pytest.raises(InvalidArgumentError, match="filled by the model 'someone/model' with"):
        Retriever(model, folder)
    claim(folder, 5)
    with pytest.raises(IndexFormatError, match=r"write: 5 \(int\)\. If you know the model"):
        Retriever(model, folder)
    with indexes.open(folder) as index:
        del index.settings["retriever"]
        assert len(Retriever(model, index).search("fruit")) == 1


def test_a_model_inside_of_the_index_runs_nothing(filled, tiny, tmp_path):
    folder = shutil.copytree(filled, tmp_path / "index")
    model = shutil.copytree(tiny, folder / "model")
    marker = tmp_path / "MARKER"
    (model / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil:\n    pass\n")
    modules = json.loads((model / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "", "type": "evil.Evil"})
    (model / "modules.json").write_text(json.dumps(modules))
    claim(folder, {**GOOD, "name": str(model), "options": {"trust_remote_code": True}})
    with pytest.raises(IndexFormatError, match="the option 'trust_remote_code' is not one of"):
        Retriever.open(folder, device="cpu", read_only=True)
    claim(folder, {**GOOD, "name": str(model)})
    with pytest.raises(InvalidArgumentError, match=r"names 'evil\.Evil', which is code of its own"):
        Retriever.open(folder, device="cpu", read_only=True)
    claim(folder, {**GOOD, "name": "\\\\host\\share"})
    with pytest.raises(InvalidArgumentError, match="its name is that of a network share"):
        Retriever.open(folder, device="cpu", read_only=True)
    claim(folder, {**GOOD, "name": str(tmp_path / "gone")})
    with pytest.raises(ModelLoadError, match="there is no such folder on this machine"):
        Retriever.open(folder, device="cpu", read_only=True)
    assert not marker.exists()


def test_other_options_work_for_who_gives_them_and_are_not_stored(tiny, tmp_path):
    folder = tmp_path / "index"
    options = {"max_length_document": 8, "local_files_only": True, "model_kwargs": {"attn_implementation": "eager"}}
    with Retriever(tiny, folder, device="cpu", model_options=options) as retriever:
        retriever.add(["word " * 50])
        assert retriever.model.transformers_model.config._attn_implementation == "eager"
        stored = retriever.index.settings["retriever"]
        assert stored["options"] == {"max_length_document": 8}
        assert stored["unstored"] == ["local_files_only", "model_kwargs"]
    with pytest.raises(InvalidArgumentError, match="not stored: 'local_files_only', 'model_kwargs'"):
        Retriever.open(folder, device="cpu")
    with Retriever(tiny, folder, device="cpu", model_options=options) as again:
        assert len(again.search("word")) == 1
