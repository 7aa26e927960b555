"""Length caps of queries and documents, in tokens: read from the encoder module of a model, and written to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Transformer

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.models.recipe import Recipe
from latelier.models.text_encoder import TextEncoder
from latelier.models.tokenizer_lock import tokenizer_lock
from latelier.utils import check_flag, encoder_limit, resolve_length

__all__ = ["check_lengths", "encoder_module", "length_limit", "max_length", "set_max_lengths"]

_DEFAULT_QUERY_LENGTH = 32
_DEFAULT_DOCUMENT_LENGTH = 350


def encoder_module(model: MultiVectorEncoder) -> Transformer | TextEncoder:
    """Return the encoder module; a model made of other modules (``modules=[...]``) has no length caps."""
    module = model[0]
    if not isinstance(module, (Transformer, TextEncoder)):
        raise LatelierError(
            f"the first module of this model is a {type(module).__name__}, not a Transformer or a TextEncoder."
        )
    return module


def max_length(model: MultiVectorEncoder, task: str) -> int:
    """Return the maximum number of tokens of a ``"query"`` or a ``"document"``, special tokens included."""
    encoder = encoder_module(model)
    expansion = encoder.query_expansion if task == "query" else None
    if expansion:
        return int(expansion["length"])
    cap = encoder.query_length if task == "query" else encoder.document_length
    return cap or length_limit(encoder) or int(model.max_seq_length or 0)


def check_lengths(
    model: MultiVectorEncoder, inputs: Sequence[Any], task: str, prompt: str | None = None, *, truncation: bool
) -> None:
    """Raise an error for the first text, or pair of texts, that would be truncated; other inputs are not looked at.

    `prompt` is what is put before each; None for the model's own prompt. With ``truncation=True``, any length is fine.
    """
    check_flag("truncation", truncation)
    if truncation:
        return
    cap = max_length(model, task)
    prompt = model.prompts.get(task) or "" if prompt is None else prompt
    for i, given in enumerate(inputs):
        first, *others = [given] if isinstance(given, str) else given if isinstance(given, tuple) else [None]
        if not all(isinstance(text, str) for text in (first, *others)):
            continue
        with tokenizer_lock(model.tokenizer):
            length = len(model.tokenizer(f"{prompt}{first}", *others, truncation=False, verbose=False)["input_ids"])
        if length > cap:
            raise InvalidArgumentError(
                f"texts[{i}] has {length} tokens, but a {task} is cut at {cap}; shorten it, raise max_length_{task}, "
                "or pass truncation=True."
            )


def set_max_lengths(model: MultiVectorEncoder, query: int | None, document: int | None, recipe: Recipe | None) -> None:
    """Set the length caps: those given, else those of the checkpoint, else the defaults of a recipe.

    Parameters
    ----------
    model
        The model; one that does not start with an encoder (``modules=[...]``) is left unchanged.
    query, document
        The caps asked for; None for those that the model has.
    recipe
        What the model was built by; None for a checkpoint, which has lengths of its own.
    """
    encoder = model[0] if len(model) else None
    if not isinstance(encoder, (Transformer, TextEncoder)):
        return
    limit = length_limit(encoder)
    default = encoder.document_length if recipe is None else _DEFAULT_DOCUMENT_LENGTH
    encoder.document_length = resolve_length("max_length_document", document, default, limit)
    expansion = encoder.query_expansion
    if recipe is None:
        default = encoder.query_length
    else:
        default = _DEFAULT_QUERY_LENGTH if recipe.projection == "learned" else limit
        if recipe.query_expansion:
            expansion = {"strategy": "fixed", "attend": recipe.attend_to_expansion, "length": 1, "token": None}
    length = resolve_length("max_length_query", query, default, limit)
    if expansion is None:
        encoder.query_length = length
    elif recipe is not None or query is not None:
        encoder.query_length = None  # expanded queries have the expansion's length, which a smaller cap contradicts
        encoder.query_expansion = {**expansion, "length": length}


def length_limit(encoder: Transformer | TextEncoder) -> int | None:
    """Return the longest input that an encoder reads, or None where it has no limit."""
    return encoder.max_seq_length if isinstance(encoder, TextEncoder) else encoder_limit(encoder.config)
