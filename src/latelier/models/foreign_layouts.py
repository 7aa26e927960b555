"""Checkpoints of other libraries, where sentence-transformers reads them in part: their heads, markers and settings.

Heads stand beside the encoder's weights (Stanford ColBERT; several of them for several dimensions), in ``linear.pt``
(neural-cherche) or in ``colbert_linear.pt`` (BGE-M3). PyLate inserts a marker behind the first token of a text, which
is the text's own where a tokenizer adds none before it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import Tensor, nn

from latelier.errors import ModelLoadError
from latelier.models.checkpoint import Checkpoint
from latelier.models.exported_encoder import put_behind_first, tokenizer_lock
from latelier.models.location import HEAD_FILES
from latelier.models.settings import neural_cherche_settings
from latelier.models.weights import (
    behind_the_vectors,
    inside_the_encoder,
    refuse_missing,
    refuse_unused,
    unmatched,
)
from latelier.utils.misc import warn_caller

_HEAD = re.compile(r"(?:\w+\.)?\w*(?:linear|proj|colbert)\w*(?:\.\w+)?\.weight", re.ASCII | re.IGNORECASE)
# What a late-interaction checkpoint without a list of modules calls its class or its type: HF_ColBERT, ColBERT.
_COLBERT = re.compile(r"colbert", re.IGNORECASE)


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


def read_head(checkpoint: Checkpoint, file: str) -> SavedHead | None:
    """Return the head in a file of its own, of which nothing but tensors is read."""
    if checkpoint.path(file) is None:
        return None
    tensors = checkpoint.pickled(file)
    others = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name not in ("weight", "bias")}
    refuse_unused(checkpoint.name, others, f"in {file}, which are not those of a linear layer")
    if "weight" not in tensors:
        raise ModelLoadError(
            checkpoint.name, ValueError(f"{file} holds no weight."), cure="Copy the whole model again."
        )
    unscaled = {
        f"{name} ({tensor.dtype})": tuple(tensor.shape)
        for name, tensor in tensors.items()
        if not tensor.is_floating_point()
    }
    refuse_unused(checkpoint.name, unscaled, f"in {file}, numbers without a scale")
    return SavedHead(file, tensors["weight"], tensors.get("bias"))


def is_late_interaction(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint without a list of modules says that it has a head for its tokens."""
    config = checkpoint.read("config.json")
    named = [*(config.get("architectures") or []), config.get("model_type")]
    return any(_COLBERT.search(str(each)) for each in named) or checkpoint.path("artifact.metadata") is not None


def read_heads(checkpoint: Checkpoint, encoder: Any, width: int) -> list[SavedHead]:
    """Return the linear layers of token vectors beside an encoder's weights, the largest last.

    `width`: numbers of a token behind the encoder. In a late-interaction checkpoint any name is a head's, and all that
    is left over is an error; in others a head is known by its name.
    """
    unused, missing = unmatched(checkpoint, "", encoder)
    refuse_missing(checkpoint.name, missing)
    others = behind_the_vectors(unused, encoder)
    is_late = is_late_interaction(checkpoint)
    weights = [
        name
        for name, shape in unused.items()
        if name not in others and name.endswith(".weight") and len(shape) == 2 and shape[1] == width
        if is_late or _HEAD.fullmatch(name)
    ]
    biases = {name: f"{name.removesuffix('weight')}bias" for name in weights}
    tensors = checkpoint.tensors({*weights, *biases.values()})
    heads = [SavedHead(name, tensors[name], tensors.get(biases[name])) for name in weights]
    alone = read_head(checkpoint, HEAD_FILES[0])
    if alone is not None:
        heads.append(alone)
    left = {name: shape for name, shape in unused.items() if name not in others and name not in tensors}
    if not (is_late or heads):
        left = {name: left[name] for name in inside_the_encoder(left, encoder)}
        if checkpoint.options.get("config_kwargs"):  # with which an encoder has fewer layers on purpose
            left = {}
    refuse_unused(checkpoint.name, left, "which no module takes")
    return sorted(heads, key=lambda head: len(head.weight))


def prepare(model: Any, checkpoint: Checkpoint) -> None:
    """Give sentence-transformers' loader the settings that it does not read: of "ColBERT", and neural-cherche's."""
    architectures = checkpoint.read("config.json").get("architectures") or []
    if "ColBERT" in architectures and "HF_ColBERT" not in architectures:
        model._maybe_load_stanford_metadata(checkpoint.name, **checkpoint.place)
    if settings := neural_cherche_settings(checkpoint):
        for task in ("query", "document"):
            model.prompts.setdefault(task, None)
            if model.prompts[task] is None:  # text, of which neural-cherche makes no token of its own
                model.prompts[task] = settings[f"{task}_prefix"]
        expansion = {"strategy": "fixed", "attend": False, "length": settings["max_length_query"]}
        model._legacy.transformer_config |= {"query_expansion": expansion}
        model._legacy.transformer_config["document_length"] = settings["max_length_document"]


