"""Opening what the commands search, without the noise that loading a model makes on standard error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latelier.retrieve import Retriever

__all__ = ["open_existing", "open_or_make", "quiet_loading"]


def quiet_loading() -> None:
    """Keep transformers from showing a progress bar for the loading of a small file."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def open_existing(folder: Path, device: str | None) -> Retriever:
    """Open an index for searching, with the model that it names."""
    from latelier.retrieve import Retriever

    quiet_loading()
    return Retriever.open(folder, device=device, read_only=True)


def open_or_make(folder: Path, model: str | None, device: str | None) -> Retriever:
    """Open or make an index; without a model, with the one that it names, or the default one where it is new."""
    from latelier import indexes
    from latelier.retrieve import Retriever
    from latelier.retrieve.identity import Identity

    quiet_loading()
    if model is None and folder.is_dir() and any(folder.iterdir()):
        with indexes.open(folder, read_only=True) as index:
            named = index.dim is not None or Identity.stored_in(index) is not None
        if named:
            return Retriever.open(folder, device=device)
    return Retriever(model, folder, device=device)
