"""The index that is in a folder already, for those who make one where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latelier import indexes
from latelier.errors import IndexFormatError
from latelier.indexes import Index
from latelier.indexes.catalog.rows import CATALOG
from latelier.utils.files import is_folder

__all__ = ["open_if_made"]


def open_if_made(folder: Path, **options: Any) -> Index | None:
    """Open the index in a folder; return None if there is none yet, even if another process has begun to make one.

    The classes of indexes expect that process, and open or make the index as it comes.

    Parameters
    ----------
    folder
        The folder; it may be missing.
    **options
        Arguments of `latelier.indexes.open`.

    Raises
    ------
    LatelierError
        If the folder holds other files, or its index cannot be opened.

    Examples
    --------
    >>> print(open_if_made(Path("no-folder")))
    None
    """
    names = [path.name for path in folder.iterdir()] if is_folder(folder) else []
    if not names:
        return None
    try:
        return indexes.open(folder, **options)
    except IndexFormatError:
        # A catalog, with what SQLite puts beside it, is there before the index is described in it.
        if all(name.startswith(CATALOG) for name in names):
            return None
        raise
