"""Files read and written so that damage is met here: atomic writes, lines of text, JSON, the cache folder.

All readers of this library use these functions, so truncated, damaged, hostile and wrongly encoded files are handled in
one place.
"""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import json
import math
import os
import shutil
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from latelier.errors import InvalidArgumentError, StorageError
from latelier.utils.checks import short

# In characters. A line is held in memory; a source without line ends, such as /dev/zero, would fill it.
LONGEST_LINE = 2**24
# The file by which the folder of an index is known.
CATALOG = "catalog.sqlite"
# The folder of its vectors, beside the catalog.
SEGMENTS = "segments"


def as_path(path: object, name: str = "path") -> Path:
    """Return an argument as a path."""
    text = os.fsdecode(path)  # type: ignore[arg-type]  # a TypeError for what is none
    if not text or "\0" in text:
        raise InvalidArgumentError(
            f"received {short(text)} as {name}; give a path that is not empty and has no null character."
        )
    return Path(text)


def read_bytes(path: Path, most: int) -> bytes:
    """Return the contents of a file of at most `most` bytes, decompressed if its name ends in ``.gz``."""
    with open_binary(path) as file:
        binary: Any = file
        if path.name.endswith(".gz"):
            binary = gzip.GzipFile(fileobj=file)
        try:
            data: bytes = binary.read(most + 1)
        except (EOFError, zlib.error) as error:
            raise StorageError(f"cannot read {path}: damaged gzip: {error}.") from error
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}.") from error
    if len(data) > most:
        raise InvalidArgumentError(f"it is longer than {most:,} bytes; split it.")
    return data


def is_file(path: Path) -> bool:
    """Whether there is a file of this name; false for a name that the system does not allow."""
    return os.path.isfile(path)  # noqa: PTH113 (Path.is_file raises for a name that is too long)


def is_folder(path: Path) -> bool:
    """Whether there is a folder of this name; false for a name that the system does not allow."""
    return os.path.isdir(path)  # noqa: PTH112 (Path.is_dir raises for a name that is too long)


def open_binary(path: str | Path) -> BinaryIO:
    """Open a file, a pipe or a device for reading bytes; raise `StorageError` if it cannot be."""
    try:
        return Path(path).open("rb")
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a null character in the name
        raise InvalidArgumentError(f"there is no file {str(path)!r}.") from error
    except OSError as error:
        # Windows reports a folder as a lack of permission.
        if isinstance(error, IsADirectoryError) or (isinstance(error, PermissionError) and Path(path).is_dir()):
            raise InvalidArgumentError(f"{str(path)!r} is a folder; give a file.") from error
        raise StorageError(f"cannot read {path}: {error}.") from error


def text_lines(file: BinaryIO, source: str, *, compressed: bool = False, encoding: str = "utf-8-sig") -> Iterator[str]:
    """Yield the lines of a text, UTF-8 or with its mark UTF-16 by default, with line ends, without a byte order mark.

    `file`: opened for reading bytes; closed at the end. `compressed`: whether it is compressed with gzip.
    """
    number = 0
    binary: Any = file
    if compressed:
        binary = gzip.GzipFile(fileobj=file)
    # With newline="", csv sees the line ends inside quotes.
    with file, io.BufferedReader(binary) as buffered:
        try:
            if encoding == "utf-8-sig" and buffered.peek(2).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                encoding = "utf-16"
            text = io.TextIOWrapper(buffered, encoding=encoding, newline="")
            while line := text.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE:
                    raise InvalidArgumentError(f"{source}:{number + 1}: longer than {LONGEST_LINE:,} characters.")
                yield line
                number += 1
        except UnicodeDecodeError as error:
            # All lines of what was decoded before this block have been returned.
            byte = f"byte {error.object[error.start]:#04x} after line {number + _line_ends(error)}"
            named = encoding.upper().removesuffix("-SIG")
            raise InvalidArgumentError(f"{source} is not {named} text ({byte}); convert it to UTF-8.") from error
        except (EOFError, zlib.error) as error:
            raise StorageError(f"cannot read {source}: damaged gzip after line {number}: {error}.") from error
        except OSError as error:
            raise StorageError(f"cannot read {source}: {error}.") from error


