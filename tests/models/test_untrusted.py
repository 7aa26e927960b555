"""Untrusted models: the usual ones load, and no folder runs code or reads files outside itself."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from folders import bare, dense_with_head
from safetensors.torch import load_file
from typer.testing import CliRunner

from image_models import save_image_model
from latelier.cli import app
from latelier.errors import InvalidArgumentError, ModelLoadError
from latelier.models import ColBERT, TextEncoder, load, train_tokenizer
from latelier.models.untrusted import load_untrusted
from latelier.modules import TransformerEncoder


@pytest.fixture
def plain(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "model")


def edit(path, **changes):
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}))


def add_module(folder, kind, path="", files=()):
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": len(modules), "name": str(len(modules)), "path": path, "type": kind})
    (folder / "modules.json").write_text(json.dumps(modules))
    for name, content in files:
        (folder / path).mkdir(exist_ok=True)
        (folder / path / name).write_text(content if isinstance(content, str) else json.dumps(content))


def pickle_weights(folder, marker):
    class Evil:
        def __reduce__(self):
            return (eval, (f"open({str(marker)!r}, 'w').close()",))

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**weights, "evil": Evil()}, folder / "pytorch_model.bin")
    edit(folder / "sentence_bert_config.json", model_kwargs={"weights_only": False, "use_safetensors": False})


def write_code(folder, marker):
    code = f"open({str(marker)!r}, 'w').close()\nimport torch\nclass Evil(torch.nn.Module):\n    pass\n"
    for name in ("evil.py", "modeling_evil.py", "tokenization_evil.py", "configuration_evil.py"):
        (folder / name).write_text(code)


def parts(name, *each):
    return {"type": "Sequence", name: each}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def replace(text, by):
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


DENSE = "sentence_transformers.models.Dense"
LAYER = {"in_features": 48, "out_features": 16, "bias": False}
HOSTILE = {
    "module of its own": (lambda f: add_module(f, "evil.Evil"), "names 'evil.Evil'"),
    "module that names others": (lambda f: add_module(f, "sentence_transformers.models.Router"), "Router"),
    "modules nested without end": (lambda f: (f / "modules.json").write_text("[" * 100_000), "nested too deeply"),
    "folder outside": (lambda f: add_module(f, DENSE, "../../outside"), re.escape("names the folder '../../outside'")),
    "activation of its own": (
        lambda f: add_module(f, DENSE, "2_Dense", [("config.json", {**LAYER, "activation_function": "evil.Evil"})]),
        "names the activation 'evil.Evil'",
    ),
    "activation elsewhere in torch": (
        lambda f: add_module(f, DENSE, "2_D", [("config.json", {**LAYER, "activation_function": "torch.hub.load"})]),
        "names the activation",
    ),
    "code for the model": (
        lambda f: edit(f / "config.json", auto_map={"AutoModel": "modeling_evil.Evil"}, model_type="bert"),
        "config.json has 'auto_map'",
    ),
    "code for the tokenizer": (
        lambda f: edit(f / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_evil.Evil", None]}),
        "tokenizer_config.json has 'auto_map'",
    ),
    "no tokenizer.json": (lambda f: (f / "tokenizer.json").unlink(), r"tokenizer\.json is not a file"),
    "kernels": (lambda f: edit(f / "config.json", attn_implementation="evil/kernel"), "refers to code"),
    "quantisation": (
        lambda f: edit(f / "config.json", quantization_config={"quant_method": "x"}),
        "refers to code or other files",
    ),
    "adapter": (
        lambda f: edit(f / "adapter_config.json", base_model_name_or_path="someone/else", peft_type="LORA"),
        "it has an adapter_config.json",
    ),
    "task": (lambda f: edit(f / "sentence_bert_config.json", transformer_task="retrieval"), "of models of page images"),
    "method": (
        lambda f: edit(
            f / "sentence_bert_config.json",
            modality_config={"text": {"method": "save_pretrained", "method_output_name": "x"}},
            module_output_name="token_embeddings",
        ),
        "calls other methods",
    ),
    "tokenizer from elsewhere": (
        lambda f: edit(f / "sentence_bert_config.json", tokenizer_name_or_path="//host/share"),
        "has 'tokenizer_name_or_path'",
    ),
    "shard that is a pickle": (
        lambda f: (
            (f / "model.safetensors").unlink(),
            edit(f / "model.safetensors.index.json", weight_map={"a": "../evil.bin"}),
        ),
        re.escape("weights in ['../evil.bin'], not in"),
    ),
    "a slow regular expression": (
        lambda f: edit(f / "tokenizer.json", pre_tokenizer=parts("pretokenizers", split(r"^(\w+\s?)+$"))),
        re.escape("regular expression '^(\\\\w+\\\\s?)+$', which"),
    ),
    "a regular expression of its own": (
        lambda f: edit(f / "tokenizer.json", normalizer={**replace("", "e"), "pattern": {"Regex": "(x+x+)+y"}}),
        re.escape("regular expression '(x+x+)+y'"),
    ),
    "a text that grows": (
        lambda f: edit(f / "tokenizer.json", normalizer=parts("normalizers", *[replace("e", "ee")] * 30)),
        "has a Replace that makes a text grow",
    ),
    "a part of a tokenizer that is not known": (
        lambda f: edit(f / "tokenizer.json", normalizer={"type": "Evil"}),
        "the normalizer 'Evil', which is not in the list",
    ),
    "a character map of its own": (
        lambda f: edit(
            f / "tokenizer.json",
            normalizer=parts("normalizers", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        ),
        "a character map that is not one of SentencePiece",
    ),
    "a template that makes a text grow": (
        lambda f: edit(
            f / "tokenizer.json",
            post_processor={
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2,
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {},
            },
        ),
        "a template of 2 parts that makes a text grow",
    ),
    "padding to one long length": (
        lambda f: edit(f / "tokenizer.json", padding={"strategy": {"Fixed": 10**7}, "direction": "Right"}),
        r"tokenizer\.json pads each text",
    ),
    "layers without tensors": (
        lambda f: edit(f / "config.json", num_hidden_layers=10**6),
        "1,000,000, and its weights",
    ),
    "a table larger than its weights": (lambda f: edit(f / "config.json", vocab_size=10**9), "more than its weights"),
    "a prompt as long as a book": (
        lambda f: edit(f / "config_sentence_transformers.json", prompts={"query": "x" * 20_000}),
        "20,0.. characters",
    ),
    "no Unicode": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe{}"), "config.json is not UTF-8"),
}


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "1_Pooling"])
def test_links_out_of_the_folder_are_refused(plain, tmp_path, name):
    (plain / name).rename(tmp_path / "elsewhere")
    (plain / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidArgumentError, match=f"{name} is a link to a place outside of its folder"):
        load_untrusted(str(plain), "cpu")


def test_snapshots_of_the_hub_are_links_to_its_blobs(plain, tmp_path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "main"
    shutil.copytree(plain, snapshot)
    (tmp_path / "models--a--b" / "blobs").mkdir()
    (snapshot / "config.json").rename(tmp_path / "models--a--b" / "blobs" / "c")
    (snapshot / "config.json").symlink_to(tmp_path / "models--a--b" / "blobs" / "c")
    assert load_untrusted(str(snapshot), "cpu").embedding_size == 48


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders_are_refused_and_run_nothing(plain, tmp_path, monkeypatch, name):
    make_hostile, message = HOSTILE[name]
    marker = tmp_path / "MARKER"
    write_code(plain, marker)
    make_hostile(plain)
    monkeypatch.chdir(plain)
    monkeypatch.syspath_prepend(str(plain))  # as in a shell that stands there: python -m, or python -c
    with pytest.raises(InvalidArgumentError, match=message) as raised:
        load_untrusted(str(plain), "cpu")
    assert "If you trust this one, pass it yourself" in str(raised.value)
    assert not marker.exists()


def test_pickled_weights_are_never_unpickled(plain, tmp_path):
    marker = tmp_path / "MARKER"
    pickle_weights(plain, marker)
    with pytest.raises(InvalidArgumentError, match=r"sentence_bert_config\.json has 'model_kwargs'"):
        load_untrusted(str(plain), "cpu")
    with pytest.raises(ModelLoadError, match="Weights only load failed"):
        load(str(plain), device="cpu")  # by hand: the settings in the folder have no say in it either
    (plain / "sentence_bert_config.json").unlink()
    with pytest.raises(InvalidArgumentError, match=r"weights in \[\], not in model\.safetensors"):
        load_untrusted(str(plain), "cpu")
    assert not marker.exists()


def test_models_given_by_hand_run_code_only_where_it_is_trusted(plain, tmp_path):
    marker = tmp_path / "MARKER"
    write_code(plain, marker)
    add_module(plain, "evil.Evil")
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        load(str(plain), device="cpu")
    assert not marker.exists()
    with pytest.raises(AttributeError, match="Evil"):  # Evil cannot be loaded, but is imported
        load(str(plain), device="cpu", trust_remote_code=True)
    assert marker.exists()


OWN_CODE = """
from transformers import BertModel
class Own(BertModel):
    pass
