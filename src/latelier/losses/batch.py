"""`embed_batch`: token vectors of the columns of a batch (queries, positives, negatives), documents grouped by query.

The document columns are concatenated before they go through the model, so that each mini-batch holds texts of similar
length, whichever column they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.losses.mini_batches import MiniBatches, run_rows, run_whole
from latelier.utils.checks import describe, short
from latelier.utils.features import move_features

__all__ = ["EmbeddedBatch", "embed_batch"]


class EmbeddedBatch(NamedTuple):
    """A batch of ``b`` queries with ``n`` documents each, packed: no padding is stored or scored.

    Parameters
    ----------
    queries
        ``b`` texts, with gradients, at least float32.
    documents
        ``b * n`` texts, grouped by query.
    query_keys, document_keys
        ``(b,)`` and ``(b * n,)`` int64 hashes of the texts' token ids; None if the features hold no token ids.
    """

    queries: TokenEmbeddings
    documents: TokenEmbeddings
    query_keys: Tensor | None
    document_keys: Tensor | None

    @property
    def per_query(self) -> int:
        """Documents of each query."""
        return len(self.documents) // max(len(self.queries), 1)


def embed_batch(
    model: nn.Module,
    sentence_features: Iterable[Mapping[str, Any]],
    warn_once: Callable[[str], None],
    mini_batches: MiniBatches | None = None,
) -> EmbeddedBatch:
    """Embed queries and documents, and group the documents by query.

    Parameters
    ----------
    model
        A late-interaction model, or a wrapper (data parallel, compiled) around one.
    sentence_features
        Features of the ``b`` queries, then of the documents in any number of dicts: those with ``b`` rows hold one
        document of each query, those with ``b * m`` rows hold ``m``, the documents of one query next to each other.
    warn_once
        Called with a message if the features look like a mistake but can be used.
    mini_batches
        Limits of a forward pass.

    Returns
    -------
    EmbeddedBatch
        The documents of each query in the order of the dicts.

    Raises
    ------
    InvalidArgumentError
        If there are no documents, one of the features is not a dict, is empty or has token ids without an attention
        mask, or its number of rows is not a multiple of the number of queries.
    """
    mini_batches = MiniBatches() if mini_batches is None else mini_batches
    columns = _read_columns(model, sentence_features, warn_once)
    ((queries, query_keys),) = _embed_columns(model, columns[:1], mini_batches)
    outputs = _embed_columns(model, columns[1:], mini_batches)
    for i, (texts, _) in enumerate(outputs, start=1):
        if len(queries) == 0 or len(texts) == 0 or len(texts) % len(queries):
            raise InvalidArgumentError(
                f"sentence_features[{i}] has {len(texts)} rows for {len(queries)} queries; expected one document "
                "for each query, or all documents of each query next to each other: a multiple of the queries' rows."
            )
    documents = TokenEmbeddings.concatenate([texts for texts, _ in outputs])
    order = _grouped_by_query([len(texts) for texts, _ in outputs], len(queries))
    if len(outputs) > 1 and len(queries) > 1:
        # split, not documents[i]: the gradient of each such slice would be as large as that of all documents.
        texts_of = documents.vectors.split(documents.lengths.tolist())
        documents = TokenEmbeddings.from_list([texts_of[i] for i in order])
    per_query = len(documents) // len(queries)
    for i, length in enumerate(documents.lengths.tolist()):
        if length == 0:
            raise InvalidArgumentError(
                f"document {i % per_query} of query {i // per_query} has no token that is scored, so its score is "
                "minus infinity; give it a text, or a shorter skiplist."
            )
    keys = [key for _, key in outputs if key is not None]
    document_keys = torch.cat(keys)[torch.tensor(order)] if len(keys) == len(outputs) else None
    return EmbeddedBatch(queries, documents, query_keys, document_keys)


def _grouped_by_query(rows: list[int], queries: int) -> list[int]:
    """Return the positions of the documents of query 0, 1, ... in the concatenation of columns of these sizes."""
    starts = [sum(rows[:i]) for i in range(len(rows))]
    shares = [(start, size // queries) for start, size in zip(starts, rows, strict=True)]
    return [start + q * share + i for q in range(queries) for start, share in shares for i in range(share)]


def _read_columns(
    model: nn.Module, sentence_features: Iterable[Mapping[str, Any]], warn_once: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Check the features and copy them, with their tensors on the model's device."""
    try:
        given = list(sentence_features)
    except TypeError as error:
        raise InvalidArgumentError(
            f"received {describe(sentence_features)} as sentence_features; expected a list of features."
        ) from error
    if len(given) < 2:
        raise InvalidArgumentError(
            f"sentence_features holds {len(given)} dicts; expected the queries' features, then the documents'."
        )
    parameter = next(model.parameters(), None)
    accelerator = None if parameter is None or parameter.device.type == "cpu" else parameter.device
    columns = []
    for i, (features, task) in enumerate(zip(given, ["query", *["document"] * (len(given) - 1)], strict=True)):
        if not isinstance(features, Mapping) or not features:
            raise InvalidArgumentError(
                f"sentence_features[{i}] is {short(features)}; expected features, as model.tokenize(texts, "
                f"is_query={task == 'query'}) returns them."
            )
        if _are_token_ids([dict(features)]) and not isinstance(features.get("attention_mask"), Tensor):
            raise InvalidArgumentError(
                f"sentence_features[{i}] has input_ids, but no tensor attention_mask; expected features, as "
                f"model.tokenize(texts, is_query={task == 'query'}) returns them."
            )
        if features.get("task") not in (None, task):
            warn_once(
                f"sentence_features[{i}] was tokenised as {features['task']!r}, but a loss expects {task!r} here, so "
                f"the text has the wrong marker and expansion. Without a trainer, use model.tokenize(texts, "
                f"is_query={task == 'query'}); in a trainer, check router_mapping."
            )
        columns.append(move_features(features, accelerator))
    return columns


