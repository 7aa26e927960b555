"""Checks around sentence-transformers' tokenisation, and the scored tokens of a text as strings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.models.compression import has_pooling
from latelier.models.inputs import is_group
from latelier.models.lengths import encoder_module
from latelier.models.options import check
from latelier.models.text_encoder import TextEncoder

__all__ = ["check_preprocessing", "check_task_is_known", "scored_tokens", "tokenization_errors"]

# Options of sentence-transformers' own tokenisation.
_OPTIONS = frozenset({"task", "max_length", "processing_kwargs"})


def check_preprocessing(model: MultiVectorEncoder, inputs: Any, options: Mapping[str, Any]) -> None:
    """Raise an error for options that the encoder would ignore, and for groups of texts.

    An encoder that is neither `Transformer` nor `TextEncoder` is the user's own, and may have options of its own.
    """
    if isinstance(model[0], TextEncoder):
        check("preprocess", options, ("task", "max_length"))
    elif not options.keys() <= _OPTIONS and isinstance(model[0], Transformer):
        check("preprocess", options, _OPTIONS.union(model.get_model_kwargs()))
    if isinstance(inputs, (list, tuple)) and any(map(is_group, inputs)):
        raise InvalidArgumentError(
            "received lists of texts; features are made of a flat list, with tuples for pairs that the encoder "
            "reads as one input. encode takes lists of lists, and losses take one column per position."
        )


@contextmanager
def tokenization_errors() -> Iterator[None]:
    """Turn errors of sentence-transformers' tokenisation into `InvalidArgumentError`: the inputs are not texts."""
    try:
        yield
    except LatelierError:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"cannot make features of these inputs: {error} Give texts, as str.") from error


def check_task_is_known(model: MultiVectorEncoder, task: str | None) -> None:
    """Raise an error if a model is trained with features that do not say whether they are queries or documents.

    sentence-transformers' plain trainer makes such features. A model that treats queries and documents alike (no
    prompts, no query expansion, no skiplist) needs no task.
    """
    if task is None and model.training and torch.is_grad_enabled() and _treats_tasks_differently(model):
        raise LatelierError(
            "received features that do not say whether they are queries or documents, so markers and query "
            "expansion would be missing in training. Train with sentence_transformers.MultiVectorEncoderTrainer, "
            'or pass router_mapping={"<query column>": "query", "<document column>": "document", ...} to the '
            "training arguments of SentenceTransformerTrainer; by hand, make features with "
            "model.tokenize(texts, is_query=...)."
        )


def scored_tokens(model: MultiVectorEncoder, features: dict[str, Any]) -> list[str]:
    """Return the tokens of the first text that have a vector in its embedding, after the model's skiplist.

    Raises
    ------
    LatelierError
        If the model pools texts of this task.
    """
    task = features["task"]
    if has_pooling(model, task):
        raise LatelierError(f"this model pools the tokens of a {task}: its vectors stand for several tokens each.")
    for module in model:
        if isinstance(module, MultiVectorMask):
            features = module(features, task=task)
    scored = features["input_ids"][0][features["attention_mask"][0].bool().cpu()]
    return list(model.tokenizer.convert_ids_to_tokens(scored.tolist()))


def _treats_tasks_differently(model: MultiVectorEncoder) -> bool:
    prompts = {model.prompts.get("query") or "", model.prompts.get("document") or ""}
    skips = any(isinstance(module, MultiVectorMask) and module.skiplist_words for module in model)
    differ = skips or has_pooling(model, "query") != has_pooling(model, "document")
    return differ or prompts != {""} or encoder_module(model).query_expansion is not None
