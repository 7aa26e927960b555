"""Checkpoints of other libraries, where sentence-transformers reads them in part: their heads, markers and settings.

Heads stand beside the encoder's weights (Stanford ColBERT; several of them for several dimensions), in ``linear.pt``
(neural-cherche) or in ``colbert_linear.pt`` (BGE-M3). PyLate inserts a marker behind the first token of a text, which
is the text's own where a tokenizer adds none before it.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.util import load_file_path
from torch import Tensor, nn

from latelier.models.exported import put_behind_first, tokenizer_lock
from latelier.models.location import HEAD_FILES
from latelier.utils.misc import warn_caller

_HEAD = re.compile(r"(?:\w+\.)?\w*(?:linear|proj|colbert)\w*(?:\.\w+)?\.weight", re.ASCII | re.IGNORECASE)
_PLACE = ("token", "cache_folder", "revision", "local_files_only")
# Settings that only PyLate writes; a file with any of them has its markers, unless it names others.
_OF_PYLATE = ("skiplist_words", "do_query_expansion", "attend_to_expansion_tokens", "query_length", "document_length")
_PREFIXES = {"query_prefix": "[Q] ", "document_prefix": "[D] "}
BEHIND_FIRST = "markers_behind_first_token"  # in the settings of a saved model


def token_layer(weight: Tensor, bias: Tensor | None = None) -> Dense:
    """Return a linear layer of token vectors, with a weight ``(out, in)``."""
    return Dense(
        in_features=weight.shape[1],
        out_features=weight.shape[0],
        bias=bias is not None,
        activation_function=nn.Identity(),
        init_weight=weight,
        init_bias=bias,
        module_input_name="token_embeddings",
    )


class SavedHead(NamedTuple):
    """A linear layer in a checkpoint's files: where it stands, its weight ``(out, in)``, its bias ``(out,)``."""

    name: str
    weight: Tensor
    bias: Tensor | None = None

    @property
    def described(self) -> str:
        """Its name and shape."""
        return f"{self.name} ({' x '.join(map(str, self.weight.shape))})"

    def to_dense(self) -> Dense:
        """Return it as a module of token vectors."""
        return token_layer(self.weight.float(), None if self.bias is None else self.bias.float())


class Checkpoint:
    """The files of a model, in a folder or on the hub.

    `options`: those of sentence-transformers' loader, of which those that say where the files are are read.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self._place: Any = {key: options.get(key) for key in _PLACE} | {
            "local_files_only": bool(options.get("local_files_only"))
        }

    def path(self, file: str) -> str | None:
        """Return where a file is, downloaded if need be; None if there is none."""
        return load_file_path(self.name, file, **self._place)

    def read(self, file: str) -> dict[str, Any]:
        """Return the settings in a JSON file; none where there is none. A setting that is null is absent."""
        path = self.path(file)
        if path is None:
            content = {}
        else:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        return {key: value for key, value in content.items() if value is not None}

    def unpickled(self, file: str) -> SavedHead | None:
        """Return the head in a file of its own, of which nothing but tensors is read."""
        path = self.path(file)
        if path is None:
            return None
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        return SavedHead(file, tensors["weight"], tensors.get("bias"))

    def heads(self, encoder: nn.Module, width: int) -> list[SavedHead]:
        """Return the linear layers of token vectors beside an encoder's weights, the largest last."""
        own = {name.partition(".")[2] for name in encoder.state_dict()} | encoder.state_dict().keys()
        tensors: dict[str, Tensor] = {}

        def named(keys: Iterable[str]) -> list[str]:
            return [key for key in keys if _HEAD.fullmatch(key) and not {key, key.partition(".")[2]} & own]

        if path := self.path("model.safetensors"):
            with safe_open(path, framework="pt") as file:
                tensors = {key: file.get_tensor(key) for key in named(file.keys())}
        elif path := self.path("pytorch_model.bin"):
            saved = torch.load(path, map_location="cpu", weights_only=True)
            tensors = {key: saved[key] for key in named(saved)}
        heads = [*map(SavedHead, tensors, tensors.values()), self.unpickled(HEAD_FILES[0])]
        found = [head for head in heads if head and head.weight.ndim == 2 and head.weight.shape[1] == width]
        return sorted(found, key=lambda head: len(head.weight))


def complete_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return PyLate's settings with the markers that it takes where none are named; null is absent."""
    # A query expansion of null is off, in sentence-transformers' own settings.
    given = {key: value for key, value in settings.items() if value is not None or key == "query_expansion"}
    is_pylate = given.get("model_type") == "ColBERT" or "model_type" not in given
    if is_pylate and any(key in given for key in _OF_PYLATE):
        return {**_PREFIXES, **given}
    return given


