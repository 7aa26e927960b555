"""Folders of colpali-engine: its forward written out, with the text that its processors put around inputs."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

from image_models import IMAGE_MODELS, pictures
from latelier.errors import ModelLoadError
from latelier.models import ColBERT

QUERIES = ["A table of profits", "a cat"]
PROMPT = "<|begin_of_text|>User:<image>Describe the image.<end_of_utterance>\nAssistant:"
DIM = 24  # other than colpali-engine's 128


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """The folder of a tiny ColModernVBert, its encoder, its head and its processor."""
    folder = tmp_path_factory.mktemp("engine")
    torch.manual_seed(0)
    whole, processor = IMAGE_MODELS["colmodernvbert"]()
    encoder = whole.eval().vlm
    processor.chat_template = None
    encoder.save_pretrained(folder)
    processor.save_pretrained(folder)
    head = torch.nn.Linear(32, DIM)
    torch.nn.init.normal_(head.bias)
    weights = {f"model.{name}": each for name, each in encoder.state_dict().items()}
    weights |= {f"custom_text_proj.{name}": each for name, each in head.state_dict().items()}
    save_file(
        {name: each.contiguous() for name, each in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    edit_config(folder, ["ColModernVBert"])
    return folder, encoder, head, processor


def edit_config(folder, architectures):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": architectures}))


@torch.no_grad()
def by_hand(encoder, head, features):
    return normalize(head(encoder(**features)[0]), dim=-1)[0]


def test_queries_and_pages_are_those_of_the_original_forward(engine, tmp_path):
    folder, encoder, head, processor = engine
    suffix = "<end_of_utterance>" * 10
    expected = [by_hand(encoder, head, processor(text=[text + suffix], return_tensors="pt")) for text in QUERIES]
    expected += [
        by_hand(encoder, head, processor(text=[PROMPT], images=[[page]], return_tensors="pt")) for page in pictures()
    ]
    model = ColBERT(folder, device="cpu")
    model.save(tmp_path / "saved")
    for each in (model, ColBERT(tmp_path / "saved", device="cpu")):
        found = [*each.encode_query(QUERIES), *each.encode_document(pictures())]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
        assert each.embedding_size == DIM


def test_an_adapter_is_added_to_the_weights_that_it_names(engine, tmp_path):
    folder, *_, processor = engine
    weights = load_file(folder / "model.safetensors")
    inner = next(name for name in weights if name.endswith("mlp.Wo.weight"))
    adapter = {}
    merged = dict(weights)
    for stem in (inner.removesuffix(".weight"), "custom_text_proj"):
        rows, columns = weights[f"{stem}.weight"].shape
        first, second = torch.randn(2, columns) * 0.2, torch.randn(rows, 2) * 0.2
        adapter |= {f"base_model.model.{stem}.lora_A.weight": first, f"base_model.model.{stem}.lora_B.weight": second}
        merged[f"{stem}.weight"] = weights[f"{stem}.weight"] + 8 / 2 * second @ first
    written = tmp_path / "adapter"
    written.mkdir()
    processor.save_pretrained(written)
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "base_model_name_or_path": str(folder)}
    (written / "adapter_config.json").write_text(json.dumps(settings))
    save_file(adapter, written / "adapter_model.safetensors")
    whole = tmp_path / "whole"
    processor.save_pretrained(whole)
    (whole / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(merged, whole / "model.safetensors", {"format": "pt"})
    found, expected = (ColBERT(each, device="cpu").encode_query(QUERIES) for each in (written, whole))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    save_file(
        {**adapter, "base_model.model.nowhere.lora_A.weight": torch.ones(2, 2)}, written / "adapter_model.safetensors"
    )
    with pytest.raises(ModelLoadError, match=r"hold base_model\.model\.nowhere\.lora_A\.weight \(2 x 2\)"):
        ColBERT(written, device="cpu")


def test_what_is_not_read_is_refused_by_name(engine, tmp_path):
    folder, *_ = engine
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    edit_config(tmp_path, ["ColGemma3"])
    with pytest.raises(ModelLoadError, match=r"'ColGemma3' is one of colpali-engine, of which ColPali, .*Convert it"):
        ColBERT(tmp_path, device="cpu")
    edit_config(tmp_path, ["ColModernVBert"])
    weights = load_file(tmp_path / "model.safetensors")
    save_file({**weights, "norm.weight": torch.ones(3)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"hold norm\.weight"):
        ColBERT(tmp_path, device="cpu")
    del weights["custom_text_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"head is \['custom_text_proj\.bias'\], not one layer"):
        ColBERT(tmp_path, device="cpu")
