"""`Loss`, the base class: from features to token vectors and scores; a subclass turns the scores into a scalar.

Scores are computed in float32, outside autocast: rounding to bfloat16 changes a similarity by up to 0.002, which a sum
over thirty query tokens and a low temperature multiply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.model import BaseModel
from sentence_transformers.util import similarity_fct_name
from torch import Tensor, nn

from latelier.arrays import at_least_float32
from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.losses.batch import EmbeddedBatch, embed_batch
from latelier.losses.mini_batches import MiniBatches
from latelier.utils import check_flag, is_count
from latelier.utils.misc import warn_caller

__all__ = ["Loss", "LossOptions", "ScoreMetric", "WarnOnce", "check_score_metric", "raw_score", "score"]

ScoreMetric: TypeAlias = Callable[..., Tensor]
"""(queries, documents, *, queries_mask, documents_mask) to scores, as in latelier.scores and sentence-transformers."""


class LossOptions(NamedTuple):
    """Options that all losses share.

    Parameters
    ----------
    size_average
        Mean over the queries of the batch; False sums.
    dims
        Numbers of dimensions to train for, see `truncated`; None: the model's own.
    gather_across_devices
        Use the documents of all processes as negatives.
    mini_batches
        Limits of a forward pass.
    """

    size_average: bool = True
    dims: Sequence[int] | None = None
    gather_across_devices: bool = False
    mini_batches: MiniBatches = MiniBatches()


class WarnOnce:
    """Give each warning once per loss object, not once per step.

    Examples
    --------
    >>> import warnings
    >>> warn = WarnOnce()
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warn("one"), warn("one")
    (None, None)
    >>> [str(warning.message) for warning in caught]
    ['one']
    """

    def __init__(self) -> None:
        self._given: set[str] = set()

    def __call__(self, message: str) -> None:
        """Warn, unless the same message was given before."""
        if message not in self._given:
            self._given.add(message)
            warn_caller(message)


class Loss(nn.Module, ABC):
    """A loss over the token vectors of queries and their documents.

    Parameters
    ----------
    model
        A late-interaction model.
    score_metric
        Function that scores queries against documents.
    options
        The options that all losses share.

    Raises
    ------
    InvalidArgumentError
        If the model is not a multi-vector model, `score_metric` is not callable, or an option is out of range.
    """

    def __init__(self, model: nn.Module, score_metric: ScoreMetric, options: LossOptions) -> None:
        super().__init__()
        _check_model(model)
        check_score_metric(score_metric)
        check_flag("size_average", options.size_average)
        check_flag("gather_across_devices", options.gather_across_devices)
        options.mini_batches.check()
        self.model = model  # trainers replace this attribute by a wrapped model
        self.score_metric = score_metric
        self.options = options._replace(dims=_read_dims(options.dims))
        self._warn_once = WarnOnce()

    def forward(self, sentence_features: Iterable[Mapping[str, Any]], labels: Any = None) -> Tensor:
        """Compute the loss of a batch.

        Parameters
        ----------
        sentence_features
            Features of the ``b`` queries, then of their ``n`` documents each: ``n`` dicts of ``b`` rows, as the
            trainer passes them; one dict of ``b * n`` rows, the documents of one query next to each other; or both.
        labels
            See the class.

        Returns
        -------
        torch.Tensor
            Scalar, at least float32 whatever the model computes in; the mean over `dims`, if several are given.

        Raises
        ------
        InvalidArgumentError
            If the features, the labels or the result of `score_metric` have the wrong shape.
        """
        batch = embed_batch(self.model, sentence_features, self._warn_once, self.options.mini_batches)
        dims = self.options.dims
        if dims is None:
            return self._compute(batch, labels)
        return torch.stack([self._compute(truncated(batch, dim), labels) for dim in dims]).mean()

    @abstractmethod
    def _compute(self, batch: EmbeddedBatch, labels: Any) -> Tensor:
        """Return the loss of a batch, a scalar."""

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings for the model card; of the shared options, those that differ from their defaults."""
        options, defaults = self.options, LossOptions()
        settings: dict[str, Any] = {
            "score_metric": similarity_fct_name(self.score_metric),
            "size_average": options.size_average,
        }
        for name in ("dims", "gather_across_devices"):
            if getattr(options, name) != getattr(defaults, name):
                settings[name] = getattr(options, name)
        return settings