def resolve_markers(model: Any, name: str, tokenizer: Any, *, is_stanford: bool) -> None:
    """See that each marker of a checkpoint is one token, as where it was trained; else it would be spelt out.

    Stanford ColBERT looks the marker's id up, which is that of the unknown token where the vocabulary lacks the marker.
    PyLate adds such a marker to the vocabulary, with random numbers.
    """
    vocabulary = tokenizer.get_vocab()
    for task, marker in model._legacy.prefixes.items():
        if not marker.strip() or marker in vocabulary or marker.strip() in vocabulary:
            continue
        if not (model.prompts.get(task) or "").startswith(marker):  # the user has given another
            continue
        unknown = tokenizer.unk_token
        if not is_stanford or unknown is None:
            raise ModelLoadError(
                name,
                ValueError(f"its {task} marker {marker.strip()!r:.60} is not in the vocabulary of its tokenizer."),
                cure="Copy the tokenizer's files that it was trained with; prompts= takes other markers.",
            )
        model._legacy.prefixes[task] = f"{unknown} "
        model.prompts[task] = f"{unknown} "
        warn_caller(
            f"the {task} marker {marker.strip()!r} of {name} is not in its vocabulary: the unknown token {unknown!r} "
            "takes its place, as in ColBERT."
        )


def stanford_skiplist(checkpoint: Checkpoint) -> list[str]:
    """Return the document tokens that a checkpoint of Stanford's does not score: punctuation, unless it says no."""
    if checkpoint.read("artifact.metadata").get("mask_punctuation", True):
        return list(string.punctuation)
    return []


def check_head_size(checkpoint: Checkpoint, heads: Sequence[SavedHead]) -> None:
    """Raise an error if Stanford's settings name a dimension that none of the heads has."""
    size = checkpoint.read("artifact.metadata").get("dim")
    if size is not None and size not in [len(head.weight) for head in heads]:
        raise ModelLoadError(
            checkpoint.name,
            ValueError(f"artifact.metadata has dim = {size}, and its head is {heads[-1].described}."),
            cure="Correct the file, or copy the whole model again.",
        )


def choose_head(heads: Sequence[SavedHead], name: str, size: int | None) -> SavedHead:
    """Return the head to use, and name the others: that of the wanted size, else the one without a size in its name.

    Layers of which neither is so may follow one another, so that none alone is the head: an error.
    """
    fitting = [head for head in heads if len(head.weight) == size]
    plain = [head for head in heads if not re.search(rf"_{len(head.weight)}(\.weight)?$", head.name)]
    if len(fitting) == 1:
        chosen = fitting[0]
    elif len(plain) > 1:
        raise ModelLoadError(
            name,
            ValueError(f"it has several heads: {', '.join(head.described for head in heads)}."),
            cure="Choose one by its size, with embedding_size.",
        )
    else:
        chosen = (plain or list(heads))[-1]
    if len(heads) > 1:
        others = ", ".join(head.described for head in heads if head is not chosen)
        warn_caller(f"{name} has several heads: {chosen.described} is used, not {others}; embedding_size chooses one.")
    return chosen


def token_head_of_dense(checkpoint: Checkpoint, transformer: Transformer) -> list[nn.Module] | None:
    """Return the pipeline of a dense model that has a head for its tokens too, as BGE-M3; None for others.

    The first token, whose vector is the dense one, has no vector here.
    """
    head = read_head(checkpoint, HEAD_FILES[1])
    if head is None:
        return None
    tokenizer: Any = transformer.tokenizer
    first = tokenizer.cls_token or tokenizer.bos_token
    mask = MultiVectorMask(skiplist_words=[first] if first else [], skiplist_tasks=["query", "document"])
    return [transformer, head.to_dense(), mask, Normalize(module_input_name="token_embeddings")]


def pad_at_the_right(encoder: Transformer) -> None:
    """Pad texts at the right whatever the tokenizer's file says, so that they start at position 0 in every batch.

    Rotary positions are relative, and what was trained with query expansion at the left has it there.
    """
    tokenizer: Any = encoder.tokenizer
    parts: Any = encoder.model
    is_rotary = any("rotary" in name for name, _ in parts.named_modules())
    if tokenizer is not None and set(encoder.modalities) == {"text"} and not is_rotary:
        tokenizer.padding_side = "right"


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
