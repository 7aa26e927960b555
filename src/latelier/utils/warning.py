"""`warn_caller`: warnings point to the line of the user that called the library, however deep the cause lies."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn_caller"]

# What calls this library, being called by users or by this library.
_LIBRARIES = ("latelier", "sentence_transformers", "transformers", "torch")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that called the library."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in _LIBRARIES:
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, category, stacklevel=depth + 1)
