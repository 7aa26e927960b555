"""Checkpoints with one thing wrong: each setting and tensor is used as it is meant, named, or refused in loading."""

import json
import re
import shutil
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from layouts import ABSENT, LAYOUTS, Checkpoint, Head, random
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from latelier.errors import ModelLoadError
from latelier.models import ColBERT
from latelier.retrieve import Retriever

PYLATE = "colbert-ko: PyLate 1.6"
STANFORD = "colbert-ir/colbertv2.0"
NATIVE = "sentence-transformers 6"
CHERCHE = "neural-cherche"
MODEL_FILE = "config_sentence_transformers.json"
ENCODER_FILE = "sentence_bert_config.json"
DENSE = "1_Dense/config.json"
NORMALIZE = "3_Normalize/config.json"
MASK = "2_MultiVectorMask/config.json"
LONG = "pears and figs grow on trees " * 80


def written(name, folder, **changes):
    checkpoint = Checkpoint(replace(LAYOUTS[name], **changes))
    checkpoint.write(folder)
    return checkpoint


def edit_json(path, **changes):
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ABSENT}))


def edit_weights(folder, edit, file="model.safetensors"):
    weights = load_file(folder / file)
    edit(weights)
    save_file({name: each.contiguous() for name, each in weights.items()}, folder / file, metadata={"format": "pt"})


SETTINGS = [
    (PYLATE, MODEL_FILE, {"document_length": 0}, "document_length = 0, which is not a whole number of at least 4"),
    (PYLATE, MODEL_FILE, {"query_length": 0}, "query_length = 0"),
    (PYLATE, MODEL_FILE, {"query_length": -4}, "query_length = -4"),
    (PYLATE, MODEL_FILE, {"query_length": True}, "query_length = True"),
    (PYLATE, ENCODER_FILE, {"max_seq_length": 0}, "max_seq_length = 0"),
    (STANFORD, "artifact.metadata", {"doc_maxlen": 0}, "doc_maxlen = 0"),
    (STANFORD, "artifact.metadata", {"query_maxlen": 2}, "query_maxlen = 2"),
    (NATIVE, ENCODER_FILE, {"query_expansion": {"strategy": "fixed", "length": 0}}, "an object with a length"),
    (NATIVE, ENCODER_FILE, {"query_expansion": "fixed"}, "query_expansion = 'fixed', which is not an object"),
    (NATIVE, ENCODER_FILE, {"query_expansion": {"strategy": "all", "length": 12}}, "must be one of"),
    (STANFORD, "artifact.metadata", {"similarity": "l2"}, "similarity = 'l2', which is not 'cosine'"),
    (STANFORD, "artifact.metadata", {"attend_to_mask_tokens": "false"}, "'false', which is not true or false"),
    (STANFORD, "artifact.metadata", {"mask_punctuation": "no"}, "mask_punctuation = 'no'"),
    (STANFORD, "artifact.metadata", {"query_token_id": 7}, "query_token_id = 7, which is not a text"),
    (STANFORD, "artifact.metadata", {"dim": 8}, r"dim = 8, and its head is linear\.weight \(16 x 32\)"),
    (PYLATE, MODEL_FILE, {"do_query_expansion": "false"}, "do_query_expansion = 'false'"),
    (PYLATE, MODEL_FILE, {"attend_to_expansion_tokens": 0}, "attend_to_expansion_tokens = 0"),
    (PYLATE, MODEL_FILE, {"query_prefix": 5}, "query_prefix = 5"),
    (PYLATE, MODEL_FILE, {"prompts": ["a"]}, "prompts = .*an object of texts"),
    (PYLATE, MODEL_FILE, {"prompts": {"query": 5}}, "prompts = .*an object of texts"),
    (PYLATE, MODEL_FILE, {"default_prompt_name": "nope"}, "default_prompt_name = 'nope', and no such prompt"),
    (PYLATE, MODEL_FILE, {"similarity_fn_name": "euclidean"}, "similarity_fn_name = 'euclidean'"),
    (PYLATE, ENCODER_FILE, {"do_lower_case": "false"}, "do_lower_case = 'false'"),
    (NATIVE, MASK, {"skiplist_tasks": "document"}, "skiplist_tasks = 'document', which is not a list"),
    (NATIVE, MASK, {"skiplist_tasks": ["documents"]}, "skiplist_tasks"),
    (NATIVE, MASK, {"keep_only_token_ids": ["a"]}, "keep_only_token_ids = .*a list of token ids"),
    (NATIVE, MASK, {"keep_only_token_ids": [100_000]}, "keeps the token 100000, of"),
    (CHERCHE, "metadata.json", {"add_special_tokens": False}, "add_special_tokens = False, which is not true"),
    (CHERCHE, "metadata.json", {"max_length_document": 0}, "max_length_document = 0"),
    (PYLATE, DENSE, {"scale": 2.0}, "has scale, which is not read"),
    (PYLATE, DENSE, {"use_residual": "false"}, "use_residual = 'false'"),
    (PYLATE, DENSE, {"activation_function": ABSENT}, "does not say activation_function"),
    (PYLATE, DENSE, {"activation_function": "torch.nn.modules.activation.Nope"}, "Nope', which torch"),
    (PYLATE, DENSE, {"out_features": 8}, r"hold linear\.weight \(16 x 32\), and its config\.json is of .*\(8 x 32\)"),
    (NATIVE, DENSE, {"module_input_name": "sentence_embedding"}, "KeyError: 'sentence_embedding'"),
    (PYLATE, "config.json", {"model_type": "roberta"}, "model_type = 'roberta', and the BertModel of 'bert'"),
    (PYLATE, "config.json", {"position_embedding_type": "relative_key"}, "'relative_key', and transformers"),
    (PYLATE, MODEL_FILE, {"similarity_fn_name": "cosine"}, "similarity_fn_name = 'cosine'"),
    (NATIVE, MODEL_FILE, {"similarity_fn_name": "cosine"}, "similarity_fn_name = 'cosine'"),
    (STANFORD, "artifact.metadata", {"relu": True}, "relu = True, which is not false"),
    (PYLATE, ENCODER_FILE, {"pooling": "mean"}, "has pooling, which is not read"),
    (NATIVE, MASK, {"extra": 1}, "has extra, which is not read"),
    (NATIVE, NORMALIZE, {"module_input_name": "sentence_embedding"}, "is not 'token_embeddings'"),
    (PYLATE, "config.json", {"vocab_size": 300}, r"word_embeddings\.weight \(\d+ x 32\), and its .*\(300 x 32\)"),
]


