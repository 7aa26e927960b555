"""Checks around sentence-transformers' tokenisation, and the scored tokens of a text: strings, ranges of characters."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.multi_vector_encoder.interpretability import get_n_patches
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from transformers import PreTrainedTokenizerBase

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.models.arguments import check, is_group
from latelier.models.construction import encoder_module, length_limit
from latelier.models.exported_encoder import put_behind_first, text_ranges, tokenizer_lock
from latelier.models.pooling import has_pooling
from latelier.models.text_encoder import TextEncoder
from latelier.utils import resolve_length

# Options of sentence-transformers' own tokenisation.
_OPTIONS = frozenset({"task", "max_length", "processing_kwargs"})


def check_preprocessing(model: MultiVectorEncoder, options: Mapping[str, Any]) -> None:
    """Raise an error for options that the encoder would ignore.

    An encoder that is neither `Transformer` nor `TextEncoder` is the user's own, and may have options of its own.
    """
    if isinstance(model[0], TextEncoder):
        check("preprocess", options, ("task", "max_length"))
    elif not options.keys() <= _OPTIONS and isinstance(model[0], Transformer):
        check("preprocess", options, _OPTIONS.union(model.get_model_kwargs()))
    if "max_length" in options and isinstance(model[0], (TextEncoder, Transformer)):
        resolve_length("max_length", options["max_length"], None, length_limit(model[0]))


def flat_candidates(inputs: Any, task: str | None) -> Any:
    """Return a column of lists, the candidates of each query of a trainer's batch, one list after the other.

    Losses group them again, so all lists have as many texts. Other inputs are returned as they are.
    """
    if not isinstance(inputs, (list, tuple)) or not any(map(is_group, inputs)):
        return inputs
    sizes = {len(each) if is_group(each) else 0 for each in inputs}
    if task != "document" or len(sizes) > 1:
        raise InvalidArgumentError(
            "received lists of texts, not as many documents for each query; features are made of a flat list, and "
            "encode takes lists of lists. For a trainer, latelier.data.load_training_set(dataset, "
            "candidates=n).to_dataset() makes a data set with n documents for each query of such rows."
        )
    return [text for group in inputs for text in group]


def check_features(model: MultiVectorEncoder, features: Mapping[str, Any], task: str | None) -> None:
    """Raise an error in training for features that may be of queries or of documents.

    sentence-transformers' plain trainer makes features without a task. A model that treats queries and documents alike
    (no prompts, no query expansion, no skiplist) needs none.
    """
    if task is None and model.training and torch.is_grad_enabled() and _treats_tasks_differently(model):
        raise LatelierError(
            "received features that do not say whether they are queries or documents. Train with "
            'MultiVectorEncoderTrainer, or pass router_mapping={"<query column>": "query", "<document column>": '
            '"document"} to the training arguments; by hand, model.tokenize(texts, is_query=...) makes features.'
        )


def scored_tokens(model: MultiVectorEncoder, features: dict[str, Any]) -> list[str]:
    """Return the tokens of the first text that have a vector in its embedding, after the model's skiplist.

    Raises `LatelierError` if the model pools texts of this task.
    """
    scored = features["input_ids"][0][_scored(model, features)]
    return list(model.tokenizer.convert_ids_to_tokens(scored.tolist()))


def scored_ranges(model: MultiVectorEncoder, features: dict[str, Any], text: str) -> list[tuple[int, int] | None]:
    """Return the range of the text's characters that each of its scored tokens stands for.

    Returns: as in `latelier.models.exported_encoder.text_ranges`; None for added mask tokens too, and for all if the
    tokenizer gives no offsets: it is not of the package tokenizers, or the encoder reads something else than the prompt
    and the text. Raises `LatelierError` if the model pools texts of this task.
    """
    ids = features["input_ids"][0]
    added = features.get("query_expansion_positions")
    if added is None:
        real = features["attention_mask"][0].bool()
    else:
        real = ~added[0].bool()
    scored = _scored(model, dict(features))  # a mask module changes the attention mask
    prompt = model.prompts.get(features["task"]) or ""
    tokenizer = model.tokenizer
    count = int(real.sum())
    offsets: list[tuple[int, int]] = [(0, 0)] * count
    if getattr(tokenizer, "is_fast", False):
        # At most as many tokens as the text has after truncation, so that it is truncated in the same place.
        with tokenizer_lock(tokenizer):
            encoded = tokenizer(prompt + text.strip(), truncation=True, max_length=count, return_offsets_mapping=True)
        marker = model.inserted_markers.get(features["task"])  # type: ignore[operator,union-attr]
        put_behind_first(encoded["input_ids"], marker, encoded["offset_mapping"])
        if encoded["input_ids"] == ids[real].tolist():
            offsets = encoded["offset_mapping"]
        elif model.processor is not tokenizer:  # that of a model of pictures, which puts tokens around a query
            prompt, offsets = _offsets_inside(tokenizer, ids[real].tolist(), text.strip())
    found = iter(text_ranges(offsets, prompt, text))
    ranges = [next(found) if is_real else None for is_real in real.tolist()]
    return [each for each, has_vector in zip(ranges, scored.tolist(), strict=True) if has_vector]


def _offsets_inside(tokenizer: Any, ids: list[int], text: str) -> tuple[str, list[tuple[int, int]]]:
    """Find the tokens of a text among others: return what stands before it, and the offsets of all tokens in both."""
    for before in (" ", ""):
        with tokenizer_lock(tokenizer):
            own = tokenizer(before + text, add_special_tokens=False, return_offsets_mapping=True)
        count = len(own["input_ids"])
        for i in range(len(ids) - count + 1):
            if ids[i : i + count] == own["input_ids"]:
                return before, [(0, 0)] * i + own["offset_mapping"] + [(0, 0)] * (len(ids) - count - i)
    return "", [(0, 0)] * len(ids)


class PictureTokens(NamedTuple):
    """The tokens of a picture that have a vector, and where each patch is among them, ``(rows, columns)``, if known."""

    tokens: list[str]
    patches: np.ndarray | None
    reason: str = ""


def picture_tokens(model: Any, width: int, height: int) -> PictureTokens:
    """Return the tokens of a picture of this size, which is all that a processor places patches by."""
    from PIL import Image

    features = model.preprocess([Image.new("RGB", (width, height))], task="document")
    ids = features["input_ids"][0][_scored(model, dict(features))]
    tokens = list(model.tokenizer.convert_ids_to_tokens(ids.tolist()))
    places = np.flatnonzero(np.array(tokens) == getattr(model.processor, "image_token", None))
    try:
        columns, rows = get_n_patches(model, (width, height))
    except NotImplementedError:
        return PictureTokens(tokens, None, "the model splits a picture into tiles and a small copy of the whole")
    except ValueError:
        return PictureTokens(tokens, None, "it is not known how this kind of model divides a picture")
    if rows * columns != len(places):
        reason = (
            f"the model divides a picture into {rows} x {columns} patches, and has {len(places)} vectors of patches"
        )
        return PictureTokens(tokens, None, reason)
    return PictureTokens(tokens, places.reshape(rows, columns))


def _scored(model: MultiVectorEncoder, features: dict[str, Any]) -> torch.Tensor:
    """Return which tokens of the first text have a vector, ``(tokens,)`` bool; `LatelierError` if they are pooled."""
    task = features["task"]
    if has_pooling(model, task):
        raise LatelierError(f"this model pools the tokens of a {task}: its vectors stand for several tokens each.")
    for module in model:
        if isinstance(module, MultiVectorMask):
            features = module(features, task=task)
    return features["attention_mask"][0].bool().cpu()


def _treats_tasks_differently(model: MultiVectorEncoder) -> bool:
    prompts = {model.prompts.get("query") or "", model.prompts.get("document") or ""}
    skips = any(isinstance(module, MultiVectorMask) and module.skiplist_words for module in model)
    differ = skips or has_pooling(model, "query") != has_pooling(model, "document")
    return differ or prompts != {""} or encoder_module(model).query_expansion is not None


_TYPES = "token_type_ids"
# Features, and what they are called in what a tokenizer returns.
_TENSORS = {"input_ids": "ids", "attention_mask": "attention_mask", _TYPES: "type_ids"}
# Fewer texts take no time that matters.
_LEAST_TEXTS = 32
# What sentence-transformers passes to the tokenizer: lists of ids of different lengths.
_UNPADDED: Any = {
    "common": {"return_tensors": None},
    "text": {"padding": False, "return_attention_mask": False, "return_token_type_ids": False},
}


def tokenize_window(model: MultiVectorEncoder, texts: list[str], prompt: str | None, task: str) -> dict[str, Any]:
    """Return the features of texts, as `ColBERT.preprocess` does.

    transformers turns padded lists of ids, types and masks into tensors one number at a time, which takes four times as
    long as tokenising the texts on two cores, and holds Python's lock. Ids without padding, joined into one array, hold
    the same information.
    """
    if 1 < len(texts) < _LEAST_TEXTS or not _pads_at_the_right(model, task):
        return model.preprocess(texts, prompt=prompt, task=task)
    if len(texts) == 1:
        return _tokenize_one(model, texts[0], prompt, task) or model.preprocess(texts, prompt=prompt, task=task)
    first = model.preprocess(texts[:1], prompt=prompt, task=task)
    tensors = {name: value for name, value in first.items() if isinstance(value, torch.Tensor)}
    if not tensors.keys() <= _TENSORS.keys() or (_TYPES in tensors and tensors[_TYPES].any()):
        return model.preprocess(texts, prompt=prompt, task=task)
    features = model.preprocess(texts, prompt=prompt, task=task, processing_kwargs=_UNPADDED)
    rows = features.pop("input_ids")
    lengths = np.fromiter(map(len, rows), dtype="int64", count=len(rows))
    used = np.arange(lengths.max(initial=0)) < lengths[:, None]
    ids = np.full(used.shape, model.tokenizer.pad_token_id, dtype="int64")
    ids[used] = np.fromiter(chain.from_iterable(rows), dtype="int64", count=int(lengths.sum()))
    made = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(used.astype("int64"))}
    made[_TYPES] = torch.zeros_like(made["input_ids"])
    return {**{name: made[name] for name in tensors}, **features}


def _tokenize_one(model: Any, text: str, prompt: str | None, task: str) -> dict[str, Any] | None:
    """Return the features of one text, such as a query; transformers' options take longer than its tokens.

    None for a text with a prompt or one that is truncated, and for models and tokenizers with calls of their own.
    """
    encoder = model[0]
    tokenizer = model.tokenizer
    is_own = type(model).preprocess.__module__ != "latelier.models.colbert" or encoder.do_lower_case
    if is_own or prompt or (prompt is None and model.prompts.get(task)):
        return None
    if type(tokenizer).__call__ is not PreTrainedTokenizerBase.__call__:
        return None
    backend = tokenizer.backend_tokenizer
    with tokenizer_lock(tokenizer):
        if backend.encode_special_tokens != tokenizer.split_special_tokens:
            return None
        tokens = backend.encode(text.strip())  # truncated and padded as in the last call
    cap = (encoder.query_length if task == "query" else encoder.document_length) or tokenizer.model_max_length
    if len(tokens) > cap or tokens.overflowing or not all(tokens.attention_mask):
        return None
    names = [name for name in tokenizer.model_input_names if name in _TENSORS]
    tensors = {name: torch.tensor([getattr(tokens, _TENSORS[name])]) for name in names}
    return {**tensors, "modality": "text", "task": task}


def _pads_at_the_right(model: MultiVectorEncoder, task: str) -> bool:
    """Whether a text is padded at the right, and nothing else is done with its padding."""
    encoder: Any = model[0]
    if type(encoder) is not Transformer or (task == "query" and encoder.query_expansion is not None):
        return False
    tokenizer = encoder.tokenizer
    return (
        encoder.processor is tokenizer
        and bool(getattr(tokenizer, "is_fast", False))
        and tokenizer.padding_side == "right"
        and tokenizer.pad_token_id is not None
        and encoder.transformer_task == "feature-extraction"
        and set(encoder.modality_config) == {"text"}
        and not encoder.processing_kwargs
    )
