"""Min-max normalisation of each query's scores, and weights for queries with almost equal scores.

`min_max_normalize` divides by the range of a row. Scores that are equal but for rounding have a range of a few last
digits, and dividing by it makes noise as large as a difference. `row_weights` gives such rows less weight:

With ``z = (s - min s) / r``, ``r = max s - min s``, ``p = softmax(z / T)`` and ``L = T^2 KL(t || p)``, the gradient is
``dL/ds = (T / r) (g + <g, z> (e_min - e_max))``, where ``g = p - t``. Since ``|g|_1 <= 2`` and ``|<g, z>| <= 1``, its
1-norm is at most ``4 T / r``, and it does grow as ``1 / r``: the loss is the same for ``s`` and ``s / 1000``. A larger
denominator, ``max(r, tolerance)``, does not help: ``dL/ds = (T / tolerance) (1/n - t)`` is then largest for equal
scores. A weight ``w(r)`` without gradient does: 0 up to a tolerance, then rising linearly to 1 at ``full``. ``w / r``
is then at most ``1 / full``, the loss is continuous in ``r``, and the gradient's 1-norm is at most ``4 T / full``.
(With a gradient of its own, the weight would reward equal scores.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["computing_dtype", "min_max_normalize", "relative_rounding", "row_weights"]

# Avoids dividing a row of equal scores by zero; part of the published loss.
_EPSILON = 1e-8
# Rows whose range is at least this share of the largest score have weight 1: the relative error of a bfloat16 number,
# which most training computes in. The scores of different documents differ by more, even for an untrained model.
_FULL_SHARE = 1 / 256
_PRECISIONS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)  # lowest precision first


def min_max_normalize(scores: Tensor) -> Tensor:
    """Map each row ``(b, n)`` onto 0 ... 1: ``(s - min) / (max - min + 1e-8)``.

    Examples
    --------
    >>> min_max_normalize(torch.tensor([[10.0, 14.0, 11.0]]))
    tensor([[0.0000, 1.0000, 0.2500]])
    """
    low, high = scores.min(dim=1, keepdim=True).values, scores.max(dim=1, keepdim=True).values
    return (scores - low) / (high - low + _EPSILON)


def row_weights(scores: Tensor, rounding: float) -> Tensor:
    """Return a weight for each row: less than 1 if its scores hardly differ by more than rounding.

    Parameters
    ----------
    scores
        ``(b, n)``, before they are normalised.
    rounding
        Largest difference of two scores that rounding alone can make, relative to the scores; see `relative_rounding`.

    Returns
    -------
    torch.Tensor
        ``(b,)``, without gradient: with ``size`` the largest absolute score of a row, ``tolerance = rounding * size``
        and ``full = max(size / 256, 2 * tolerance)``, the weight is ``(max - min - tolerance) / (full - tolerance)``,
        clipped to 0 ... 1. NaN for rows with NaN or infinite scores, so that these show in the loss.

    Examples
    --------
    >>> scores = torch.tensor([[10.0, 10.001], [10.0, 10.02], [10.0, 12.0]])
    >>> row_weights(scores, rounding=1e-3)
    tensor([0.0000, 0.3427, 1.0000])
    """
    scores = scores.detach()
    span = scores.amax(dim=1) - scores.amin(dim=1)
    size = scores.abs().amax(dim=1)
    tolerance, full = rounding * size, max(_FULL_SHARE, 2 * rounding) * size
    tiny = torch.finfo(scores.dtype).tiny  # if all scores are 0, so are span, tolerance and full
    return ((span - tolerance) / (full - tolerance).clamp(min=tiny)).clamp(0, 1)


def relative_rounding(scores: torch.dtype, vectors: torch.dtype, dim: int, tokens: int) -> float:
    """Return a bound on the difference that rounding makes between two scores of one text, relative to their size.

    The bound is the sum of three terms:

    * ``(dim + tokens) eps`` of the accumulator (float32 or wider): a score adds ``dim`` products and ``tokens`` maxima,
      each addition is off by at most half an epsilon, and two scores are compared;
    * ``eps`` of the dtype of the scores, if they were rounded to half precision;
    * ``2 eps / sqrt(dim)`` of the dtype of the vectors: their ``dim`` numbers are rounded independently, so a product
      is off by ``1 / sqrt(dim)`` of their error; the factor 2 allows for the rounding inside the encoder.

    Parameters
    ----------
    scores, vectors
        The dtype in which the score metric returned the scores, and that in which the vectors were computed.
    dim
        Dimensions of a vector.
    tokens
        Tokens of the longest query.

    Examples
    --------
    >>> print(f"{relative_rounding(torch.float32, torch.float32, 128, 32):.1e}")
    1.9e-05
    >>> print(f"{relative_rounding(torch.float32, torch.bfloat16, 128, 32):.1e}")
    1.4e-03
    """
    sums = torch.promote_types(scores, torch.float32)
    of_sums = (dim + tokens) * torch.finfo(sums).eps
    of_scores = torch.finfo(scores).eps if sums != scores else 0.0
    return of_sums + of_scores + 2 * torch.finfo(vectors).eps / math.sqrt(max(dim, 1))


def computing_dtype(model: nn.Module, device_type: str) -> torch.dtype:
    """Return the dtype of lowest precision among the model's weights and, if it is on, autocast.

    Examples
    --------
    >>> computing_dtype(nn.Linear(2, 2), "cpu")
    torch.float32
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     computing_dtype(nn.Linear(2, 2), "cpu")
    torch.bfloat16
    """
    used = {parameter.dtype for parameter in model.parameters()}
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        used.add(torch.get_autocast_dtype(device_type))
    return next((dtype for dtype in _PRECISIONS if dtype in used), torch.float32)
