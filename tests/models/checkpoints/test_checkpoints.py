"""Bare encoders, dense models with heads, our own checkpoints; damaged and incomplete ones."""

import json
import re
import shutil
import socket
from pathlib import Path

import huggingface_hub
import pytest
import torch
from folders import PUNCTUATION, append, bare, by_hand, dense_with_head, head, write, write_dense
from safetensors.torch import save_file
from sentence_transformers import MultiVectorEncoder

from latelier.errors import InvalidArgumentError, ModelLoadError
from latelier.models import UNTRAINED, ColBERT

QUERIES = ["what is a pear?", "fruits are healthy."]
DOCUMENTS = ["Fruits, like pears (and apples), are good for health!", "A pear."]


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=1e-5, atol=2e-6)


def assert_plain_loads_the_same(model, folder):
    plain = MultiVectorEncoder(str(folder), device="cpu")
    assert_same(model.encode_query(QUERIES), plain.encode_query(QUERIES))
    assert_same(model.encode_document(DOCUMENTS), plain.encode_document(DOCUMENTS))


def test_a_bare_encoder_gets_the_recipe(tiny, tmp_path):
    folder = bare(tiny, tmp_path / "bare")
    model = ColBERT(folder, embedding_size=16, max_length_query=20, device="cpu")
    model.save_pretrained(tmp_path / "ours")
    weight = model[1].linear.weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(16), rtol=0, atol=1e-5)  # orthogonal
    expected = [by_hand(tmp_path / "ours", q, marker_id=30522, weight=weight, width=20) for q in QUERIES]
    assert_same(model.encode_query(QUERIES), expected)
    expected = [by_hand(tmp_path / "ours", d, marker_id=30523, weight=weight, skip=PUNCTUATION) for d in DOCUMENTS]
    assert_same(model.encode_document(DOCUMENTS), expected)


def test_ours_survives_a_round_trip_with_every_setting(tiny, tmp_path):
    model = ColBERT(tiny, embedding_size=32, max_length_query=16, max_length_document=40, device="cpu")
    model.save_pretrained(tmp_path / "ours")
    again = ColBERT(tmp_path / "ours", device="cpu")
    assert_same(model.encode_query(QUERIES), again.encode_query(QUERIES))
    assert_same(model.encode_document(DOCUMENTS), again.encode_document(DOCUMENTS))
    assert (again.max_length_query, again.max_length_document, again.embedding_size) == (16, 40, 32)
    assert again.prompts == {"query": "[Q] ", "document": "[D] "}
    assert_plain_loads_the_same(model, tmp_path / "ours")
    shorter = ColBERT(tmp_path / "ours", max_length_query=12, max_length_document=8, device="cpu")
    assert shorter.encode_query("pear").shape[0] == 12
    assert shorter.encode_document(" ".join(["pear"] * 50)).shape[0] == 8
    longer = ColBERT(tmp_path / "ours", max_length_query=48, device="cpu")
    assert (longer.encode_query("pear").shape[0], longer.max_length_document) == (48, 40)


def kinds(model):
    return [type(module).__name__ for module in model]


def test_a_trained_dense_head_is_kept(tiny, tmp_path, caplog):
    folder = dense_with_head(tiny, tmp_path / "dense", 64)
    with caplog.at_level("WARNING"):
        model = ColBERT(folder, device="cpu")
    assert "linear layer is kept as the head" in caplog.text
    assert kinds(model) == ["Transformer", "Dense", "MultiVectorMask", "Normalize"]
    torch.testing.assert_close(model[1].linear.weight.detach(), head(64))
    assert model.encode_document("pear").shape[1] == model.embedding_size == 64
    with pytest.warns(UserWarning, match="embedding_size=8 is ignored") as caught:
        assert ColBERT(folder, embedding_size=8, device="cpu").embedding_size == 64
    assert [each.filename for each in caught] == [__file__]
    model.save(tmp_path / "ours")
    assert_same(ColBERT(tmp_path / "ours", device="cpu").encode_query(QUERIES), model.encode_query(QUERIES))


@pytest.mark.parametrize("layers", ["tanh and bias", "two", "before the pooling"])
def test_dense_layers_are_applied_as_sentence_transformers_applies_them(tiny, tmp_path, layers):
    folder = dense_with_head(tiny, tmp_path / "dense", 32, activation="activation.Tanh", bias=True)
    if layers == "two":
        append(folder, "Dense", lambda path: write_dense(path, head(24, 32)))
    if layers == "before the pooling":
        modules = json.loads((folder / "modules.json").read_text())
        order = [modules[0], modules[2], modules[1]]
        write(folder / "modules.json", [{**module, "idx": i} for i, module in enumerate(order)])
        config = folder / modules[2]["path"] / "config.json"
        write(config, {**json.loads(config.read_text()), "module_input_name": "token_embeddings"})
        pooling = folder / modules[1]["path"] / "config.json"
        write(pooling, {**json.loads(pooling.read_text()), "word_embedding_dimension": 32})
    theirs = MultiVectorEncoder(str(folder), device="cpu").encode_document(DOCUMENTS, prompt="")
    for model in (ColBERT.from_dense(folder, device="cpu"), ColBERT(folder, device="cpu", recipe=UNTRAINED)):
        assert kinds(model)[1:] == ["Dense"] * (2 if layers == "two" else 1) + ["MultiVectorMask", "Normalize"]
        assert_same(model.encode_document(DOCUMENTS, prompt=""), theirs)


