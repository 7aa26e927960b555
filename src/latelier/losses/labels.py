"""Labels of a batch: a teacher's scores or margins, checked and converted to the device and dtype of the scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from latelier.arrays import is_array
from latelier.errors import InvalidArgumentError
from latelier.utils.checks import describe

__all__ = ["as_numbers", "read_scores"]


def read_scores(labels: Any, scores: Tensor) -> Tensor:
    """Return the teacher's scores as a tensor of the shape, dtype and device of the student's `scores`.

    Raises
    ------
    InvalidArgumentError
        If there are no labels, or they have another shape, NaN or infinity.

    Examples
    --------
    >>> read_scores([[1, 0]], torch.zeros(1, 2))
    tensor([[1., 0.]])
    """
    expected = f"expected the teacher's scores of shape {tuple(scores.shape)} (queries, candidates of each)"
    if labels is None:
        raise InvalidArgumentError(
            f"received no labels; {expected}. In a trainer, they are the dataset's column 'scores' (or 'label')."
        )
    teacher = as_numbers(labels).detach().to(scores)
    if teacher.shape != scores.shape:
        raise InvalidArgumentError(f"received labels of shape {tuple(teacher.shape)}; {expected}.")
    if not teacher.isfinite().all():
        raise InvalidArgumentError(f"labels hold NaN or infinity: {teacher[~teacher.isfinite()].tolist()}; {expected}.")
    return teacher


def as_numbers(labels: Any) -> Tensor:
    """Return labels as a tensor of real numbers.

    Raises
    ------
    InvalidArgumentError
        If they are anything else.

    Examples
    --------
    >>> as_numbers([1.0, 0.0])
    tensor([1., 0.])
    >>> as_numbers([torch.tensor([1.0, 0.0]), (0.5, 0.0)])
    tensor([[1.0000, 0.0000],
            [0.5000, 0.0000]])
    """
    try:
        if isinstance(labels, (list, tuple)) and any(map(is_array, labels)):
            labels = torch.stack([torch.as_tensor(row) for row in labels])  # torch reads no list of tensors
        numbers = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidArgumentError(f"received {describe(labels)} as labels; expected numbers: {error}.") from error
    if numbers.is_complex():
        raise InvalidArgumentError("received complex labels; expected real numbers.")
    return numbers
