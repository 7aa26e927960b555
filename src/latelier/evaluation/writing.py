"""Writing the text files of runs and qrels, plain or gzipped."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

from latelier.errors import StorageError
from latelier.utils.writing import write_bytes

__all__ = ["write_lines"]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    r"""Write a text file in UTF-8; it is compressed if its name ends in ``.gz``, as its readers expect.

    Parameters
    ----------
    path
        The file; an existing one is replaced.
    lines
        Its lines, with their line ends.

    Raises
    ------
    StorageError
        If the file cannot be written; a file that can be replaced is unchanged.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "note.txt.gz"
    >>> write_lines(path, ["fig\n"])
    >>> gzip.decompress(path.read_bytes())
    b'fig\n'
    """
    try:
        contents = "".join(lines).encode()
    except UnicodeEncodeError as error:  # a lone surrogate in an id
        raise StorageError(f"could not write {path}: {error}.") from error
    # Without the time, so that the same lines give the same file.
    write_bytes(path, gzip.compress(contents, mtime=0) if path.suffix == ".gz" else contents)