@pytest.mark.parametrize(("name", "file", "changes", "message"), SETTINGS)
def test_settings_that_would_be_taken_for_others_are_refused(name, file, changes, message, tmp_path):
    written(name, tmp_path / "model")
    edit_json(tmp_path / "model" / file, **changes)
    with pytest.raises(ModelLoadError, match=message) as raised:
        ColBERT(tmp_path / "model", device="cpu")
    assert "be online" not in str(raised.value)


def set_one(name, number):
    return lambda weights: weights[name].__setitem__((0, 0), number)


def as_bytes(weights):
    for name in [name for name in weights if name.endswith(("dense.weight", "linear.weight"))]:
        weights[name] = (weights[name] * 100).round().to(torch.int8)


INNER = "encoder.layer.0.output.dense.weight"
TENSORS = [
    (PYLATE, "1_Dense", set_one("linear.weight", torch.nan), r"1\.linear\.weight with numbers that are not finite"),
    (PYLATE, "", set_one(INNER, torch.nan), "not finite"),
    (STANFORD, "", set_one(f"bert.{INNER}", torch.inf), "not finite"),
    (PYLATE, "1_Dense", lambda weights: weights["linear.weight"].zero_(), "are zero"),
    (PYLATE, "1_Dense", lambda weights: weights.update({"linear.scale": random(1, 16)}), r"hold .*linear\.scale"),
    (PYLATE, "1_Dense", lambda weights: weights.update({"w": weights.pop("linear.weight")}), r"hold w \(16 x 32\)"),
    (PYLATE, "1_Dense", as_bytes, r"linear\.weight \(I8\) \(16 x 32\), numbers without a scale"),
    (PYLATE, "", as_bytes, "numbers without a scale"),
    (STANFORD, "", as_bytes, "numbers without a scale"),
    (PYLATE, "", lambda weights: weights.update({INNER: random(1, 30, 40)}), r"hold .*\(30 x 40\), .*\(32 x 40\)"),
]


