"""Every tensor of a checkpoint is used, or named; and each token that a text may have is one, with an embedding."""

import json
import re
from dataclasses import replace

import pytest
import torch
from layouts import LAYOUTS, Checkpoint, Head, Layout, random, stanford
from safetensors.torch import load_file, save_file

from latelier.errors import ModelLoadError
from latelier.models import ColBERT, load

TEXTS = ["where do pears grow?", "A fig. " * 9]
STANFORD = "colbert-ir/colbertv2.0"
PYLATE = "colbert-ko: PyLate 1.6"


def written(name, folder, **changes):
    checkpoint = Checkpoint(replace(LAYOUTS[name], **changes))
    checkpoint.write(folder)
    return checkpoint


def edit_weights(folder, edit):
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def edit_json(path, edit):
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def assert_equal(folder, checkpoint):
    model = ColBERT(folder, device="cpu")
    for text in TEXTS:
        expected = checkpoint.by_hand(text, "query")
        torch.testing.assert_close(model.encode_query(text), expected, rtol=0, atol=2e-6)
    together = model.encode_document(TEXTS)
    for text, found in zip(TEXTS, together, strict=True):
        torch.testing.assert_close(found, checkpoint.by_hand(text, "document"), rtol=0, atol=2e-6)
    return model


def rename(weights, old, new):
    for name in [name for name in weights if name.startswith(old)]:
        weights[new + name.removeprefix(old)] = weights.pop(name)


