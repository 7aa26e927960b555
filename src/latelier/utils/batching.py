"""Batches by token budget, lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_count, is_count

if TYPE_CHECKING:
    import numpy as np

# Tokens of a batch that a transformer encodes on a CPU. The widest activations of a layer of MiniLM, 1,536 float32
# numbers per token, take 3 MB for 512 tokens, near the 1 to 2 MB of a core's L2 cache. With 2,048 tokens ONNX Runtime
# takes 1.5 times as long in float32 and 1.8 times in int8; with 128 tokens, products are less efficient.
CPU_BATCH_TOKENS = 512
# Batches of one call per thread, at least, and the least tokens of each, which make up for reading the weights.
_BATCHES_PER_THREAD, _LEAST_BATCH_TOKENS = 2, 128


def batch_by_tokens(
    lengths: Sequence[int] | np.ndarray,
    max_tokens: int,
    max_rows: int | None = None,
    *,
    max_padding: int | None = None,
) -> Iterator[np.ndarray]:
    """Group texts of similar length into batches of at most `max_tokens` tokens, padding included.

    Parameters
    ----------
    lengths
        Number of tokens of each text.
    max_tokens
        Maximum of ``rows * longest row`` of a batch. A longer text is a batch of its own.
    max_rows
        Maximum number of rows of a batch; None: no limit.
    max_padding
        Maximum number of padding tokens of a batch; None: no limit.

    Yields
    ------
    numpy.ndarray
        Positions of the texts of one batch, longest first. The first batch is the most expensive one, so that running
        out of memory happens at once or not at all.

    Examples
    --------
    >>> list(batch_by_tokens([3, 9, 1, 2, 10], max_tokens=20))
    [array([4, 1]), array([0, 3, 2])]
    >>> list(batch_by_tokens([3, 9, 1, 2, 10], max_tokens=20, max_padding=2))
    [array([4, 1]), array([0, 3]), array([2])]
    """
    import numpy as np  # here: `latelier --help` imports this package

    check_count("max_tokens", max_tokens)
    check_count("max_rows", max_rows, optional=True)
    check_count("max_padding", max_padding, 0, optional=True)
    lengths = np.asarray(lengths, dtype="int64")
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = lengths[order[start]]
        rows = max(1, max_tokens // max(1, int(longest)))
        rows = rows if max_rows is None else min(rows, max_rows)
        if max_padding is not None:
            padding = np.cumsum(longest - lengths[order[start : start + rows]])
            rows = max(1, int(np.searchsorted(padding, max_padding, side="right")))
        yield order[start : start + rows]
        start += rows


def tokens_per_batch(tokens: int, threads: int) -> int:
    """Return the number of tokens per batch if each thread encodes batches of its own.

    Parameters
    ----------
    tokens, threads
        Number of tokens of all texts, and of threads.

    Examples
    --------
    >>> [tokens_per_batch(tokens, 2) for tokens in (100, 1000, 100_000)]
    [128, 250, 512]
    """
    return max(_LEAST_BATCH_TOKENS, min(CPU_BATCH_TOKENS, tokens // (_BATCHES_PER_THREAD * threads)))


# Positions of these architectures start after the padding index, so two rows of the position table are never used.
_OFFSET_POSITIONS = {"camembert", "longformer", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"}
# [CLS], the marker, one token of the text, and [SEP].
_SHORTEST = 4


def encoder_limit(config: Any) -> int | None:
    """Return the longest input of an encoder, special tokens included; None if its configuration states no limit.

    Parameters
    ----------
    config
        Its transformers configuration.

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
    """Return the length in tokens, special ones included, that queries or documents are truncated to.

    Parameters
    ----------
    name
        Name of the argument, for the message.
    asked, default
        The length that the user gave, or None; and the one to use then, at most `limit`.
    limit
        The encoder's own limit, or None.

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