def prepare(model: Any, checkpoint: Checkpoint) -> None:
    """Give sentence-transformers' loader the settings that it does not read: of "ColBERT", and neural-cherche's."""
    architectures = checkpoint.read("config.json").get("architectures") or []
    if "ColBERT" in architectures and "HF_ColBERT" not in architectures:
        model._maybe_load_stanford_metadata(checkpoint.name, **checkpoint._place)
    if checkpoint.path(HEAD_FILES[0]) is not None and (settings := checkpoint.read("metadata.json")):
        for task in ("query", "document"):
            marker = _PREFIXES[f"{task}_prefix"]
            model.prompts.setdefault(task, None)
            if model.prompts[task] is None:  # text, of which neural-cherche makes no token of its own
                model.prompts[task] = settings.get(f"{task}_prefix", marker)
        expansion = {"strategy": "fixed", "attend": False, "length": settings.get("max_length_query", 32)}
        model._legacy.transformer_config |= {"query_expansion": expansion}
        model._legacy.transformer_config["document_length"] = settings.get("max_length_document", 256)


def stanford_skiplist(checkpoint: Checkpoint) -> list[str]:
    """Return the document tokens that a checkpoint of Stanford's does not score: punctuation, unless it says no."""
    if checkpoint.read("artifact.metadata").get("mask_punctuation", True):
        return list(string.punctuation)
    return []


def choose_head(heads: Sequence[SavedHead], name: str, size: int | None) -> SavedHead:
    """Return the head to use: that of the wanted size, else ``linear.weight``, else the largest; several are named."""
    fitting = [head for head in heads if len(head.weight) == size] or [
        head for head in heads if head.name.endswith(("linear.weight", "linear.pt"))
    ]
    chosen = (fitting or list(heads))[-1]
    if len(heads) > 1:
        others = ", ".join(head.described for head in heads if head is not chosen)
        warn_caller(f"{name} has several heads: {chosen.described} is used, not {others}; embedding_size chooses one.")
    return chosen


def report_unused(heads: Sequence[SavedHead], modules: Sequence[Any], name: str) -> None:
    """Warn about heads beside the encoder's weights where the model's linear layers are others."""
    used = [module.linear.weight for module in modules if isinstance(module, Dense)]
    if heads and not any(head.weight.shape == each.shape for head in heads for each in used):
        warn_caller(f"{name} has a head that is not used: {', '.join(head.described for head in heads)}.")


def token_head_of_dense(checkpoint: Checkpoint, transformer: Transformer) -> list[nn.Module] | None:
    """Return the pipeline of a dense model that has a head for its tokens too, as BGE-M3; None for others.

    The first token, whose vector is the dense one, has no vector here.
    """
    head = checkpoint.unpickled(HEAD_FILES[1])
    if head is None:
        return None
    tokenizer: Any = transformer.tokenizer
    first = tokenizer.cls_token or tokenizer.bos_token
    mask = MultiVectorMask(skiplist_words=[first] if first else [], skiplist_tasks=["query", "document"])
    return [transformer, head.to_dense(), mask, Normalize(module_input_name="token_embeddings")]


def inserted_markers(model: MultiVectorEncoder) -> dict[str, int]:
    """Return the markers, by task, that stand behind a text's first token: its tokenizer adds none before it."""
    tokenizer: Any = model.tokenizer
    markers = {}
    with tokenizer_lock(tokenizer):
        first = tokenizer("a b", verbose=False)["input_ids"][0]
        for task in ("query", "document"):
            if first not in tokenizer.all_special_ids and (prompt := model.prompts.get(task)):
                markers[task] = tokenizer(prompt + "a", verbose=False)["input_ids"][0]
    return markers


def insert_markers(features: dict[str, Any], marker: int) -> None:
    """Put the marker of each text behind its first token, in features of a tokenizer."""
    ids = features["input_ids"]
    mask = features.get("attention_mask")
    if isinstance(ids, Tensor) and isinstance(mask, Tensor):
        if (added := features.get("query_expansion_positions")) is not None:
            mask = mask * ~added.bool()
        first = mask.argmax(dim=1).tolist()
        lengths = mask.sum(dim=1).tolist()
        for row, start, length in zip(ids, first, lengths, strict=True):
            if length > 1 and row[start] == marker:
                row[start] = row[start + 1].clone()
                row[start + 1] = marker
    elif not isinstance(ids, Tensor):
        for row in ids:
            put_behind_first(row, marker)