def test_what_works_on_the_pooled_vector_alone_is_left_out_by_name(tiny, tmp_path):
    folder = dense_with_head(tiny, tmp_path / "wide", in_features=768)  # as behind two poolings side by side
    with pytest.warns(UserWarning, match="wide is left out: it reads 768 numbers") as caught:
        model = ColBERT(folder, device="cpu")
    assert [each.filename for each in caught] == [__file__]
    assert model.encode_document("pear").shape[1] == 128  # a head to learn, as for any encoder
    folder = dense_with_head(tiny, tmp_path / "norm")

    def layer_norm(path):
        path.mkdir()
        write(path / "config.json", {"dimension": 16})
        save_file({"norm.weight": torch.ones(16), "norm.bias": torch.zeros(16)}, path / "model.safetensors")

    append(folder, "LayerNorm", layer_norm)
    with pytest.warns(UserWarning, match=r"the LayerNorm of .*norm is left out"):
        assert ColBERT.from_dense(folder, device="cpu").encode_document("pear").shape[1] == 16


def test_a_projection_behind_a_trained_head(tiny, tmp_path):
    folder = dense_with_head(tiny, tmp_path / "dense", 64)
    smaller = ColBERT.from_dense(folder, "orthogonal", 16, device="cpu")
    assert kinds(smaller)[1:3] == ["Dense", "Dense"]
    assert smaller.encode_document("pear").shape[1] == 16
    assert kinds(ColBERT.from_dense(folder, "orthogonal", 64, device="cpu")).count("Dense") == 1
    for projection in ("orthogonal", "pca"):
        with pytest.raises(InvalidArgumentError, match=r"128 dimensions.*vectors have 64"):
            ColBERT.from_dense(folder, projection, device="cpu")


def test_from_dense_keeps_the_prompts_and_the_head_that_a_model_was_trained_with(tiny, tmp_path):
    folder = dense_with_head(tiny, tmp_path / "dense")
    model = ColBERT.from_dense(folder, device="cpu")
    plain = bare(tiny, tmp_path / "bare")
    expected = [by_hand(plain, "query: " + q, marker_id=None, weight=head()) for q in QUERIES]
    assert_same(model.encode_query(QUERIES), expected)
    expected = [by_hand(plain, "passage: " + d, marker_id=None, weight=head()) for d in DOCUMENTS]
    assert_same(model.encode_document(DOCUMENTS), expected)


def test_a_missing_model_says_what_to_do(tmp_path, monkeypatch, caplog):
    with pytest.raises(ModelLoadError, match=r"'nobody/nothing'.*latelier\[demo\]"):
        ColBERT("nobody/nothing", device="cpu")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError, match=r"empty.*none of config\.json"):
        ColBERT(tmp_path / "empty", device="cpu")
    monkeypatch.chdir(tmp_path)
    caplog.clear()
    for name in ("./absent", str(tmp_path / "absent"), "a/b/absent", "a b", "a..b/c"):  # no names on the hub
        with pytest.raises(ModelLoadError, match=f"there is no folder {re.escape(str(Path(name).absolute()))}"):
            ColBERT(name, device="cpu")
    assert caplog.text == ""  # the loader would warn of a revision that it could not resolve


def test_a_hub_that_cannot_be_reached_is_asked_once(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:  # its port is free again after the block
        port = closed.getsockname()[1]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(ModelLoadError, match=rf"not on this machine, and http://127\.0\.0\.1:{port} cannot be reached"):
        ColBERT("nobody/nothing", device="cpu", cache_folder=str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"'nobody/nothing': (?!it is not on this machine, and http)"):
        ColBERT("nobody/nothing", device="cpu", cache_folder=str(tmp_path), local_files_only=True)


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    ColBERT(tiny, embedding_size=8, device="cpu").save(folder)
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def assert_is_refused(folder, reason):
    with pytest.raises(ModelLoadError, match=f"'{re.escape(str(folder))}': {reason}"):
        ColBERT(folder, device="cpu")


@pytest.mark.parametrize(
    "file", ["1_Dense/model.safetensors", "2_MultiVectorMask/config.json", "modules.json", "tokenizer.json"]
)
def test_truncated_files(copy, file):
    contents = (copy / file).read_bytes()
    (copy / file).write_bytes(contents[: len(contents) // 2])
    assert_is_refused(copy, "(JSONDecode|Safetensor|Value)Error: ")


def test_other_contents(copy):
    config = json.loads((copy / "1_Dense" / "config.json").read_text())
    (copy / "1_Dense" / "config.json").write_text(json.dumps({**config, "out_features": 5}))
    assert_is_refused(copy, r"the weights in 1_Dense hold linear\.weight \(8 x 48\), .* of linear\.weight \(5 x 48\)")
    (copy / "modules.json").write_text("[]")
    assert_is_refused(copy, r"its modules\.json lists no modules\.")
