"""How many tokens an encoder reads, and what a cap on text length may be."""

from __future__ import annotations

from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.utils.describing import short

__all__ = ["encoder_limit", "resolve_length"]

# Their position table starts after the padding index, so two of its rows are never reached by a text.
_OFFSET_POSITIONS = {"camembert", "longformer", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"}


def encoder_limit(config: Any) -> int | None:
    """Return the longest input that an encoder can read, special tokens included.

    Parameters
    ----------
    config
        Its transformers configuration.

    Returns
    -------
    int or None
        None where the configuration states no limit (relative positions).

    Examples
    --------
    >>> from transformers import BertConfig, RobertaConfig
    >>> encoder_limit(BertConfig()), encoder_limit(RobertaConfig(max_position_embeddings=514))
    (512, 512)
    """
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        return None
    return limit - 2 if getattr(config, "model_type", "") in _OFFSET_POSITIONS else limit


def resolve_length(name: str, asked: int | None, default: int | None, limit: int | None) -> int | None:
    """Return the cap to use for queries or documents.

    Parameters
    ----------
    name
        Name of the argument, for the error message.
    asked
        What the user gave, or None.
    default
        What to use where nothing was given; cut to `limit`.
    limit
        The encoder's own limit, or None.

    Returns
    -------
    int or None
        The cap, in tokens with markers and special tokens.

    Raises
    ------
    InvalidArgumentError
        If `asked` is not a number of tokens that the encoder can read.

    Examples
    --------
    >>> resolve_length("max_length_document", None, 350, 256)
    256
    """
    if asked is None:
        return default if limit is None or default is None else min(default, limit)
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 4:
        raise InvalidArgumentError(f"{name}={short(asked)} is not a length; expected an integer of at least 4 tokens.")
    if limit is not None and asked > limit:
        raise InvalidArgumentError(
            f"{name}={short(asked)}, but this encoder reads at most {limit} tokens; give at most that."
        )
    return asked
