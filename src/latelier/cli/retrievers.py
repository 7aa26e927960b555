"""Opening what the commands search, without the noise that loading a model makes on standard error."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from latelier.cli.output import quiet_loading

if TYPE_CHECKING:
    from latelier.retrieve import Retriever

__all__ = ["Kind", "open_existing", "open_or_make", "quiet_loading"]


class Kind(str, Enum):
    """Kinds of index that a command can make."""

    FLAT = "flat"
    IVF = "ivf"


def open_existing(folder: Path, model: str | None, device: str | None) -> Retriever:
    """Open an index for searching, with the model that it names or with the one that the user gives."""
    from latelier.retrieve import Retriever

    quiet_loading()
    if model is None:
        return Retriever.open(folder, device=device, read_only=True)
    return _open_with(model, folder, device, read_only=True)


def open_or_make(folder: Path, model: str | None, device: str | None, kind: Kind = Kind.FLAT) -> Retriever:
    """Open an index, or make one of a kind; the model is by default what the index names, or the default one."""
    from latelier import indexes
    from latelier.retrieve import Retriever
    from latelier.retrieve.identity import Identity

    quiet_loading()
    if folder.is_dir() and any(folder.iterdir()):
        if model is None:
            with indexes.open(folder, read_only=True) as index:
                named = index.dim is not None or Identity.stored_in(index) is not None
            if named:
                return Retriever.open(folder, device=device)
        return _open_with(model, folder, device, read_only=False)
    return Retriever(model, folder if kind is Kind.FLAT else indexes.IVF(folder), device=device)


def _open_with(model: str | None, folder: Path, device: str | None, *, read_only: bool) -> Retriever:
    """Open an index with a model that the user gives, and with the options that the index was filled with."""
    from latelier import indexes
    from latelier.errors import IndexFormatError
    from latelier.retrieve import Retriever
    from latelier.retrieve.identity import Identity

    index = indexes.open(folder, read_only=read_only)
    try:
        try:
            stored = Identity.stored_in(index)
        except IndexFormatError:  # which the user answers by giving the model
            stored = None
        return Retriever(model, index, device=device, model_options=stored.options if stored else None)
    except BaseException:
        index.close()
        raise
