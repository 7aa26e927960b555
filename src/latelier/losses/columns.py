"""From the columns of a batch to token vectors, the documents grouped by query.

The document columns go through the model in one pass where they can: as many small passes as there are candidates
would leave a GPU idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from latelier.errors import InvalidArgumentError

__all__ = ["Embedded", "at_least_float32", "embed_columns"]


class Embedded(NamedTuple):
    """A batch of ``b`` queries with ``n`` documents each, padded to the widest of either side.

    Parameters
    ----------
    queries, documents
        ``(b, query_tokens, dim)`` and ``(b, n, document_tokens, dim)``, float32 (float64 from a float64 model).
    queries_mask, documents_mask
        ``(b, query_tokens)`` and ``(b, n, document_tokens)`` bool, true where a token is scored.
    """

    queries: Tensor
    documents: Tensor
    queries_mask: Tensor
    documents_mask: Tensor


def embed_columns(
    model: nn.Module, sentence_features: Iterable[Mapping[str, Any]], warn_once: Callable[[str], None]
) -> Embedded:
    """Embed queries and documents, and group the documents by query.

    Parameters
    ----------
    model
        A late-interaction model, or a wrapper (data parallel, compiled) around one.
    sentence_features
        Features of the ``b`` queries, then of the documents in any number of dicts: those with ``b`` rows hold one
        document of each query, those with ``b * m`` rows hold ``m``, the documents of one query next to each other.
    warn_once
        Called with what is accepted but looks like a mistake.

    Returns
    -------
    Embedded
        The documents of each query in the order of the dicts.

    Raises
    ------
    InvalidArgumentError
        If there are no documents, a dict is none or is empty, or its rows cannot be shared out among the queries.
    """
    columns = _read_columns(model, sentence_features, warn_once)
    ((queries, queries_mask),) = _run(model, columns[:1])
    groups = []
    for i, (vectors, mask) in enumerate(_run(model, columns[1:]), start=1):
        if len(queries) == 0 or len(vectors) == 0 or len(vectors) % len(queries):
            raise InvalidArgumentError(
                f"sentence_features[{i}] has {len(vectors)} rows for {len(queries)} queries; expected one document "
                "for each query, or all documents of each query next to each other: a multiple of the queries' rows."
            )
        shape = (len(queries), len(vectors) // len(queries))
        groups.append((vectors.unflatten(0, shape), mask.unflatten(0, shape)))
    width = max(mask.shape[2] for _, mask in groups)
    documents = torch.cat([nn.functional.pad(v, (0, 0, 0, width - v.shape[2])) for v, _ in groups], dim=1)
    documents_mask = torch.cat([nn.functional.pad(m, (0, width - m.shape[2])) for _, m in groups], dim=1)
    empty = (~documents_mask.any(dim=2)).nonzero().tolist()
    if empty:
        raise InvalidArgumentError(
            f"document {empty[0][1]} of query {empty[0][0]} has no token that is scored, so its score is minus "
            "infinity; give it a text, or a shorter skiplist."
        )
    return Embedded(queries, documents, queries_mask, documents_mask)


def _read_columns(
    model: nn.Module, sentence_features: Iterable[Mapping[str, Any]], warn_once: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Copy the dicts, since the model's modules write into them, and bring what the tokeniser made to the device."""
    given = list(sentence_features)
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
                f"sentence_features[{i}] is {features!r}; expected features, as model.tokenize(texts, "
                f"is_query={task == 'query'}) returns them."
            )
        if features.get("task") not in (None, task):
            warn_once(
                f"sentence_features[{i}] was tokenised as {features['task']!r}, where a loss expects {task!r}: "
                f"markers and expansion are those of the other side. By hand, use model.tokenize(texts, "
                f"is_query={task == 'query'}); in a trainer, look at router_mapping."
            )
        columns.append({k: v.to(accelerator) if isinstance(v, Tensor) else v for k, v in features.items()})
    return columns


def _run(model: nn.Module, columns: list[dict[str, Any]]) -> list[tuple[Tensor, Tensor]]:
    """Embed columns: vectors ``(rows, tokens, dim)`` and bool mask ``(rows, tokens)`` for each."""
    rows = [len(column["input_ids"]) for column in columns] if _can_be_joined(columns) else None
    outputs = []
    for column in columns if rows is None else [_join(columns)]:
        out = model(column, task=column.get("task"))
        outputs.append((at_least_float32(out["token_embeddings"]), out["attention_mask"].bool()))
    if rows is None:
        return outputs
    ((vectors, mask),) = outputs
    return list(zip(vectors.split(rows), mask.split(rows), strict=True))


def _can_be_joined(columns: list[dict[str, Any]]) -> bool:
    """Whether all tensors are ``(rows, tokens)``, and all else is the same: not images, nor unpadded batches."""
    kinds = [{key: None if isinstance(v, Tensor) else repr(v) for key, v in column.items()} for column in columns]
    if any(kind != kinds[0] for kind in kinds) or kinds[0].get("input_ids", "") is not None:
        return False
    tensors = [(column["input_ids"], v) for column in columns for v in column.values() if isinstance(v, Tensor)]
    return all(v.shape == ids.shape and v.ndim == 2 and not v.is_floating_point() for ids, v in tensors)


def _join(columns: list[dict[str, Any]]) -> dict[str, Any]:
    """One column below the other, each padded with zeros, which the attention mask leaves out."""
    width = max(column["input_ids"].shape[1] for column in columns)
    joined = dict(columns[0])
    for key in [key for key, value in joined.items() if isinstance(value, Tensor)]:
        joined[key] = torch.cat([nn.functional.pad(c[key], (0, width - c[key].shape[1])) for c in columns])
    return joined


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return half precision as float32, anything wider as it is."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
