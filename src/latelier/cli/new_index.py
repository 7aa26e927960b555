"""A new index of a command: it is removed if no document gets into it, so the command can be repeated."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from latelier.indexes import Index
    from latelier.retrieve import Retriever

__all__ = ["discarded_if_empty", "discarded_if_failed", "holds_files"]


def holds_files(folder: Path) -> bool:
    """Whether there is a folder of this name that is not empty."""
    return folder.is_dir() and any(folder.iterdir())


@contextmanager
def discarded_if_empty(folder: Path, open_or_make: Callable[[], Retriever], source: str) -> Iterator[Retriever]:
    """Open or make an index for a ``with`` block; remove it if the call made it and it is empty at the end.

    An empty index would be of the kind of the first, failed attempt, whatever the next one asks for.

    Parameters
    ----------
    folder
        The folder of the index.
    open_or_make
        Opens the index in the folder, or makes one if the folder is empty or missing.
    source
        Where the documents come from, for the message.

    Raises
    ------
    InvalidArgumentError
        If the block ends without an error, but no document is in the new index.
    """
    from latelier.errors import InvalidArgumentError

    was_folder, is_new = folder.is_dir(), not holds_files(folder)
    is_unused = is_new  # if it cannot be opened, nothing was committed
    try:
        with open_or_make() as retriever:
            is_unused = False
            try:
                yield retriever
            finally:
                is_unused = is_new and len(retriever.index) == 0
            if is_unused:
                name = "standard input" if source == "-" else source
                raise InvalidArgumentError(
                    f"nothing to index in {name}: it holds no document, so no index was made. Give one that does, or "
                    "see --format."
                )
    finally:
        if is_unused:
            _remove(folder, keep=was_folder)


@contextmanager
def discarded_if_failed(folder: Path, open_or_make: Callable[[], Index]) -> Iterator[Index]:
    """Open or make an index for a ``with`` block; remove it if the call made it, and an error leaves it empty.

    Parameters
    ----------
    folder
        The folder of the index.
    open_or_make
        Opens the index in the folder, or makes one if the folder is empty or missing.
    """
    was_folder, is_new = folder.is_dir(), not holds_files(folder)
    is_unused = is_new
    try:
        with open_or_make() as index:
            is_unused = False
            try:
                yield index
            except BaseException:
                is_unused = is_new and len(index) == 0
                raise
    finally:
        if is_unused:
            _remove(folder, keep=was_folder)


def _remove(folder: Path, *, keep: bool) -> None:
    """Remove an index without documents; `keep` leaves its folder, empty as it was before."""
    if not folder.is_dir():
        return
    folder = folder.resolve()
    # Another process that has opened the index notices that it was moved, and writes nothing to it from then on.
    aside = folder.with_name(f".{folder.name}.{uuid4().hex}")
    try:
        folder.rename(aside)
    except OSError:  # a mount point, or files that are open on Windows
        return
    if _holds_documents(aside):  # that process has committed in the meantime
        aside.rename(folder)
        return
    shutil.rmtree(aside, ignore_errors=True)
    if keep:
        folder.mkdir()


def _holds_documents(folder: Path) -> bool:
    import sqlite3

    from latelier.indexes.catalog.rows import CATALOG

    if not (folder / CATALOG).is_file():
        return False
    with closing(sqlite3.connect(folder / CATALOG)) as connection:
        try:
            return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM document)").fetchone()[0])
        except sqlite3.Error:  # of another kind, whose processes have ended with this one
            return False
