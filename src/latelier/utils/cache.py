"""The folder of this user for files that can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Return the folder for files that can be made again: ``LATELIER_CACHE``, or the platform's usual one.

    Returns
    -------
    pathlib.Path
        ``latelier`` in ``%LOCALAPPDATA%`` on Windows, ``~/Library/Caches/latelier`` on macOS, elsewhere
        ``$XDG_CACHE_HOME/latelier`` or ``~/.cache/latelier``. It need not exist.
    """
    chosen = os.environ.get("LATELIER_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "latelier"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "latelier"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "latelier"