"""


def test_the_shell_runs_the_code_of_a_model_that_the_user_names_and_trusts(plain, tmp_path):
    edit(plain / "config.json", auto_map={"AutoModel": "modeling_own.Own"}, model_type="bert", architectures=["Own"])
    (plain / "modeling_own.py").write_text(OWN_CODE)
    (tmp_path / "notes.txt").write_text("Bananas are healthy.\nThe moon is far away.\n")

    def run(*arguments):
        done = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"])
        return done.exit_code, done.output

    index, trusted = tmp_path / "index", ("--model", plain, "--trust-remote-code")
    assert run("index", tmp_path / "notes.txt", index, *trusted)[0] == 0
    code, output = run("search", index, "fruit", "--backend", "torch")  # without, the exported encoder is enough
    assert (code, "--trust-remote-code" in output) == (1, True)
    code, output = run("search", index, "fruit", *trusted, "--json")
    assert (code, len(json.loads(output)["results"])) == (0, 2)
    assert "name" in run("search", index, "fruit", "--trust-remote-code")[1]
    assert load(str(plain), device="cpu", trust_remote_code=True)[0].model.__class__.__name__ == "Own"


NOT_NAMES = ["\\\\host\\share", "//host/share", "https://host/model", "file:///model", "./model", "../model", "a/b/c"]
NOT_NAMES += ["~", "", "C:model", "a\0b", "m" * 5000]


@pytest.mark.parametrize("name", NOT_NAMES)
def test_names_that_are_neither_absolute_nor_of_the_hub(name):
    with pytest.raises((InvalidArgumentError, ModelLoadError), match="which only a file names"):
        load_untrusted(name, "cpu")


def test_folders_that_are_not_here(tmp_path):
    with pytest.raises(ModelLoadError, match="no such folder on this machine"):
        load_untrusted(str(tmp_path / "absent"), "cpu")
    with pytest.raises(ModelLoadError, match="a folder of another machine"):
        load_untrusted("C:\\models\\mine", "cpu")


def test_the_usual_folders_are_loaded(tiny, tmp_path):
    dense_with_head(tiny, tmp_path / "dense")
    bare(tiny, tmp_path / "bare")
    ColBERT(tiny, embedding_size=16, device="cpu").save(tmp_path / "ours")
    ColBERT.from_dense(tiny, device="cpu").compress_documents(4, heads=2).save(tmp_path / "compressed")
    words = train_tokenizer(["a fruit"], 300)
    encoder = TextEncoder(TransformerEncoder(len(words), dim=16, heads=2), words)
    ColBERT(modules=[encoder], embedding_size=8, device="cpu").save(tmp_path / "words")
    for folder in (tiny, *map(str, tmp_path.iterdir())):
        expected = load(folder, device="cpu").encode_query("fruit")
        found = load_untrusted(folder, "cpu", max_length_document=8)
        assert found.max_length_document == 8
        assert found.encode_query("fruit").shape == expected.shape
        if not folder.endswith("bare"):  # whose head is drawn anew
            assert torch.equal(found.encode_query("fruit"), expected)


def test_damaged_folders_are_errors_of_ours(plain):
    ColBERT.from_dense(str(plain), projection="orthogonal", embedding_size=8, device="cpu").save(plain / "small")
    edit(plain / "small" / "1_Dense" / "config.json", module_input_name="nothing")
    with pytest.raises(ModelLoadError, match=r"Dense \(48 -> 8\), MultiVectorMask, Normalize: KeyError: 'nothing'"):
        load_untrusted(str(plain / "small"), "cpu")
    (plain / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelLoadError, match="could not load the model"):
        load_untrusted(str(plain), "cpu")


HUB = """
import sys
from latelier.errors import LatelierError
from latelier.models.untrusted import load_untrusted
for name in sys.argv[1:]:
    try:
        print(load_untrusted(name, "cpu").embedding_size)
    except LatelierError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_names_of_the_hub_are_checked_in_the_snapshot_and_never_folders(tiny, tmp_path):
    marker = tmp_path / "MARKER"
    for name in ("good", "bad"):
        cached = tmp_path / "home" / "hub" / f"models--someone--{name}"
        folder = shutil.copytree(tiny, cached / "snapshots" / ("0" * 40))
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text("0" * 40)
        write_code(folder, marker)
    add_module(folder, "evil.Evil")
    here = shutil.copytree(folder, tmp_path / "cwd" / "someone" / "good")
    assert (here / "evil.py").exists()
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    arguments = [sys.executable, "-c", HUB, "someone/good", "someone/bad", "someone/absent"]
    done = subprocess.run(
        arguments, cwd=tmp_path / "cwd", env=environment, capture_output=True, text=True, check=True
    ).stdout
    good, bad, absent = done.splitlines()
    assert good == "48"
    assert bad.startswith("InvalidArgumentError the model 'someone/bad', which only a file names, is not loaded")
    assert absent.startswith("ModelLoadError could not load the model 'someone/absent'")
    assert not marker.exists()