@pytest.mark.parametrize(("name", "folder", "edit", "message"), TENSORS)
def test_tensors_that_make_no_vectors_are_refused(name, folder, edit, message, tmp_path):
    written(name, tmp_path / "model")
    edit_weights(tmp_path / "model" / folder, edit)
    with pytest.raises(ModelLoadError, match=message):
        ColBERT(tmp_path / "model", device="cpu")


HEADS = [
    ({"weight": torch.ones(16, 32, dtype=torch.int8)}, r"weight \(torch\.int8\) \(16 x 32\), in linear\.pt, numbers"),
    ({"bias": torch.ones(16)}, r"linear\.pt holds no weight"),
    ({"weight": random(1, 16, 31)}, r"modules, Transformer, Dense \(31 -> 16\)"),
    ({"weight": random(1, 16, 32), "scale": torch.ones(1)}, r"hold scale \(1\), in linear\.pt"),
]


@pytest.mark.parametrize(("tensors", "message"), HEADS)
def test_heads_in_a_file_of_their_own(tensors, message, tmp_path):
    written(CHERCHE, tmp_path / "model")
    torch.save(tensors, tmp_path / "model" / "linear.pt")
    with pytest.raises(ModelLoadError, match=message):
        ColBERT(tmp_path / "model", device="cpu")


def exchange(i, j):
    def edit(modules):
        modules[i], modules[j] = modules[j], modules[i]

    return edit


SAME = {"heads": (Head(32), Head(32))}
ORDERS = [
    (PYLATE, exchange(0, 1), {}, "one encoder comes first|in the order"),
    (PYLATE, exchange(1, 2), SAME, r"in the order \[0, 2, 1\]"),
    (PYLATE, lambda modules: modules.append({**modules[1], "idx": 3}), SAME, "folder '1_Dense' more than once"),
    (PYLATE, lambda modules: modules.insert(1, {**modules[0]}), {}, "folder '' more than once"),
    (NATIVE, lambda modules: modules.append({**modules.pop(1), "idx": 9}), {}, "a Dense behind Normalize"),
]


@pytest.mark.parametrize(("name", "edit", "changes", "message"), ORDERS)
def test_modules_in_an_order_that_is_not_meant_are_refused(name, edit, changes, message, tmp_path):
    written(name, tmp_path / "model", **changes)
    path = tmp_path / "model" / "modules.json"
    modules = json.loads(path.read_text())
    edit(modules)
    path.write_text(json.dumps(modules))
    with pytest.raises(ModelLoadError, match=message):
        ColBERT(tmp_path / "model", device="cpu")


def test_a_head_of_another_width_than_the_encoder_is_refused(tmp_path):
    written(PYLATE, tmp_path / "model")
    edit_json(tmp_path / "model" / DENSE, in_features=31)
    edit_weights(tmp_path / "model" / "1_Dense", lambda weights: weights.update({"linear.weight": random(1, 16, 31)}))
    with pytest.raises(ModelLoadError, match=r"cannot be encoded by its modules, Transformer, Dense \(31 -> 16\)"):
        ColBERT(tmp_path / "model", device="cpu")


def change_tokenizer(folder, change):
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["model"]["vocab"].update(pear=90_000), "'pear' of its tokenizer have no embeddings"),
        (
            lambda content: content["post_processor"]["special_tokens"]["[CLS]"].update(ids=[90_000]),
            "token 90000 of its template",
        ),
    ],
)
@pytest.mark.parametrize("name", [PYLATE, STANFORD])
def test_token_ids_stay_below_the_vocabulary(name, change, message, tmp_path):
    written(name, tmp_path / "model")
    change_tokenizer(tmp_path / "model", change)
    with pytest.raises(ModelLoadError, match=message):
        ColBERT(tmp_path / "model", device="cpu")


