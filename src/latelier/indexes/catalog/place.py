"""Whether the files of an index are still those that were opened, or others that were moved into their place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from latelier.errors import StorageError

__all__ = ["Identity", "Place", "replaced"]

# Device and number of a file: what a path leads to, however it is spelled.
Identity: TypeAlias = "tuple[int, int]"


class Place:
    """The catalog and the folder of segments that an index was opened with.

    Parameters
    ----------
    catalog
        The catalog's file.
    """

    def __init__(self, catalog: Path) -> None:
        self._folder_path = catalog.parent
        # As str: every call looks, and a Path takes longer than the system does.
        self._catalog, self._segments = str(catalog), str(catalog.with_name("segments"))
        self.identity: Identity | None = None
        self._folder: Identity | None = None

    def find(self) -> Identity | None:
        """Return what is at the catalog's path now."""
        return _find(self._catalog)

    def remember(self, identity: Identity | None) -> None:
        """Keep what was opened first."""
        if self.identity is None:
            self.identity = identity

    def is_same(self, *, segments: bool = False) -> bool:
        """Whether the catalog, and if asked for the folder of segments, are those that were opened."""
        if self.identity is not None and _find(self._catalog) != self.identity:
            return False
        if not segments:
            return True
        folder = _find(self._segments)
        self._folder = self._folder or folder  # which is made with the first segment
        return folder in (None, self._folder)

    def check(self, *, segments: bool = False) -> None:
        """Refuse to go on in another place.

        Raises
        ------
        StorageError
            If the catalog is not there or another one is, or the same for the folder of segments.
        """
        if not self.is_same(segments=segments):
            raise replaced(self._folder_path)


def replaced(folder: Path) -> StorageError:
    """Return the error for an index that is not the one that was opened."""
    return StorageError(
        f"the index in {folder} was replaced or moved since it was opened; nothing was changed. Open it again with "
        "indexes.open(path)."
    )


def _find(path: str) -> Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (see above)
    except OSError:
        return None
    return found.st_dev, found.st_ino
