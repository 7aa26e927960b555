"""Calling a public function on behalf of a case: what it was called with, and what came of it, is kept."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from latelier.errors import LatelierError
from soak.cases import Wrong, say

# What `Caller` returns for a call that was refused.
REFUSED = object()


class Caller:
    """Calls functions and counts how that ends.

    Attributes
    ----------
    draw
        Hypothesis's, which returns a value of a strategy.
    counts
        Calls that were refused and accepted.
    """

    def __init__(self, draw: Callable[[Any], Any], counts: Counter[str]) -> None:
        self.draw, self.counts = draw, counts

    def __call__(
        self, function: Callable[..., Any], *args: Any, valid: bool = False, may: tuple[type, ...] = (), **kwargs: Any
    ) -> Any:
        """Return what a function returns, or `REFUSED`.

        Parameters
        ----------
        function, args, kwargs
            What to call.
        valid
            The arguments are such as must be accepted.
        may
            Built-in errors that the function documents.
        """
        shown = [*map(describe, args), *(f"{name}={describe(value)}" for name, value in kwargs.items())]
        say(f"{getattr(function, '__qualname__', function)}({', '.join(shown)})"[:800])
        try:
            result = function(*args, **kwargs)
        except (LatelierError, *may) as error:
            if valid:
                raise Wrong(f"refused what is valid: {type(error).__name__}: {error}") from error
            self.counts["refused"] += 1
            return REFUSED
        self.counts["accepted"] += 1
        return result


def describe(value: Any) -> str:
    """Return a short form of an argument."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        content = "" if np.prod(value.shape) > 24 else f" {value.tolist()}"
        return f"{type(value).__name__}({value.dtype!s} {tuple(value.shape)}{content})"
    if isinstance(value, (list, tuple)) and len(value) < 12:
        return f"{type(value).__name__}[{', '.join(map(describe, value))}]"
    return repr(value)[:300]


def close(found: Any, expected: Any, what: str, tolerance: float = 1e-3) -> None:
    """Compare numbers with those of a naive computation."""
    found = found.detach().cpu().numpy() if isinstance(found, torch.Tensor) else np.asarray(found)
    expected = np.asarray(expected)
    if found.shape != expected.shape:
        raise Wrong(f"{what} of shape {found.shape}, expected {expected.shape}")
    if not np.allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise Wrong(f"{what}: {found.tolist()}, expected {expected.tolist()}")