def second_pickle(folder):
    torch.save({"linear.weight": random(1, 16, 32)}, folder / "pytorch_model.bin")


def stray(file):
    return lambda folder: save_file({"linear.weight": random(1, 16, 32)}, folder / file)


def setting(file, **changes):
    return lambda folder: edit_json(folder / file, **changes)


CODE = {"AutoModel": "modeling_mine.MyBert"}
NAMED = [
    (PYLATE, setting(MODEL_FILE, attend_to_expantion_tokens=True), "has attend_to_expantion_tokens, which is not read"),
    (STANFORD, setting("artifact.metadata", query_norm="l1"), "has query_norm, which is not read"),
    (PYLATE, setting("config.json", auto_map=CODE), r"names code of its own, .*MyBert'}, which is not run"),
    (PYLATE, setting("tokenizer_config.json", auto_map=CODE), "tokenizer_config.json names code of its own"),
    (PYLATE, setting(MODEL_FILE, prompts={"other": "p: "}), "queries and documents get no prompt: .*those of other"),
    (PYLATE, setting(MODEL_FILE, prompts={"other": "p: "}, default_prompt_name="other"), "takes the prompt of its"),
    (PYLATE, setting(MODEL_FILE, default_prompt_name="query"), "default_prompt_name = 'query'; each task takes"),
    (PYLATE, second_pickle, r"pytorch_model\.bin beside model\.safetensors is not read"),
    (PYLATE, lambda folder: second_pickle(folder / "1_Dense"), r"pytorch_model\.bin beside model\.safetensors"),
    (PYLATE, stray("adapter_model.safetensors"), r"adapter_model\.safetensors beside model\.safetensors is not"),
    (
        STANFORD,
        stray("model-00001-of-00002.safetensors"),
        r"model-00001-of-00002\.safetensors beside model\.safetensors is not read",
    ),
    (PYLATE, setting("tokenizer_config.json", model_max_length=10), "model_max_length = 10, below a length of 24"),
    (STANFORD, setting("tokenizer_config.json", model_max_length=10), "model_max_length = 10, below a length of 24"),
    (PYLATE, setting(ENCODER_FILE, max_seq_length=10), "max_seq_length = 10, below a length of 24"),
]


@pytest.mark.parametrize(("name", "change", "message"), NAMED)
def test_what_is_not_used_is_named_and_changes_no_vector(name, change, message, tmp_path):
    checkpoint = written(name, tmp_path / "model")
    change(tmp_path / "model")
    with pytest.warns(UserWarning, match=message):
        model = ColBERT(tmp_path / "model", device="cpu")
    expected = checkpoint.by_hand(LONG, "document")
    torch.testing.assert_close(model.encode_document(LONG), expected, rtol=0, atol=2e-6)
    assert (model.max_length_query, model.max_length_document) == checkpoint.layout.lengths
    assert model.max_seq_length >= model.max_length_document


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_early_files_of_pylate_name_the_similarity_of_normalised_vectors(similarity, tmp_path):
    checkpoint = written(PYLATE, tmp_path / "model")
    edit_json(tmp_path / "model" / MODEL_FILE, similarity_fn_name=similarity, model_type=ABSENT)
    model = ColBERT(tmp_path / "model", device="cpu")
    assert model.similarity_fn_name == "maxsim"
    expected = checkpoint.by_hand(LONG, "document")
    torch.testing.assert_close(model.encode_document(LONG), expected, rtol=0, atol=2e-6)