def truncated(batch: EmbeddedBatch, dim: int) -> EmbeddedBatch:
    """Truncate token vectors to their first `dim` dimensions and normalise them to length 1."""
    if dim > batch.documents.dim:
        raise InvalidArgumentError(
            f"dims holds {dim}, but the model's vectors have {batch.documents.dim} dimensions; give at most that."
        )
    cut = partial(_cut, dim=dim)
    return batch._replace(queries=cut(batch.queries), documents=cut(batch.documents))


def score(
    score_metric: ScoreMetric,
    queries: TokenEmbeddings,
    documents: TokenEmbeddings,
    columns: int,
    suggestion: str,
    name: str = "score_metric",
) -> Tensor:
    """Compute scores as `raw_score` does, and convert half precision to float32."""
    return at_least_float32(raw_score(score_metric, queries, documents, columns, suggestion, name))


def raw_score(
    score_metric: ScoreMetric,
    queries: TokenEmbeddings,
    documents: TokenEmbeddings,
    columns: int,
    suggestion: str,
    name: str = "score_metric",
) -> Tensor:
    """Compute scores ``(b, columns)`` from vectors of at least float32, in the dtype that `score_metric` returns.

    Parameters
    ----------
    score_metric
        The scoring function. Functions of this library get the packed texts, others get padded tensors with masks.
    queries, documents
        ``b`` texts, and a multiple of ``b`` texts or documents that all queries share.
    columns
        Expected number of scores per query.
    suggestion
        Name of a function that returns that many scores, for the error message.
    name
        Name of the loss's argument, for the error message.

    Returns
    -------
    torch.Tensor
        The scores, differentiable.

    Raises
    ------
    InvalidArgumentError
        If the function returns anything other than a tensor of that shape.
    """
    per_query = len(documents) // len(queries)
    with _without_autocast(documents.device.type):
        if _takes_packed(score_metric):
            scores = score_metric(queries, documents)
        else:
            left, left_mask = map(torch.as_tensor, queries.pad())
            right, right_mask = map(torch.as_tensor, documents.pad())
            # Documents gathered from processes with other batch sizes need not divide into groups of one size.
            shape = (-1, per_query if len(documents) == per_query * len(queries) else 1)
            documents_mask = right_mask.unflatten(0, shape)
            scores = score_metric(
                left, right.unflatten(0, shape), queries_mask=left_mask, documents_mask=documents_mask
            )
    expected = (len(queries), columns)
    if not isinstance(scores, Tensor) or tuple(scores.shape) != expected:
        received = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise InvalidArgumentError(
            f"{name} returned {received} for {expected[0]} queries with {per_query} documents "
            f"each; expected shape {expected}, as {suggestion} returns it."
        )
    return scores


def check_score_metric(score_metric: ScoreMetric, name: str = "score_metric") -> None:
    """Raise `InvalidArgumentError` unless the score metric is callable."""
    if not callable(score_metric):
        raise InvalidArgumentError(
            f"{name}={score_metric!r} is not callable; expected a function such as those in latelier.scores."
        )


def _check_model(model: nn.Module) -> None:
    dense = isinstance(model, BaseModel) and not isinstance(model, MultiVectorEncoder)
    if dense or not isinstance(model, nn.Module):
        raise InvalidArgumentError(
            f"received a model of type {type(model).__name__}; expected a late-interaction model, such as "
            "latelier.models.ColBERT(name)."
        )


def _read_dims(dims: Any) -> tuple[int, ...] | None:
    if dims is None:
        return None
    given = tuple(dims) if isinstance(dims, Sequence) and not isinstance(dims, str) else ()
    if not given or not all(is_count(dim) for dim in given):
        raise InvalidArgumentError(f"dims={dims!r}; expected dimensions to train for, such as (128, 64, 32), or None.")
    return tuple(map(int, given))


def _cut(texts: TokenEmbeddings, dim: int) -> TokenEmbeddings:
    return TokenEmbeddings(nn.functional.normalize(texts.vectors[:, :dim], dim=1), texts.offsets)


def _takes_packed(score_metric: ScoreMetric) -> bool:
    function = score_metric.func if isinstance(score_metric, partial) else score_metric
    return getattr(function, "__module__", "").startswith("latelier.scores.")


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
