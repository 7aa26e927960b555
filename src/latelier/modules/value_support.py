"""`ValueSupport`: scalar values as distributions over a range of integers, as MuZero and EfficientZero predict them."""

from __future__ import annotations

import torch
from torch import Tensor

from latelier.errors import InvalidArgumentError
from latelier.modules.arguments import check_tensor
from latelier.utils import check_count, check_number

__all__ = ["ValueSupport"]


class ValueSupport:
    """Distributions over the integers ``-n .. n`` that stand for scalar values (MuZero, Schrittwieser et al. 2020).

    A value ``x`` is first scaled (Pohlen et al. 2018, arXiv 1805.11593)::

        h(x) = sign(x) * (sqrt(|x| + 1) - 1) + epsilon * x

    and then shared between the two integers next to ``h(x)``, so that the distribution's mean is ``h(x)``.

    Parameters
    ----------
    size
        Number of integers, ``2n + 1``: an odd number of at least 3.
    epsilon
        Slope that ``h`` has at least; 0: none.

    Raises
    ------
    InvalidArgumentError
        If `size` is even or below 3, or `epsilon` is negative.

    Notes
    -----
    `decode` always applies softmax. LightZero's `inverse_scalar_transform` leaves it out where the logits happen to sum
    to 1.

    Examples
    --------
    >>> import torch
    >>> support = ValueSupport(5, epsilon=0.0)
    >>> support.encode(torch.tensor([0.0, 3.0, 1.25]))
    tensor([[0.0000, 0.0000, 1.0000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000, 1.0000, 0.0000],
            [0.0000, 0.0000, 0.5000, 0.5000, 0.0000]])
    >>> support.decode(torch.tensor([[0.0, 0.0, 20.0, 20.0, 0.0]]))
    tensor([1.2500])

    As the loss of a network's logits:

    >>> logits = torch.zeros(3, 5)
    >>> targets = support.encode(torch.tensor([0.0, 3.0, 1.25]))
    >>> torch.nn.functional.cross_entropy(logits, targets)
    tensor(1.6094)
    """

    def __init__(self, size: int = 601, *, epsilon: float = 0.001) -> None:
        self.size = check_count("size", size, least=3)
        if self.size % 2 == 0:
            raise InvalidArgumentError(f"received size={size}; expected an odd number: integers from -n to n.")
        self.epsilon = check_number("epsilon", epsilon, zero=True)

    def __repr__(self) -> str:
        """Return the call that makes an equal object."""
        return f"ValueSupport({self.size}, epsilon={self.epsilon})"

    def encode(self, values: Tensor) -> Tensor:
        """Return the distributions that stand for values.

        Parameters
        ----------
        values
            Values ``(...)``. Values whose ``h(x)`` is outside ``-n .. n`` are clamped.

        Returns
        -------
        Tensor
            Probabilities ``(..., size)``, float32 (float64 for values of this dtype): the targets of a cross entropy.

        Raises
        ------
        InvalidArgumentError
            If `values` is not a tensor, or a value is NaN or infinite.
        """
        check_tensor("values", values)
        if not values.isfinite().all():
            raise InvalidArgumentError("received NaN or infinity among the values; expected finite numbers.")
        values = _to_float(values)
        scaled = values.sign() * ((values.abs() + 1).sqrt() - 1) + self.epsilon * values
        positions = scaled.clamp(-(self.size // 2), self.size // 2) + self.size // 2
        below = positions.floor().clamp(max=self.size - 2)
        upper = (positions - below).unsqueeze(-1)
        probabilities = upper.new_zeros((*values.shape, self.size))
        index = below.long().unsqueeze(-1)
        return probabilities.scatter(-1, torch.cat([index, index + 1], -1), torch.cat([1 - upper, upper], -1))

    def decode(self, logits: Tensor) -> Tensor:
        """Return the values that logits stand for: the inverse of ``h`` at the mean of their softmax.

        Parameters
        ----------
        logits
            ``(..., size)``.

        Returns
        -------
        Tensor
            Values ``(...)``, float32 (float64 for logits of this dtype).

        Raises
        ------
        InvalidArgumentError
            If `logits` is not a tensor, or there are not `size` logits.
        """
        check_tensor("logits", logits)
        if logits.ndim == 0 or logits.shape[-1] != self.size:
            raise InvalidArgumentError(f"received logits of shape {tuple(logits.shape)}; expected (..., {self.size}).")
        probabilities = _to_float(logits).softmax(dim=-1)
        n = self.size // 2
        weights = torch.arange(1, n + 1, device=logits.device, dtype=probabilities.dtype)
        # integers of opposite sign together: equal probabilities cancel exactly
        scaled = (probabilities[..., n + 1 :] - probabilities[..., :n].flip(-1)) @ weights
        # sqrt(|x| + 1), the root of epsilon * root^2 + root = |scaled| + 1 + epsilon, in the form without cancellation
        total = scaled.abs() + 1 + self.epsilon
        root = 2 * total / (1 + (1 + 4 * self.epsilon * total).sqrt())
        return scaled.sign() * (root - 1) * (root + 1)


def _to_float(tensor: Tensor) -> Tensor:
    """Return float64 as it is, and other dtypes as float32."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
