"""Searching with an exported encoder: the results of the model itself, found only where this user has exported it."""

import os
import shutil

import numpy as np
import pytest
import torch

from latelier import indexes
from latelier.errors import InvalidArgumentError
from latelier.models import ColBERT
from latelier.retrieve import Retriever

pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")

TEXTS = ["pears grow on trees", "the moon is far", "a word", "un-hyphenated words, many of them", "trees and moons"]
LENGTHS = {"max_length_document": 12, "max_length_query": 8}


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory):
    home = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LATELIER_CACHE", str(home / "cache"))
        model = shutil.copytree(tiny, home / "model")
        with Retriever(model, home / "index", device="cpu", model_options=LENGTHS) as retriever:
            retriever.add(TEXTS)
            folder = retriever.export_encoder()
            assert list((home / "cache" / "encoders").iterdir()) == [folder]
        yield home


@pytest.fixture
def home(exported, tmp_path, monkeypatch):
    home = shutil.copytree(exported, tmp_path / "home")
    monkeypatch.setenv("LATELIER_CACHE", str(home / "cache"))
    return home


def test_results_are_those_of_the_model(exported):
    with Retriever.open(exported / "index") as quick, Retriever.open(exported / "index", backend="torch") as slow:
        for query, whole in (("pears", True), ("far trees", False), ("word " * 40, False), ("a word " * 20, True)):
            found, expected = (each.search(query, whole_query=whole) for each in (quick, slow))
            assert found.unread == (0 if whole or query == "far trees" else 34)
            assert [result.id for result in found] == [result.id for result in expected]
            np.testing.assert_allclose([r.score for r in found], [r.score for r in expected], rtol=0, atol=1e-4)
        for id_ in range(len(TEXTS)):
            one, other = quick.explain("un-hyphenated moons", id_), slow.explain("un-hyphenated moons", id_)
            assert (one.query_words, one.document_words) == (other.query_words, other.document_words)
            assert [match.position for match in one.tokens] == [match.position for match in other.tokens]
            assert [span[:2] for span in one.spans] == [span[:2] for span in other.spans]
        assert repr(quick) == repr(slow)


@pytest.mark.parametrize(
    "change", [{"name": "a/model"}, {"options": {"max_length_query": 30}}, {"fingerprint": [0.5] * 48}]
)
def test_an_encoder_is_found_by_name_options_and_fingerprint(home, change):
    # What lies in the folder of an index, which may be anybody's, is not opened.
    [encoder] = (home / "cache" / "encoders").iterdir()
    shutil.copytree(encoder, home / "index" / "encoder")
    with indexes.open(home / "index") as index:
        index.settings["retriever"] = {**index.settings["retriever"], **change}
    with pytest.raises(InvalidArgumentError, match="no exported encoder of"):
        Retriever.open(home / "index", backend="onnx")


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
@pytest.mark.parametrize("fault", ["damaged", "writable", "link"])
def test_exports_that_are_damaged_or_that_others_can_write_are_not_used_and_replaced(home, fault):
    [folder] = (home / "cache" / "encoders").iterdir()
    file = folder / "encoder.onnx"
    if fault == "damaged":
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    elif fault == "writable":
        file.chmod(0o666)
    else:
        file.rename(home / "elsewhere")
        file.symlink_to(home / "elsewhere")
    with pytest.raises(InvalidArgumentError, match="no exported encoder of"):
        Retriever.open(home / "index", backend="onnx")
    with Retriever.open(home / "index") as retriever:
        assert len(retriever.search("pears")) == len(TEXTS)
        retriever.export_encoder()
    with Retriever.open(home / "index", backend="onnx") as retriever:
        assert len(retriever.search("pears")) == len(TEXTS)


def test_a_copy_of_an_export_is_a_model_that_the_user_names(home):
    [folder] = (home / "cache" / "encoders").iterdir()
    encoder = folder.rename(home / "encoder")
    shutil.rmtree(home / "model")
    with Retriever.open(home / "index", model=encoder, backend="onnx") as retriever:
        assert retriever.search("pears", k=1)[0].id == 0
        retriever.add([("new", "pears and moons")])
        assert retriever.search("pears and moons", k=1)[0].id == "new"
        with pytest.raises(InvalidArgumentError, match="is an exported encoder"):
            retriever.export_encoder()
    with pytest.raises(InvalidArgumentError, match="which runs on the CPU"):
        Retriever(encoder, device="cuda")
    with pytest.raises(InvalidArgumentError, match="omit device and model_options"):
        Retriever(encoder, model_options={"truncate_dim": 8})
    with Retriever(encoder, home / "another") as retriever:
        retriever.add(TEXTS)
        assert retriever.search("the moon is far", k=1)[0].id == 1


def test_another_model_of_the_same_space_is_exported_for_itself(exported, home):
    [folder] = (home / "cache" / "encoders").iterdir()
    shutil.rmtree(folder)
    similar = ColBERT.from_dense(str(home / "model"), device="cpu", **LENGTHS)
    with torch.no_grad():
        for weights in similar.parameters():
            weights.add_(0.1 * weights.std() * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0)))
    similar.save(home / "similar")
    with Retriever.open(home / "index", model=home / "similar", device="cpu", same_space=True) as retriever:
        other = retriever.export_encoder()
    assert other != folder
    with Retriever.open(home / "index", backend="onnx") as retriever:  # which keeps it for queries
        assert retriever.model_name == str(home / "similar")
        del retriever.index.settings["queries"]
    with pytest.raises(InvalidArgumentError, match="no exported encoder of"):
        Retriever.open(home / "index", backend="onnx")
    with Retriever.open(home / "index", model=other, same_space=True) as retriever:
        assert retriever.run({"q": "pears"}).settings["document_model"] == str(exported / "model")
