"""Write a file as a whole: what stood there before stays until the new contents are on disk."""

from __future__ import annotations

import os
from contextlib import suppress
from uuid import uuid4

from latelier.errors import InvalidArgumentError, StorageError
from latelier.utils.describing import describe
from latelier.utils.reading import as_path

__all__ = ["write_bytes"]


def write_bytes(path: str | os.PathLike[str], contents: bytes) -> None:
    """Write a file; an existing one is replaced.

    Parameters
    ----------
    path
        The file.
    contents
        All that it is to hold.

    Raises
    ------
    InvalidArgumentError
        If `path` is not a path.
    StorageError
        If the file cannot be written; an existing file is unchanged.

    Examples
    --------
    >>> write_bytes("note.txt", b"fig")
    >>> open("note.txt").read()
    'fig'
    """
    file = as_path(path)
    if not file.name or "\0" in str(file):
        raise InvalidArgumentError(f"received {describe(path)} as path; give the name of a file.")
    temporary = file.with_name(f".{uuid4().hex}.tmp")  # a name of its own: that of the file may have no room for more
    try:
        with temporary.open("xb") as writer:
            writer.write(contents)
            writer.flush()
            os.fsync(writer.fileno())
        temporary.replace(file)
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"could not write {file}: {reason}; an existing file is unchanged.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
