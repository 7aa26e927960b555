"""Warnings of a call that has done its work all the same; each points to the line that called the library."""

from __future__ import annotations

import sys
import warnings

from latelier.errors import IndexDamageWarning

__all__ = ["warn_caller", "warn_of_damage"]


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that called the library."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("latelier."):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, category, stacklevel=depth + 1)


def warn_of_damage(problem: str) -> None:
    """Warn of damage that did not keep a call from doing its work; the message says how to repair it."""
    warn_caller(
        f"{problem} verify() lists what is damaged and the ids of its documents: update() or remove() them, or put the "
        "files back from a copy.",
        IndexDamageWarning,
    )
