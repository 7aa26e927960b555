"""Write a file as a whole: where a file can be replaced, the old one stays until the new contents are on disk."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from latelier.errors import InvalidArgumentError, StorageError
from latelier.utils.describing import describe
from latelier.utils.reading import as_path

__all__ = ["replaced", "write_bytes"]


def write_bytes(path: str | os.PathLike[str], contents: bytes) -> None:
    """Write a file; an existing one is replaced, and keeps its permissions.

    Parameters
    ----------
    path
        The file. A symbolic link stays: what it points to is written. A pipe or a device gets the contents, and so does
        a file that cannot be replaced, since it is mounted by itself or its folder may not be written.
    contents
        All that it is to hold.

    Raises
    ------
    InvalidArgumentError
        If `path` is not a path.
    StorageError
        If the file cannot be written; a file that can be replaced is unchanged.

    Examples
    --------
    >>> write_bytes("note.txt", b"fig")
    >>> open("note.txt").read()
    'fig'
    """
    file = as_path(path)
    if not file.name or "\0" in str(file):
        raise InvalidArgumentError(f"received {describe(path)} as path; give the name of a file.")
    mode = None
    try:
        mode = _mode(file)
        if mode is None or (stat.S_ISREG(mode) and not _is_descriptor(file)):
            with replaced(file) as new:
                new.write_bytes(contents)
            return
    except OSError as error:
        # A file that is mounted by itself, or in a folder that may not be written, is no file that can be replaced.
        if mode is None or error.errno not in (errno.EBUSY, errno.EPERM, errno.EACCES, errno.EROFS):
            reason = error.strerror or error
            raise StorageError(f"could not write {file}: {reason}; an existing file is unchanged.") from error
    try:
        file.write_bytes(contents)
    except OSError as error:
        raise StorageError(f"could not write {file}: {error.strerror or error}.") from error


@contextmanager
def replaced(file: Path) -> Iterator[Path]:
    """Yield the path of a file to write, which takes the place of a regular one after the ``with`` block.

    Parameters
    ----------
    file
        What is replaced; it may be missing. The new file gets its permissions, and a symbolic link to it stays.

    Raises
    ------
    OSError
        If the file system reports an error, or `file` is a pipe, a device or a folder; as after an error in the block,
        it is unchanged.
    ValueError
        If the path holds a surrogate or a null character.
    """
    mode, old = _mode(file), Path(os.path.realpath(file))
    if mode is not None and not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    new = old.with_name(f".{uuid4().hex}.tmp")  # a name of its own: that of the file may have no room for more
    try:
        yield new
        with new.open("rb+") as written:
            os.fsync(written.fileno())
        if mode is not None:
            new.chmod(stat.S_IMODE(mode))
        new.replace(old)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def _mode(file: Path) -> int | None:
    """Return the type and the permissions of what a path leads to; None if there is nothing."""
    try:
        return file.stat().st_mode
    except FileNotFoundError:
        return None


def _is_descriptor(file: Path) -> bool:
    """Whether a path leads to an open descriptor, as /dev/stdout does: a new file would not be what is open."""
    while True:
        folder = os.path.realpath(file.parent)
        if folder == "/dev/fd" or folder.startswith("/proc/"):
            return True
        if not file.is_symlink():
            return False
        file = file.parent / file.readlink()
