"""Folders as other libraries save them, made from the model of the fixture `tiny` with a known head."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def head(out_features=16, in_features=48):
    return torch.randn(out_features, in_features, generator=torch.Generator().manual_seed(7)) * 0.1


def bare(tiny, folder, with_markers=False):
    """A plain Hugging Face encoder: no sentence-transformers files at all."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(tiny), AutoModel.from_pretrained(tiny)
    if with_markers:
        # As PyLate does: ordinary added tokens with a trailing space, new rows of their own.
        tokenizer.add_tokens(["[Q] ", "[D] "])
        encoder.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        with torch.no_grad():
            encoder.get_input_embeddings().weight[-2:] = head(2) * 0.3
    encoder.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)


def pylate(tiny, folder, *, version3=True, settings=None):
    """A folder as PyLate saves it: Transformer and token-level Dense, the rest in the configuration."""
    folder = bare(tiny, folder, with_markers=True)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ]
    write(folder / "modules.json", modules)
    write(folder / "sentence_bert_config.json", {"max_seq_length": 179, "do_lower_case": False})
    config = {
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 24,
        "document_length": 120,
        "attend_to_expansion_tokens": False,
        "skiplist_words": PUNCTUATION,
        "do_query_expansion": True,
        **(settings or {}),
    }
    if version3:
        config["model_type"] = "ColBERT"
    write(folder / "config_sentence_transformers.json", config)
    write_dense(folder / "1_Dense", head())
    return folder


def stanford(tiny, folder):
    """A folder as Stanford's ColBERT saves it: the head inside the encoder's weights, artifact.metadata beside."""
    folder = bare(tiny, folder)
    weights = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({**weights, "linear.weight": head()}, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", {**config, "architectures": ["HF_ColBERT"]})
    metadata = {
        "query_token_id": "[unused0]",
        "doc_token_id": "[unused1]",
        "query_maxlen": 24,
        "doc_maxlen": 120,
        "mask_punctuation": True,
        "attend_to_mask_tokens": False,
        "dim": 16,
    }
    write(folder / "artifact.metadata", metadata)
    return folder


def dense_with_head(tiny, folder, out_features=16, *, in_features=48, activation="linear.Identity", bias=False):
    """A dense sentence-transformers model with a trained linear layer behind its pooling."""
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
    """Put one more module at the end of a dense model's pipeline."""
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


def by_hand(encoder_folder, text, *, marker_id, weight, width=None, attend=False, skip=()):
    """ColBERT's embedding of one text with nothing but transformers and matrix products.

    [CLS] marker text [SEP], then [MASK] up to `width` (not attended to unless `attend`), projected, normalised; the
    rows of tokens in `skip` are left out.
    """
    tokenizer, encoder = AutoTokenizer.from_pretrained(encoder_folder), AutoModel.from_pretrained(encoder_folder)
    # Length with a special token: the marker itself takes one place of the cap.
    ids = tokenizer(text, truncation=True, max_length=(width or 512) - (marker_id is not None))["input_ids"]
    if marker_id is not None:
        ids = [ids[0], marker_id, *ids[1:]]
    mask = [1] * len(ids)
    if width is not None:
        mask += [int(attend)] * (width - len(ids))
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