def _line_ends(error: UnicodeDecodeError) -> int:
    """Return the number of line ends before the faulty byte in what was to be decoded."""
    before = error.object[: error.start]
    return before.count(b"\n") + before.count(b"\r") - before.count(b"\r\n")


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; raise `InvalidArgumentError` if it is malformed, too deep or huge."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InvalidArgumentError("malformed JSON: it is nested too deeply.") from error
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(f"malformed JSON: {error.msg}: {_place(error)}.") from error
    except ValueError as error:  # an integer with more digits than Python converts
        raise InvalidArgumentError("malformed JSON: it holds an integer with too many digits.") from error


def json_items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield keys and values of dicts at any depth, without recursion: a hostile file may be nested very deeply."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield from each.items()
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _place(error: json.JSONDecodeError) -> str:
    """Return the column of a fault, with the line only if the text has several: that of a record has its own number."""
    text = error.doc.rstrip()
    if "\n" in text:
        return f"line {error.lineno}, column {error.colno}"
    return f"column {min(error.pos, len(text)) + 1}"  # not behind the line end


def number_or_text(text: str) -> int | float | str:
    """Return the number that a text spells in JSON, or the text itself (``007`` is not a JSON number)."""
    try:
        value = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and not (isinstance(value, float) and math.isinf(value)):
        return value
    return text


def write_bytes(path: str | os.PathLike[str], contents: bytes) -> None:
    """Write a file; an existing one is replaced, and keeps its permissions.

    A symbolic link stays: what it points to is written. A pipe or a device gets the contents. Raises `StorageError` if
    the file cannot be written.
    """
    file = as_path(path)
    try:
        # /dev/stdout may be a regular file, but a new one would not be what is open.
        if str(file).startswith(("/dev/", "/proc/")) or (file.exists() and not file.is_file()):
            file.write_bytes(contents)
        else:
            with replaced(file) as new:
                new.write_bytes(contents)
    except (OSError, ValueError) as error:  # ValueError: a name without a last part
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"could not write {file}: {reason}; an existing file is unchanged.") from error


@contextmanager
def replaced(file: Path) -> Iterator[Path]:
    """Yield the path of a file to write, which takes the place of a regular or missing one after the ``with`` block.

    It keeps its permissions, and a link to it stays; after any error, also in the block, it is unchanged.
    """
    mode = _mode(file)
    old = Path(os.path.realpath(file))
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


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `folder` after the ``with`` block: others find a whole one or none.

    `folder`: does not exist yet. Whoever writes a file into it also syncs it. Raises `OSError` if the file system
    reports an error; nothing is left behind then, unless the process is killed.
    """
    unfinished = folder.with_name(f".{folder.name}")
    try:
        unfinished.mkdir()
        yield unfinished
        sync_folder(unfinished)
        unfinished.rename(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk; on Windows, where this is neither possible nor needed, do nothing."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mode(file: Path) -> int | None:
    """Return the type and the permissions of what a path leads to; None if there is nothing."""
    try:
        return file.stat().st_mode
    except FileNotFoundError:
        return None


def cache_folder() -> Path:
    """Return the folder for files that can be made again: ``LATELIER_CACHE``, or the platform's usual one.

    Returns: ``latelier`` in ``%LOCALAPPDATA%`` on Windows, ``~/Library/Caches/latelier`` on macOS, elsewhere
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


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file in UTF-8, compressed if its name ends in ``.gz``; an existing one is replaced."""
    try:
        contents = "".join(lines).encode()
    except UnicodeEncodeError as error:  # a lone surrogate in an id
        raise StorageError(f"could not write {path}: {error}.") from error
    # Without the time, so that the same lines give the same file.
    write_bytes(path, gzip.compress(contents, mtime=0) if path.suffix == ".gz" else contents)
