"""Folders of dense models and bare encoders, made from the model of the fixture `tiny`, some with a known head."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModel, AutoTokenizer

PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def head(out_features=16, in_features=48):
    return torch.randn(out_features, in_features, generator=torch.Generator().manual_seed(7)) * 0.1


def bare(tiny, folder):
    AutoModel.from_pretrained(tiny).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)
    return Path(folder)


def dense_with_head(tiny, folder, out_features=16, *, in_features=48, activation="linear.Identity", bias=False):
    shutil.copytree(tiny, folder)
    folder = Path(folder)
    modules = json.loads((folder / "modules.json").read_text())[:2]
    write(folder / "modules.json", modules)
    append(folder, "Dense", lambda path: write_dense(path, head(out_features, in_features), activation, bias))
    config = json.loads((folder / "config_sentence_transformers.json").read_text())
    config["prompts"] = {"query": "query: ", "passage": "passage: "}
    write(folder / "config_sentence_transformers.json", config)
    return folder


def append(folder, kind, write_module):
    modules = json.loads((folder / "modules.json").read_text())
    n = len(modules)
    modules.append({"idx": n, "name": str(n), "path": f"{n}_{kind}", "type": f"sentence_transformers.models.{kind}"})
    write(folder / "modules.json", modules)
    write_module(folder / f"{n}_{kind}")


def write_dense(folder, weight, activation="linear.Identity", bias=False):
    folder.mkdir()
    config = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": bias,
        "activation_function": f"torch.nn.modules.{activation}",
    }
    write(folder / "config.json", config)
    tensors = {"linear.weight": weight, **({"linear.bias": weight[:, 0].clone()} if bias else {})}
    save_file(tensors, folder / "model.safetensors")


def write(path, content):
    path.write_text(json.dumps(content, indent=2))


def by_hand(encoder_folder, text, *, marker_id, weight, width=None, skip=()):
    """ColBERT's embedding of one text with nothing but transformers and matrix products."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(encoder_folder), AutoModel.from_pretrained(encoder_folder)
    # Length with a special token: the marker itself takes one place of the cap.
    ids = tokenizer(text, truncation=True, max_length=(width or 512) - (marker_id is not None))["input_ids"]
    if marker_id is not None:
        ids = [ids[0], marker_id, *ids[1:]]
    mask = [1] * len(ids)
    if width is not None:
        mask += [0] * (width - len(ids))
        ids = ids + [tokenizer.mask_token_id] * (width - len(ids))
    with torch.no_grad():
        hidden = encoder(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.tensor([mask]),
            token_type_ids=torch.zeros(1, len(ids), dtype=torch.long),
        ).last_hidden_state[0]
    vectors = hidden if weight is None else hidden @ weight.T
    skipped = {tokenizer.convert_tokens_to_ids(token) for token in skip}
    kept = [i for i, token in enumerate(ids) if token not in skipped]
    return torch.nn.functional.normalize(vectors[kept], dim=1)
