"""Multi-layer perceptrons with a norm before each activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

__all__ = ["make_mlp"]


def make_mlp(sizes: Sequence[int], norm: Callable[[int], nn.Module], activation: nn.Module) -> nn.Sequential:
    """Return ``linear, norm, activation, linear, norm, activation, ..., linear``.

    Parameters
    ----------
    sizes
        Channels: of the input, of each hidden layer, of the output.
    norm
        Function that returns the norm of a number of channels.
    activation
        Activation function, one instance after every norm.

    Returns
    -------
    nn.Sequential
        The layers: ``(..., sizes[0])`` to ``(..., sizes[-1])``.

    Examples
    --------
    >>> from torch import nn
    >>> make_mlp([4, 8, 2], nn.BatchNorm1d, nn.ReLU())[::2]
    Sequential(
      (0): Linear(in_features=4, out_features=8, bias=True)
      (2): ReLU()
    )
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), norm(after), activation]
    return nn.Sequential(*layers[:-2])