def shard(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = {"a.safetensors": list(weights)[::2], "b.safetensors": list(weights)[1::2]}
    for file, some in names.items():
        save_file({name: weights[name] for name in some}, folder / file, metadata={"format": "pt"})
    places = {name: file for file, some in names.items() for name in some}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def name_masked_lm(folder):
    edit_weights(folder, lambda weights: weights.update({"cls.predictions.bias": random(1, 9)}))


@pytest.mark.parametrize(
    "edit",
    [
        lambda folder: edit_weights(folder, lambda weights: rename(weights, "linear.", "compressor.")),
        lambda folder: edit_weights(folder, lambda weights: rename(weights, "linear.", "output.0.")),
        lambda folder: edit_weights(folder, lambda weights: rename(weights, "bert.pooler.", "cls.")),
        lambda folder: edit_weights(
            folder, lambda weights: weights.update({"bert.embeddings.position_ids": random(1, 1)})
        ),
        lambda folder: edit_weights(
            folder,
            lambda weights: rename(
                weights, "bert.encoder.layer.0.output.LayerNorm.weight", "bert.encoder.layer.0.output.LayerNorm.gamma"
            ),
        ),
        name_masked_lm,
        shard,
    ],
    ids=["another name", "no known name", "no pooler", "position ids", "gamma", "head of pretraining", "shards"],
)
def test_a_head_is_read_with_its_bias_under_any_name(edit, tmp_path):
    checkpoint = written(STANFORD, tmp_path / "model", heads=(Head(16, bias=True),))
    edit(tmp_path / "model")
    assert_equal(tmp_path / "model", checkpoint)


LAYER = "bert.encoder.layer.1.output."


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.update({"linear2.weight": random(1, 8, 16)}), r"hold linear2\.weight \(8 x 16\)"),
        (lambda w: w.update({"norm.weight": random(1, 16)}), r"hold norm\.weight \(16\)"),
        (lambda w: w.update({"linear.scale": random(1, 1)}), r"hold linear\.scale \(1\)"),
        (lambda w: w.update({"proj.weight": random(1, 16, 32)}), r"several heads: .*proj\.weight \(16 x 32\)"),
        (lambda w: w.update({"bert.encoder.layer.2.output.dense.bias": random(1, 32)}), r"layer\.2\.output\.dense"),
        (lambda w: w.pop(f"{LAYER}LayerNorm.weight"), r"lack encoder\.layer\.1\.output\.LayerNorm\.weight"),
        (lambda w: rename(w, "bert.", "backbone."), r"lack embeddings\..* and \d+ more"),
        (lambda w: w.pop("linear.weight"), "hold no head"),
        (lambda w: w.update({"linear.weight": random(1, 16, 31)}), r"hold linear\.weight \(16 x 31\)"),
    ],
)
def test_what_stanfords_weights_have_too_much_or_too_little_is_an_error(edit, message, tmp_path):
    written(STANFORD, tmp_path / "model")
    edit_weights(tmp_path / "model", edit)
    with pytest.raises(ModelLoadError, match=message):
        ColBERT(tmp_path / "model", device="cpu")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda folder: edit_weights(folder, lambda w: w.update({"linear.weight": random(1, 8, 32)})),
            r"linear\.weight \(8 x 32\), which modules\.json does not list",
        ),
        (
            lambda folder: edit_weights(folder, lambda w: w.pop("embeddings.LayerNorm.bias")),
            r"lack embeddings\.LayerNorm\.bias",
        ),
        (lambda folder: edit_json(folder / "modules.json", lambda each: each.pop(2)), "2_Dense, a layer that"),
        (
            lambda folder: edit_json(folder / "modules.json", lambda each: each.__delitem__(slice(1, 3))),
            "lists no head",
        ),
        (
            lambda folder: edit_json(folder / "1_Dense" / "config.json", lambda each: each.update(bias=False)),
            r"1_Dense hold linear\.bias \(24\), .*is of linear\.weight",
        ),
        (
            lambda folder: edit_json(folder / "1_Dense" / "config.json", lambda each: each.update(use_residual=False)),
            r"1_Dense hold .*residual\.weight \(24 x 32\), and its",
        ),
        (
            lambda folder: edit_json(
                folder / "1_Dense" / "config.json", lambda each: each.update(activation_function="mine.Gelu")
            ),
            r"activation 'mine\.Gelu', which is code of its own.*trust_remote_code",
        ),
    ],
)
def test_what_pylates_layout_has_too_much_or_too_little_is_an_error(edit, message, tmp_path):
    heads = (Head(24, residual=True, bias=True), Head(16))
    checkpoint = written(PYLATE, tmp_path / "model", heads=heads)
    same = {"linear.weight": checkpoint.heads[1]["linear.weight"]}  # as beside a copy of Stanford's
    edit_weights(tmp_path / "model", lambda weights: weights.update(same))
    assert_equal(tmp_path / "model", checkpoint)
    edit(tmp_path / "model")
    with pytest.raises(ModelLoadError, match=message):
        ColBERT(tmp_path / "model", device="cpu")


def test_a_dense_model_names_what_it_does_not_use(tmp_path):
    checkpoint = written("BAAI/bge-m3", tmp_path / "model", write=lambda built, folder: None)
    (tmp_path / "model" / "modules.json").write_text(
        json.dumps([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}])
    )
    edit_weights(tmp_path / "model", lambda weights: weights.update({"linear.weight": random(1, 8, 32)}))
    with pytest.warns(UserWarning, match=r"are not used: linear\.weight \(8 x 32\)"):
        assert load(str(tmp_path / "model"), "cpu").embedding_size == 32
    edit_weights(tmp_path / "model", lambda weights: weights.pop("embeddings.LayerNorm.bias"))
    with pytest.raises(ModelLoadError, match=r"lack embeddings\.LayerNorm\.bias"):
        load(str(tmp_path / "model"), "cpu")
    assert checkpoint.encoder.config.hidden_size == 32


def test_a_type_that_transformers_does_not_know_is_named_with_its_weights(tmp_path):
    written(STANFORD, tmp_path / "model", heads=(Head(16, bias=True),))
    edit_json(tmp_path / "model" / "config.json", lambda each: each.update(model_type="ColBERT"))
    message = r"type 'ColBERT'.*bert \(39 tensors\), linear\.bias \(16\), linear\.weight \(16 x 32\)"
    with pytest.raises(ModelLoadError, match=message):
        ColBERT(tmp_path / "model", device="cpu")


