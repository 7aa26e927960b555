"""Min-max normalisation of each query's scores, and how much a query counts whose scores hardly differ.

`stretch` divides by the range of a row. Scores that are equal but for rounding have a range of a few last digits, and
dividing by it makes noise as large as a difference. `row_weights` says which rows those are:

With ``z = (s - min s) / r``, ``r = max s - min s``, ``p = softmax(z / T)`` and ``L = T^2 KL(t || p)``, the gradient is
``dL/ds = (T / r) (g + <g, z> (e_min - e_max))``, where ``g = p - t``. Since ``|g|_1 <= 2`` and ``|<g, z>| <= 1``, its
1-norm is at most ``4 T / r``, and it does grow as ``1 / r``: the loss is the same for ``s`` and ``s / 1000``. A larger
denominator (``max(r, tolerance)``) would not do, since ``dL/ds = (T / tolerance) (1/n - t)`` is then largest where the
scores are equal. A weight ``w(r)``, itself without gradient, does: 0 up to a tolerance, rising in proportion to 1 at
``full``. ``w / r`` is then at most ``1 / full``, the loss is continuous in ``r``, and no row pulls at its scores with
more than ``4 T / full``. (With a gradient of its own, the weight would reward scores that are all alike.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["computing_dtype", "relative_rounding", "row_weights", "stretch"]

# Keeps a row of equal scores from dividing by zero; part of the published loss.
_EPSILON = 1e-8
# Rows whose range is at least this share of the scores count in full: the relative error of a number in bfloat16, which
# most training computes in. Different documents lie further apart, also under a model that is not trained yet.
_FULL_SHARE = 1 / 256
_PRECISIONS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)  # from coarse to fine


def stretch(scores: Tensor) -> Tensor:
    """Map each row ``(b, n)`` onto 0 ... 1: ``(s - min) / (max - min + 1e-8)``.

    Examples
    --------
    >>> stretch(torch.tensor([[10.0, 14.0, 11.0]]))
    tensor([[0.0000, 1.0000, 0.2500]])
    """
    low, high = scores.min(dim=1, keepdim=True).values, scores.max(dim=1, keepdim=True).values
    return (scores - low) / (high - low + _EPSILON)


def row_weights(scores: Tensor, rounding: float) -> Tensor:
    """Weigh rows by whether their scores differ by more than rounding.

    Parameters
    ----------
    scores
        ``(b, n)``, before they are stretched.
    rounding
        Difference of two scores that rounding alone can make, relative to the size of the scores.

    Returns
    -------
    torch.Tensor
        ``(b,)``, without gradient: 0 where the range of a row is at most ``rounding`` times its largest absolute
        score, 1 from 1/256 of that score on (twice the tolerance, if that is more), in proportion between. NaN where
        scores are NaN or infinite, so that they are not passed over.

    Examples
    --------
    >>> row_weights(torch.tensor([[10.0, 10.001], [10.0, 10.02], [10.0, 12.0]]), rounding=1e-3)
    tensor([0.0000, 0.3427, 1.0000])
    """
    scores = scores.detach()
    span = scores.amax(dim=1) - scores.amin(dim=1)
    size = scores.abs().amax(dim=1)
    tolerance, full = rounding * size, max(_FULL_SHARE, 2 * rounding) * size
    nothing = torch.finfo(scores.dtype).tiny  # all scores 0: no range, no size
    return ((span - tolerance) / (full - tolerance).clamp(min=nothing)).clamp(0, 1)


def relative_rounding(scores: torch.dtype, vectors: torch.dtype, dim: int, tokens: int) -> float:
    """Return by how much two scores of the same text may differ, relative to their size.

    The sum of ``dim`` products and of ``tokens`` maxima, in float32 or wider whatever the numbers are, is off by at
    most half an epsilon per addition; that is ``(dim + tokens) eps`` between two sums. Two results rounded to half
    precision differ by its epsilon. So do the numbers of two vectors, but ``dim`` of them are rounded independently,
    which leaves ``1 / sqrt(dim)`` of it in their product, twice that for what an encoder adds.

    Parameters
    ----------
    scores, vectors
        What the scores came in, and what the vectors were computed in.
    dim
        Numbers of a vector.
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
    """Return the coarsest number that vectors went through: that of autocast, or of the model's weights.

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