def _embed_columns(
    model: nn.Module, columns: list[dict[str, Any]], mini_batches: MiniBatches
) -> list[tuple[TokenEmbeddings, Tensor | None]]:
    """Embed columns: return the token vectors and the keys of each."""
    if not _are_token_ids(columns):
        return [(run_whole(model, column, mini_batches), _hash_rows(column)) for column in columns]
    keys = [_hash_rows(column) for column in columns]  # first: it would wait for a GPU to finish the passes
    texts = run_rows(model, _concatenate_columns(columns), mini_batches)
    embedded, start = [], 0
    for column, key in zip(columns, keys, strict=True):
        stop = start + len(column["input_ids"])
        embedded.append((texts[start:stop], key))
        start = stop
    return embedded


def _are_token_ids(columns: list[dict[str, Any]]) -> bool:
    """Whether all tensors are ``(rows, tokens)`` and all other values equal; not so for images and unpadded batches."""
    kinds = [{key: None if isinstance(v, Tensor) else repr(v) for key, v in column.items()} for column in columns]
    if any(kind != kinds[0] for kind in kinds) or kinds[0].get("input_ids", "") is not None:
        return False
    tensors = [(column["input_ids"], v) for column in columns for v in column.values() if isinstance(v, Tensor)]
    return all(v.shape == ids.shape and v.ndim == 2 and not v.is_floating_point() for ids, v in tensors)


def _concatenate_columns(columns: list[dict[str, Any]]) -> dict[str, Any]:
    """Concatenate columns, padded with zeros, which the attention mask excludes."""
    width = max(column["input_ids"].shape[1] for column in columns)
    joined = dict(columns[0])
    for key in [key for key, value in joined.items() if isinstance(value, Tensor)]:
        joined[key] = torch.cat([nn.functional.pad(c[key], (0, width - c[key].shape[1])) for c in columns])
    return joined


def _hash_rows(features: Mapping[str, Any]) -> Tensor | None:
    """Hash the token ids of each row to 64 bits; padding has no effect, and all processes get the same hash."""
    ids, mask = features.get("input_ids"), features.get("attention_mask")
    if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or ids.ndim != 2 or mask.shape != ids.shape:
        return None
    ids, mask = ids.cpu(), mask.cpu().bool()
    factors = torch.randint(1, 2**62, (ids.shape[1] + 1,), generator=torch.Generator().manual_seed(0))
    position = mask.cumsum(dim=1)
    return torch.where(mask, (ids + 1) * factors[position], 0).sum(dim=1)  # overflow wraps around
