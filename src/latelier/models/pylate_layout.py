"""Saving a model in the layout of PyLate.

PyLate lists the encoder and its linear layers, and keeps all other settings in one JSON file: one marker token for
queries and one for documents, length caps, query expansion, the skiplist. A model with other settings raises an error
that names them, before any file is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
import transformers
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from latelier.errors import InvalidArgumentError
from latelier.models.construction import max_length
from latelier.models.exported_encoder import tokenizer_lock
from latelier.models.foreign_layouts import token_layer

LayoutName: TypeAlias = Literal["sentence-transformers", "pylate"]

_ENCODER_TYPE = "sentence_transformers.models.Transformer"
_HEAD_TYPE = "pylate.models.Dense.Dense"
_HEAD_KEYS = ("in_features", "out_features", "bias", "activation_function")
# For these texts, tokenising marker + text must give the tokens of the text with the marker inserted behind the first.
_TEXTS = ("what is a pear?", "(Two) figs", "")


def save_for_pylate(
    model: MultiVectorEncoder,
    path: str,
    model_name: str | None = None,
    create_model_card: bool = True,
    train_datasets: list[str] | None = None,
    safe_serialization: bool = True,
) -> None:
    """Write a folder that PyLate 1.6 loads with equal embeddings: modules, tokenizer and four JSON files.

    A model without a head is written with the identity as its head, since PyLate would add a random one. `model_name`,
    `create_model_card`, `train_datasets`, `safe_serialization`: as in `sentence_transformers.MultiVectorEncoder.save`.
    """
    config = _describe(model)
    encoder: Any = model[0]
    identity = torch.eye(model.get_embedding_dimension() or 0, dtype=model.dtype)
    heads = [module for module in model if isinstance(module, Dense)] or [token_layer(identity)]
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    encoder.save(str(folder), safe_serialization=safe_serialization)
    _use_old_name_of_special_tokens(folder / "tokenizer_config.json")
    modules = [{"idx": 0, "name": "0", "path": "", "type": _ENCODER_TYPE}]
    for i, head in enumerate(heads, 1):
        name = f"{i}_Dense"
        (folder / name).mkdir(exist_ok=True)
        head.save(str(folder / name), safe_serialization=safe_serialization)
        settings = head.get_config_dict()
        use_residual = bool(settings.get("use_residual"))
        _write(folder / name / "config.json", {**{k: settings[k] for k in _HEAD_KEYS}, "use_residual": use_residual})
        modules.append({"idx": i, "name": str(i), "path": name, "type": _HEAD_TYPE})
    length = model.max_seq_length or max(config["query_length"], config["document_length"])
    _write(
        folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": bool(encoder.do_lower_case)}
    )
    _write(folder / "config_sentence_transformers.json", config)
    _write(folder / "modules.json", modules)
    if create_model_card:
        model._create_model_card(path, model_name, train_datasets)


def _describe(model: MultiVectorEncoder) -> dict[str, Any]:
    """Return PyLate's settings for the model, or raise an error that names all that they cannot express."""
    kinds = [type(module) for module in model]
    if kinds[:1] != [Transformer] or kinds[-2:] != [MultiVectorMask, Normalize] or set(kinds[1:-2]) - {Dense}:
        raise InvalidArgumentError(
            f"PyLate's layout cannot hold this model: this model consists of {', '.join(k.__name__ for k in kinds)}."
        )
    encoder: Any = model[0]
    mask: Any = model[-2]
    markers = {task: _marker(model, task) for task in ("query", "document")}
    problems = [reason for *_, reason in markers.values() if reason] + [*_problems(model, encoder, mask)]
    if problems:
        raise InvalidArgumentError(
            f"PyLate's layout cannot hold this model: {'; '.join(problems)}. Save it in the default layout."
        )
    expansion = encoder.query_expansion
    return {
        "__version__": {"transformers": transformers.__version__, "pytorch": torch.__version__},
        "model_type": "ColBERT",
        "prompts": {task: prompt for task, (_, prompt, _) in markers.items()},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": markers["query"][0],
        "document_prefix": markers["document"][0],
        "query_length": max_length(model, "query"),
        "document_length": max_length(model, "document"),
        "do_query_expansion": expansion is not None,
        "attend_to_expansion_tokens": expansion is not None and expansion["attend"],
        "skiplist_words": _known_words(model.tokenizer, mask.skiplist_words),
    }


def _problems(model: MultiVectorEncoder, encoder: Any, mask: Any) -> Iterator[str]:
    """Yield each other property of the model that PyLate has no setting for."""
    filler = model.tokenizer.mask_token or model.tokenizer.eos_token
    expansion = encoder.query_expansion or {"strategy": "fixed", "token": filler}
    if expansion["strategy"] != "fixed":
        yield f"its queries are expanded by the strategy {expansion['strategy']!r}, not to one length"
    if expansion["token"] not in (None, filler):
        yield f"its queries are expanded with {expansion['token']!r}, not {filler!r}"
    if mask.skiplist_words and mask.skiplist_tasks != ["document"]:
        yield f"its skiplist is for {mask.skiplist_tasks}, not for documents"
    if mask.keep_only_token_ids:
        yield "it keeps nothing but certain tokens (keep_only_token_ids)"
    if model.similarity_fn_name != "maxsim":
        yield f"its similarity is {model.similarity_fn_name!r}, not 'maxsim'"
    if getattr(encoder.model, "_hf_peft_config_loaded", False):
        yield "it has an adapter, which has to be merged into the encoder first"


def _marker(model: Any, task: str) -> tuple[str, str, str]:
    """Return the marker token of a task, the text of its prompt behind it, and why PyLate cannot insert the marker."""
    prompt = model.prompts.get(task) or ""
    tokenizer: Any = model.tokenizer
    with tokenizer_lock(tokenizer):
        piece = next(iter(tokenizer.tokenize(prompt)), "")
        if piece not in tokenizer.added_tokens_encoder:
            return "", prompt, ""
        marker = piece
        rest = prompt[len(piece) :].lstrip()
        inserted = tokenizer.convert_tokens_to_ids(piece)
        for text in _TEXTS:
            first, *others = tokenizer(rest + text)["input_ids"] or [inserted]
            if task in model.inserted_markers:
                behind = [inserted, first]
            else:
                behind = [first, inserted]
            if tokenizer(prompt + text)["input_ids"] != [*behind, *others] and (rest + text):
                return "", "", f"its {task} marker {marker!r} changes how the text behind it is split into tokens"
        return marker, rest, ""


def _known_words(tokenizer: Any, words: list[str]) -> list[str]:
    """Leave out words that are not in the vocabulary: PyLate would skip every unknown token for them."""
    unknown = tokenizer.unk_token_id
    return [word for word in words if word == tokenizer.unk_token or tokenizer.convert_tokens_to_ids(word) != unknown]


def _use_old_name_of_special_tokens(path: Path) -> None:
    """Rename the list of special tokens for transformers 4, which PyLate supports; version 5 reads both names."""
    if not path.is_file():
        return
    config = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
        _write(path, config)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
