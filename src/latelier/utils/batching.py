"""Batches by token budget, offsets and ranges of packed documents, features of a tokenised batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_count, is_count

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Tokens of a batch that a transformer encodes on a CPU. The widest activations of a layer of MiniLM, 1,536 float32
# numbers per token, take 3 MB for 512 tokens, near the 1 to 2 MB of a core's L2 cache. With 2,048 tokens ONNX Runtime
# takes 1.5 times as long in float32 and 1.8 times in int8; with 128 tokens, products are less efficient.
CPU_BATCH_TOKENS = 512
# Batches of one call per thread, at least, and the least tokens of each, which make up for reading the weights.
_BATCHES_PER_THREAD = 2
_LEAST_BATCH_TOKENS = 128


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
SHORTEST_LENGTH = 4


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
    if getattr(config, "model_type", "") in _OFFSET_POSITIONS:
        return limit - 2
    return limit


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

    Examples
    --------
    >>> resolve_length("max_length_document", None, 350, 256)
    256
    """
    if asked is None:
        if limit is None or default is None:
            return default
        return min(default, limit)
    length = check_count(name, asked, SHORTEST_LENGTH)
    if limit is not None and length > limit:
        raise InvalidArgumentError(
            f"received {name}={length}, but this encoder reads at most {limit} tokens; give at most that."
        )
    return length


def lengths_to_offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the offsets ``(n + 1,)`` int64, from 0, of ``n`` documents with these numbers of rows."""
    offsets = np.zeros(len(lengths) + 1, dtype="int64")
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def rows_of(offsets: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return the row numbers of some documents, in their order, from offsets ``(n + 1,)`` int64."""
    starts = offsets[documents]
    places = lengths_to_offsets(offsets[np.add(documents, 1)] - starts)
    # Each document's first row, repeated, plus a running count that restarts with every document.
    return np.repeat(starts - places[:-1], np.diff(places)) + np.arange(places[-1])


def rows_or_slice(offsets: np.ndarray, documents: np.ndarray) -> np.ndarray | slice:
    """Return the rows of one or more documents, given in ascending order; as a slice if they are consecutive.

    An array indexed by a slice is a view; indexed by row numbers, it is a copy.
    """
    first = documents[0]
    last = documents[-1]
    if last - first + 1 == len(documents):
        return slice(int(offsets[first]), int(offsets[last + 1]))
    return rows_of(offsets, documents)


def consecutive(numbers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return as many consecutive integers from each number on as `counts` says, one after the other."""
    return np.repeat(numbers, counts) + positions_within(lengths_to_offsets(counts))


def positions_within(offsets: np.ndarray) -> np.ndarray:
    """Return the position of each row within its document, ``(rows,)`` int64."""
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def split_by_rows(offsets: np.ndarray, max_rows: int, max_documents: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield ``(first, last)`` of blocks of at most `max_rows` rows; a document with more is one of its own."""
    first = 0
    documents = len(offsets) - 1
    if max_documents is None:
        most = documents
    else:
        most = max_documents
    while first < documents:
        # Up to the last document that ends within the block, but at least one document.
        last = int(np.searchsorted(offsets, offsets[first] + max_rows, side="right")) - 1
        last = min(max(last, first + 1), first + most, documents)
        yield first, last
        first = last


# Features of a tokenised batch.


def move_features(features: Mapping[str, Any], device: torch.device | None) -> dict[str, Any]:
    """Return features with their tensors on a device; None leaves them on their own."""
    return {name: _move(value, device) if hasattr(value, "device") else value for name, value in features.items()}


def used_positions(features: Mapping[str, Any]) -> Tensor:
    """Return the positions that hold a token of the text or of its query expansion, as bool ``(rows, width)``."""
    used = features["attention_mask"].bool()
    expansion = features.get("query_expansion_positions")
    if expansion is None:
        return used
    return used | expansion.bool()


def select_rows(features: Mapping[str, Any], used: Tensor, rows: np.ndarray) -> dict[str, Any]:
    """Return some rows of features, without the outer columns in which none of these rows has a token.

    `used`: their `used_positions`, on the CPU, so that no row waits for a device. Other values stay as they are.
    """
    import torch

    index = torch.from_numpy(rows)
    columns = used[index.to(used.device)].any(dim=0).nonzero()
    if len(columns):
        first = int(columns[0])
        last = int(columns[-1]) + 1
    else:
        first = 0
        last = used.shape[1]
    return {
        name: value[_move(index, value.device), first:last]
        if isinstance(value, torch.Tensor) and value.shape == used.shape
        else value
        for name, value in features.items()
    }


def _move(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Move a tensor; a copy to a GPU does not wait for the work before it."""
    return tensor.to(device, non_blocking=device is not None and device.type == "cuda" and tensor.device.type == "cpu")
