"""How many tokens an encoder reads, and the lengths that queries and documents are truncated to."""

from __future__ import annotations

from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_count, is_count

__all__ = ["encoder_limit", "resolve_length"]

# Positions of these architectures start after the padding index, so two rows of the position table are never used.
_OFFSET_POSITIONS = {"camembert", "longformer", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"}
# [CLS], the marker, one token of the text, and [SEP].
_SHORTEST = 4


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
    >>> encoder_limit(BertConfig())
    512
    >>> encoder_limit(RobertaConfig(max_position_embeddings=514))
    512
    """
    limit = getattr(config, "max_position_embeddings", None)
    if not is_count(limit):
        return None
    return limit - 2 if getattr(config, "model_type", "") in _OFFSET_POSITIONS else limit


def resolve_length(name: str, asked: int | None, default: int | None, limit: int | None) -> int | None:
    """Return the length that queries or documents are truncated to.

    Parameters
    ----------
    name
        Name of the argument, for the error message.
    asked
        The length that the user gave, or None.
    default
        The length if the user gave none; at most `limit`.
    limit
        The encoder's own limit, or None.

    Returns
    -------
    int or None
        The length in tokens, markers and special tokens included.

    Raises
    ------
    InvalidArgumentError
        If `asked` is not an integer of at least 4, or more than the encoder can read.

    Examples
    --------
    >>> resolve_length("max_length_document", None, 350, 256)
    256
    """
    if asked is None:
        return default if limit is None or default is None else min(default, limit)
    length = check_count(name, asked, _SHORTEST)
    if limit is not None and length > limit:
        raise InvalidArgumentError(
            f"received {name}={length}, but this encoder reads at most {limit} tokens; give at most that."
        )
    return length