@pytest.fixture(scope="module")
def of_pages(tmp_path_factory):
    return save_image_model("colqwen2", tmp_path_factory.mktemp("pages") / "model", patches_only=True)


@pytest.mark.parametrize("patches_only", [False, True])
def test_models_of_page_images_load_if_their_processor_is_known(patches_only, tmp_path):
    assert load_untrusted(save_image_model("colpali", tmp_path / "a", patches_only=patches_only)).embedding_size == 16
    with pytest.raises(InvalidArgumentError, match=r"calls other methods .* 'message'"):  # a template of Jinja
        load_untrusted(save_image_model("colmodernvbert", tmp_path / "b", patches_only=patches_only))


def set_picture(**changes):
    return lambda f: edit(f / "processor_config.json", image_processor={"image_processor_type": QWEN, **changes})


QWEN = "Qwen2VLImageProcessor"
HOSTILE_PROCESSORS = {
    "another": (
        lambda f: edit(f / "processor_config.json", processor_class="Evil"),
        "sets 'processor_class' to 'Evil'",
    ),
    "another of pictures": (set_picture(image_processor_type="Evil"), "sets 'image_processor_type' to 'Evil'"),
    "a template": (lambda f: edit(f / "processor_config.json", chat_template="{{ 1 }}"), "sets 'chat_template'"),
    "another model": (
        lambda f: edit(f / "config.json", architectures=["ColModernVBertForRetrieval"]),
        "config.json names .'ColModernVBertForRetrieval'.; of models of page images",
    ),
    "none": (lambda f: edit(f / "config.json", architectures=None), "config.json names .*; of models of page images"),
}


@pytest.mark.parametrize("name", HOSTILE_PROCESSORS)
def test_processors_that_are_unknown_are_refused(name, of_pages, tmp_path):
    folder = shutil.copytree(of_pages, tmp_path / "model")
    change, message = HOSTILE_PROCESSORS[name]
    change(folder)
    with pytest.raises(InvalidArgumentError, match=message):
        load_untrusted(str(folder))
