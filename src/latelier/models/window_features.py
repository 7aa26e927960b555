"""Features of a window of texts, from token ids alone.

transformers turns padded lists of ids, types and masks into tensors one number at a time, which takes four times as
long as tokenising the texts on two cores, and holds Python's lock all the time. Ids without padding, joined into one
array, hold the same information. One text, a query, needs neither padding nor truncation, and transformers' options
take longer than its tokens.
"""

from __future__ import annotations

from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Transformer

from latelier.models.tokenizer_lock import tokenizer_lock

__all__ = ["tokenize_window"]

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


# The features of one text, by the tokenizer, the task and the prompt; None where they are not its tokens alone.
_templates: WeakKeyDictionary[Any, dict[tuple[str, str | None], dict[str, Any] | None]] = WeakKeyDictionary()


def tokenize_window(model: MultiVectorEncoder, texts: list[str], prompt: str | None, task: str) -> dict[str, Any]:
    """Return the features of texts, as `ColBERT.preprocess` does.

    Parameters
    ----------
    model
        The model.
    texts
        The texts.
    prompt
        What to put before each; None for the model's own prompt.
    task
        ``"query"`` or ``"document"``.

    Examples
    --------
    >>> from latelier.models import ColBERT
    >>> model = ColBERT.from_dense("all-MiniLM-L6-v2", device="cpu")
    >>> features = tokenize_window(model, ["a pear"] * 32, None, "document")
    >>> features["input_ids"].shape, sorted(features)
    (torch.Size([32, 4]), ['attention_mask', 'input_ids', 'modality', 'task', 'token_type_ids'])
    """
    if (1 < len(texts) < _LEAST_TEXTS) or not _pads_at_the_right(model, task):
        return model.preprocess(texts, prompt=prompt, task=task)
    if len(texts) == 1:
        return _tokenize_one(model, texts[0], prompt, task)
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


def _tokenize_one(model: MultiVectorEncoder, text: str, prompt: str | None, task: str) -> dict[str, Any]:
    """Return the features of one text, from the tokenizer of transformers' tokenizer."""
    encoder: Any = model[0]
    prompt = model.prompts.get(task) or None if prompt is None else prompt
    if prompt and prompt not in model.prompts.values():  # any number of prompts may be given, and each be remembered
        return model.preprocess([text], prompt=prompt, task=task)
    templates = _templates.setdefault(encoder.tokenizer, {})
    template = templates.get((task, prompt))
    if template is not None and (made := _read_tokens(encoder, (prompt or "") + text, template, task)) is not None:
        return made
    features: dict[str, Any] = model.preprocess([text], prompt=prompt, task=task)
    if (task, prompt) not in templates:
        tensors = {name: value for name, value in features.items() if isinstance(value, torch.Tensor)}
        known = tensors.keys() <= _TENSORS.keys()
        made = _read_tokens(encoder, (prompt or "") + text, features, task) if known else None
        if made is not None:
            # Remembered if the shorter way makes the same of this text.
            same = all(torch.equal(made[name], value) for name, value in tensors.items())
            templates[task, prompt] = {**features, **dict.fromkeys(tensors)} if same else None
    return features


def _read_tokens(encoder: Any, text: str, template: dict[str, Any], task: str) -> dict[str, Any] | None:
    """Return the template with the tokens of a text in it; None for a text that is truncated or padded."""
    tokenizer = encoder.tokenizer
    backend = tokenizer.backend_tokenizer
    with tokenizer_lock(tokenizer):
        if backend.encode_special_tokens != tokenizer.split_special_tokens:
            return None
        tokens = backend.encode(text)  # truncated and padded as in the last call
    cap = (encoder.query_length if task == "query" else encoder.document_length) or tokenizer.model_max_length
    if len(tokens) > cap or tokens.overflowing or not all(tokens.attention_mask):
        return None
    return {
        name: torch.tensor([getattr(tokens, _TENSORS[name])]) if name in _TENSORS else value
        for name, value in template.items()
    }


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
