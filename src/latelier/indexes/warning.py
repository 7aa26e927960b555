"""Warnings of calls that have nevertheless succeeded; each warning points to the line that called the library."""

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
    """Warn of damage found by a call that has nevertheless succeeded; the message says how to repair it."""
    warn_caller(
        f"{problem} verify() lists the damaged files and the ids of their documents: update() or remove() them, or "
        "restore the files from a backup.",
        IndexDamageWarning,
    )