def test_lengths_above_the_positions_are_named(tmp_path):
    written(STANFORD, tmp_path / "model")
    edit_json(tmp_path / "model" / "artifact.metadata", doc_maxlen=8192)
    with pytest.warns(UserWarning, match="doc_maxlen = 8192, above the 520 tokens that its positions"):
        assert ColBERT(tmp_path / "model", device="cpu").max_length_document == 520


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("left", [11, 12, 23, 24])  # with or without the marker
def test_the_length_of_pylates_last_call_is_no_limit(left, tmp_path):
    checkpoint = written(PYLATE, tmp_path / "model")
    edit_json(tmp_path / "model" / ENCODER_FILE, max_seq_length=left)
    model = ColBERT(tmp_path / "model", device="cpu")
    expected = checkpoint.by_hand(LONG, "document")
    torch.testing.assert_close(model.encode_document(LONG), expected, rtol=0, atol=2e-6)
    model.save(tmp_path / "saved")
    again = ColBERT(tmp_path / "saved", device="cpu")
    assert (again.max_seq_length, again.max_length_document) == (24, 24)


def lists(file):
    return lambda folder: (folder / file).write_text("[1]")


def shards_without_names(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": ["a.safetensors"]}')


def tensor_alone(file):
    def change(folder):
        if file != "linear.pt":
            (folder / file).with_name("model.safetensors").unlink()
        torch.save(random(1, 16, 32), folder / file)

    return change


def eight_bits(folder):
    edit_json(folder / "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})


def list_module(kind):
    def change(folder):
        modules = json.loads((folder / "modules.json").read_text())
        (folder / "modules.json").write_text(json.dumps([*modules, {"idx": 9, "name": "9", "path": "9", "type": kind}]))

    return change


HOLDS_A_LIST = r"holds \[1\] \(list\), and not an object of settings"
CONTENTS = [
    *((PYLATE, lists(file), HOLDS_A_LIST) for file in (MODEL_FILE, ENCODER_FILE, DENSE, "config.json")),
    *((PYLATE, lists(file), HOLDS_A_LIST) for file in ("tokenizer_config.json", "adapter_config.json")),
    (STANFORD, lists("artifact.metadata"), HOLDS_A_LIST),
    (CHERCHE, lists("metadata.json"), HOLDS_A_LIST),
    (STANFORD, shards_without_names, r"index\.json holds \['a\.safetensors'\] \(list\), and not the files of tensors"),
    (PYLATE, lists("modules.json"), "and not a list of modules"),
    (PYLATE, list_module(5), "and not a list of modules, each with its type"),
    (PYLATE, list_module("sentence_transformers.models.Nope"), r"models\.Nope', which sentence-transformers \d"),
    (CHERCHE, tensor_alone("linear.pt"), r"linear\.pt holds .* \(Tensor\), and not tensors by their names"),
    (PYLATE, tensor_alone("1_Dense/pytorch_model.bin"), r"1_Dense/pytorch_model\.bin holds .* \(Tensor\)"),
    (PYLATE, tensor_alone("pytorch_model.bin"), r"pytorch_model\.bin holds .* \(Tensor\)"),
]


@pytest.mark.parametrize(("name", "change", "message"), CONTENTS)
def test_files_with_other_contents_are_refused(name, change, message, tmp_path):
    written(name, tmp_path / "model")
    change(tmp_path / "model")
    with pytest.raises(ModelLoadError, match=message):
        ColBERT(tmp_path / "model", device="cpu")


@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_a_package_that_a_checkpoint_needs_is_named(tmp_path):
    written(PYLATE, tmp_path / "model")
    eight_bits(tmp_path / "model")
    with pytest.raises(ModelLoadError, match=r"8-bit quantization requires bitsandbytes.*Install it"):
        ColBERT(tmp_path / "model", device="cpu")


@pytest.mark.parametrize(
    ("name", "file", "absent"),
    [(NATIVE, ENCODER_FILE, "document_length"), (STANFORD, "artifact.metadata", "doc_maxlen")],
)
def test_the_smaller_of_the_tokenizers_limit_and_the_positions_is_the_length(name, file, absent, tmp_path):
    written(name, tmp_path / "model")
    edit_json(tmp_path / "model" / file, **{absent: ABSENT})
    edit_json(tmp_path / "model" / "tokenizer_config.json", model_max_length=20)
    model = ColBERT(tmp_path / "model", device="cpu")
    assert model.max_length_document == 20
    assert len(model.tokenize([LONG], is_query=False)["input_ids"][0]) == 20
    with pytest.raises(ValueError, match=r"texts\[0\] has \d+ tokens, but a document is cut at 20"):
        model.encode_document([LONG], truncation=False)
    model.save(tmp_path / "saved")
    assert ColBERT(tmp_path / "saved", device="cpu").max_length_document == 20
    retriever = Retriever(model)
    retriever.add([LONG], passages=True)
    assert retriever.index.statistics().tokens > 480  # each of the tokens of the text is in a passage
    model.max_seq_length = 12
    assert (model.max_length_document, len(model.tokenize([LONG], is_query=False)["input_ids"][0])) == (12, 12)


def test_pylates_own_length_of_documents(tmp_path):
    written(PYLATE, tmp_path / "model", settings={"document_length": ABSENT})
    model = ColBERT(tmp_path / "model", device="cpu")
    assert model.max_length_document == 180
    assert len(model.tokenize([LONG], is_query=False)["input_ids"][0]) == 180


@pytest.fixture
def adapted(tmp_path):
    """A checkpoint whose encoder is an adapter, its folder, and the vectors of the adapted encoder."""
    peft = pytest.importorskip("peft", reason="needs the package peft")
    checkpoint = written(PYLATE, tmp_path / "model")
    folder, base = tmp_path / "model", tmp_path / "base"
    base.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.move(folder / file, base / file)
    for file in folder.glob("tokenizer*"):
        shutil.copy(file, base)
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    encoder = peft.get_peft_model(AutoModel.from_pretrained(base), config)
    encoder.save_pretrained(folder)
    checkpoint.encoder = encoder.eval()
    return checkpoint, folder


def rename_one(old, new):
    def edit(weights):
        name = next(name for name in sorted(weights) if old in name)
        weights[name.replace(old, new)] = weights.pop(name)

    return edit


def test_an_adapter_is_used_and_its_tensors_are_all_there(adapted):
    checkpoint, folder = adapted
    torch.testing.assert_close(
        ColBERT(folder, device="cpu").encode_document(LONG), checkpoint.by_hand(LONG, "document"), rtol=0, atol=2e-6
    )
    stray("model.safetensors")(folder)
    with pytest.warns(UserWarning, match=r"model\.safetensors beside adapter_model\.safetensors is not read"):
        model = ColBERT(folder, device="cpu")
    expected = checkpoint.by_hand(LONG, "document")
    torch.testing.assert_close(model.encode_document(LONG), expected, rtol=0, atol=2e-6)
    (folder / "model.safetensors").unlink()
    file = "adapter_model.safetensors"
    layer = "base_model.model.encoder.layer"
    edits = [
        (
            lambda weights: weights.pop(f"{layer}.0.attention.self.query.lora_A.weight"),
            r"lack encoder\.layer\.0\..*lora_A",
        ),
        (
            lambda weights: weights.pop(f"{layer}.1.attention.self.value.lora_B.weight"),
            r"lack encoder\.layer\.1\..*lora_B",
        ),
        (rename_one("query", "queries"), r"lack .*query\.lora_A"),
        (lambda weights: [rename_one(layer, "base_model.model.h")(weights) for _ in range(8)], "lack .* and 3 more"),
        (lambda weights: weights.update({f"{layer}.5.query.lora_A.weight": random(1, 4, 32)}), r"hold .*layer\.5"),
        (lambda weights: weights.update({"base_model.model.linear.weight": random(1, 4, 4)}), r"hold linear\.weight"),
        (set_one(f"{layer}.0.attention.self.query.lora_A.weight", torch.nan), "not finite"),
    ]
    whole = (folder / file).read_bytes()
    for edit, message in edits:
        (folder / file).write_bytes(whole)
        edit_weights(folder, edit, file)
        with pytest.raises(ModelLoadError, match=message):
            ColBERT(folder, device="cpu")
    (folder / file).write_bytes(whole)
    edit_weights(folder.parent / "base", lambda weights: weights.pop("encoder.layer.0.output.dense.bias"))
    with pytest.raises(ModelLoadError, match=re.escape("base': its weights lack encoder.layer.0.output.dense.bias")):
        ColBERT(folder, device="cpu")
