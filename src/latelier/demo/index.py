"""The index of the demo: the standard library's docstrings, made once per user and then kept.

It is made in a folder of its own beside the place where it will stand and renamed when it is complete, so whoever
interrupts the first run finds no half of it in the second.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from latelier.demo.cache import cache_folder
from latelier.errors import LatelierError, StorageError
from latelier.indexes import Flat
from latelier.models import DEFAULT_MODEL, ColBERT
from latelier.retrieve import Retriever

__all__ = ["MODEL_OPTIONS", "build", "demo_folder"]

# What a docstring is about stands at its beginning: the first 64 tokens answer as well, in two thirds of the time.
MODEL_OPTIONS: dict[str, Any] = {"max_length_document": 64}


def demo_folder() -> Path:
    """Return where the demo's index stands: one for each Python, model and version of this library."""
    model = DEFAULT_MODEL.rpartition("/")[2]
    return cache_folder() / f"demo-python{platform.python_version()}-{model}-latelier{version('latelier')}"


def build(folder: Path, model: ColBERT, documents: Iterable[Any], *, show_progress: bool = False) -> None:
    """Make the index; the folder appears when it is complete.

    Parameters
    ----------
    folder
        Where it will stand.
    model
        Loaded with `MODEL_OPTIONS`.
    documents
        The docstrings of the standard library.
    show_progress
        Count documents on standard error.

    Raises
    ------
    StorageError
        If the cache cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix="unfinished-"))
    except OSError as error:
        raise StorageError(
            f"cannot write the cache {folder.parent}: {error}. Set LATELIER_CACHE to a folder that can be written."
        ) from error
    try:
        with Retriever(model, Flat(unfinished, dtype="float16")) as retriever:
            retriever.add(documents, show_progress=show_progress)
        unfinished.rename(folder)
    except OSError as error:
        # Another process may have been faster; then its index stands there and is as good.
        if isinstance(error, LatelierError) or not folder.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
