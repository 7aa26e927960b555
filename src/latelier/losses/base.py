"""What every loss shares besides its columns: the scoring function's contract, checks, and warnings given once.

A loss is a scoring function x a choice of negatives x a reduction, put together from the functions here and in
`latelier.losses.columns` rather than inherited. Scores are computed in float32, outside autocast: a similarity that is
rounded to bfloat16 is off by up to 0.002, which thirty query tokens and a low temperature make large.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.model import BaseModel
from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.losses.columns import Embedded, at_least_float32

__all__ = ["ScoreMetric", "WarnOnce", "check_parts", "score"]

# (queries, documents, *, queries_mask, documents_mask) to scores, as in latelier.scores and sentence-transformers.
ScoreMetric: TypeAlias = Callable[..., Tensor]


class WarnOnce:
    """Give each warning once in the life of a loss, not once per step.

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
            warnings.warn(message, stacklevel=5)  # whoever called the loss: two frames of ours, two of nn.Module


def check_parts(model: nn.Module, score_metric: ScoreMetric) -> None:
    """Refuse what cannot be trained with: models of one vector per text, and scores that are no function."""
    dense = isinstance(model, BaseModel) and not isinstance(model, MultiVectorEncoder)
    if dense or not isinstance(model, nn.Module):
        raise InvalidArgumentError(
            f"received a model of type {type(model).__name__}; expected a late-interaction model, such as "
            "latelier.models.ColBERT(name)."
        )
    if not callable(score_metric):
        raise InvalidArgumentError(
            f"score_metric={score_metric!r} is not callable; expected a function such as those in latelier.scores."
        )


def score(score_metric: ScoreMetric, batch: Embedded, per_query: int, suggestion: str) -> Tensor:
    """Compute scores ``(b, per_query)`` in float32, whatever the model or autocast computes in.

    Parameters
    ----------
    score_metric
        The scoring function.
    batch
        What it scores.
    per_query
        How many scores each query has to have.
    suggestion
        A function that gives as many, for the error message.

    Returns
    -------
    torch.Tensor
        The scores, differentiable.

    Raises
    ------
    InvalidArgumentError
        If the function returns anything else.
    """
    with _without_autocast(batch.documents.device.type):
        scores = score_metric(
            batch.queries, batch.documents, queries_mask=batch.queries_mask, documents_mask=batch.documents_mask
        )
    expected = (len(batch.queries), per_query)
    if not isinstance(scores, Tensor) or tuple(scores.shape) != expected:
        received = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise InvalidArgumentError(
            f"score_metric returned {received} for {expected[0]} queries with {batch.documents.shape[1]} documents "
            f"each; expected shape {expected}, as {suggestion} returns it."
        )
    return at_least_float32(scores)


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