@pytest.mark.parametrize("encoder", ["XLMRoberta", "Bert"])
def test_a_marker_that_the_vocabulary_lacks_is_the_unknown_token(encoder, tmp_path):
    layout = Layout(stanford, encoder, markers=("[unused0]", "[D]"))
    checkpoint = Checkpoint(replace(layout, markers=("", "")))
    unknown = checkpoint.tokenizer.unk_token
    checkpoint.layout = replace(layout, markers=(unknown, unknown))
    folder = tmp_path / "model"
    checkpoint.write(folder)
    edit_json(folder / "artifact.metadata", lambda each: each.update(query_token_id="[nowhere]", doc_token_id="[D]"))
    if encoder == "XLMRoberta":
        edit_weights(folder, lambda weights: rename(weights, "bert.", "roberta."))
    with pytest.warns(UserWarning, match=rf"'\[nowhere\]' .* not in its vocabulary: .* '{re.escape(unknown)}'"):
        model = assert_equal(folder, checkpoint)
    model.save(tmp_path / "saved")
    assert_equal(tmp_path / "saved", checkpoint)


@pytest.mark.parametrize(
    ("name", "file", "setting", "message"),
    [
        (PYLATE, "config_sentence_transformers.json", {"query_prefix": "[Query] "}, r"query marker '\[Query\]' is not"),
        (PYLATE, "config_sentence_transformers.json", {"document_prefix": "doc: "}, "document marker 'doc:' is not"),
        (PYLATE, "config_sentence_transformers.json", {"skiplist_words": [5, 6]}, r"skiplist_words = \[5, 6\]"),
        (PYLATE, "config_sentence_transformers.json", {"query_length": 12.0}, r"query_length = 12\.0"),
        (PYLATE, "sentence_bert_config.json", {"max_seq_length": "24"}, "max_seq_length = '24'"),
        (STANFORD, "artifact.metadata", {"doc_maxlen": 24.5}, r"doc_maxlen = 24\.5"),
        (
            "sentence-transformers 6",
            "2_MultiVectorMask/config.json",
            {"skiplist_words": [5]},
            r"skiplist_words = \[5\]",
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_errors(name, file, setting, message, tmp_path):
    written(name, tmp_path / "model")
    edit_json(tmp_path / "model" / file, lambda each: each.update(setting))
    with pytest.raises(ModelLoadError, match=message):
        ColBERT(tmp_path / "model", device="cpu")


def test_tokens_without_embeddings_are_an_error_unless_no_text_has_them(tmp_path):
    checkpoint = written(STANFORD, tmp_path / "model")
    checkpoint.tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    checkpoint.tokenizer.save_pretrained(tmp_path / "model")
    assert_equal(tmp_path / "model", checkpoint)
    checkpoint.tokenizer.add_tokens(["quince"])
    checkpoint.tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(ModelLoadError, match="'quince' of its tokenizer have no embeddings"):
        ColBERT(tmp_path / "model", device="cpu")


@pytest.mark.parametrize("encoder", ["Bert", "XLMRoberta", "DistilBert", "DebertaV2", "Qwen3"])
def test_the_padding_side_of_the_tokenizer_file_does_not_reach_documents(encoder, tmp_path):
    checkpoint = written(PYLATE, tmp_path / "model", encoder=encoder, expands=False)
    edit_json(tmp_path / "model" / "tokenizer_config.json", lambda each: each.update(padding_side="left"))
    model = assert_equal(tmp_path / "model", checkpoint)
    together = model.encode_document(TEXTS)
    for text, found in zip(TEXTS, together, strict=True):
        torch.testing.assert_close(found, model.encode_document(text), rtol=0, atol=1e-6)
