"""What is checked of the folder of an index, and why.

A folder may come from a stranger, and a disk may change bits. What is promised, and what keeps each promise:

* No code of the folder runs. Arrays are read by their dtype and shape, never unpickled (`check_description`); a catalog
  may hold only the tables that this library makes, so no view and no trigger (`check_tables`). Which models an index
  may name is decided in `latelier.models.untrusted`.
* Nothing outside of the folder is touched. Stored names must have the form that this library gives them, and no file
  may be a link, a pipe or a device (`own_file`, `check_side_files`).
* No crash. Kernels follow row ids and offsets without checking them, so these are checked when a segment is opened
  (`check_segment`), from a copy in memory, which cannot change afterwards.
* Never other results in silence. SQLite notices a damaged page, but not a changed bit of a text, a number or an id, so
  each row has a checksum, compared whenever it is read (`check_row`). Files of arrays have one too. A search does not
  compare it, since that takes as long as reading the whole file; `verify` does, and so does a merge before it copies.

Checksums find accidents. Whoever writes an index can also compute them, and decides what its documents say.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import stat
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from latelier.errors import CorruptedIndexError
from latelier.utils.files import CATALOG

# The columns that a row's checksum covers. Those of `document` and `content` depend on the metadata, see `rows`.
COLUMNS = {
    "setting": ("name", "value"),
    "user_setting": ("name", "value"),
    "segment": ("name", "first", "last", "rows", "documents", "removed", "tokens", "files", "words"),
    "tombstone": ("segment", "number"),
    "passage": ("number", "start", "stop", "title", "metadata"),
    "field": ("name", "spelling", "column"),
    "source": ("key", "root", "system", "options"),
    "file": (
        *("source", "name", "size", "modified", "changed", "inode", "hash", "options", "documents", "seen"),
        *("place", "state", "skipped"),
    ),
    "origin": ("number", "source", "file", "place", "hash", "missing"),
}
# The type is part of the checksum, so that 1 and "1" differ. All other types, which no index stores, count as "x".
_TYPES = {str: "\x1fs", int: "\x1fi", float: "\x1ff", type(None): "\x1fn"}
# The last bytes of a journal that names a super-journal: https://www.sqlite.org/fileformat.html#the_rollback_journal
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
# Names of folders and files; a folder that is still being written has a dot before its name.
_SEGMENT_NAME = re.compile(r"\.?[0-9a-f]{16}")
_FILE_NAME = re.compile(r"[a-z_]{1,40}\.npy")
# Dtypes of the arrays that an index stores.
_DTYPES = {"<f4", "<f2", "<f8", "<i8", "<i4", "<u4", "<u2", "|u1", "|i1"}
# Larger values are damage. Writes refuse larger dims.
MAX_DIM = 1 << 20
_MAX_COUNT = 1 << 62
_MAX_HEADER_BYTES = 4096
MAX_DIMENSIONS = 4
_MAX_SIZE = 1 << 48
# The statement of the table `document`. The group leaves out the columns of metadata keys, and the closing parenthesis.
_FIELD_COLUMNS = re.compile(r"(CREATE TABLE document \(.*?)(?:, f\d+)*\)")


def damaged(reason: str) -> CorruptedIndexError:
    """Return the error for a catalog with values that this library never writes."""
    return CorruptedIndexError(
        f"the catalog of this index is damaged: {reason}. Restore {CATALOG} from a backup or rebuild the index."
    )


# The folder.


def check_side_files(folder: Path) -> None:
    """Reject files beside the catalog that would make SQLite touch other files, or wait for ever on a pipe."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        file = folder / f"{CATALOG}{suffix}"
        with suppress(FileNotFoundError):  # another process may delete a file at any moment
            mode = file.lstat().st_mode
            if not stat.S_ISREG(mode):
                if stat.S_ISLNK(mode):
                    kind = "a link, but an index must hold its own files"
                else:
                    kind = "not a regular file"
                raise damaged(f"{file} is {kind}")
            # SQLite deletes the file that such a journal names.
            if suffix == "-journal" and file.read_bytes().endswith(_SUPER_JOURNAL):
                raise damaged(f"{file} is not a journal that an index writes")


def is_segment_name(name: object) -> bool:
    """Whether a folder of segments may hold a folder of this name; it has a dot before it until it is complete."""
    return isinstance(name, str) and _SEGMENT_NAME.fullmatch(name) is not None


def own_file(segments: Path, name: object, file: str) -> Path:
    """Return the path of a file, given the folder of segments and the names of its folder and itself in the catalog."""
    if not is_segment_name(name) or not _FILE_NAME.fullmatch(file):
        raise damaged(f"it names the file {file!r:.60} of the segment {name!r:.60}, which no index has")
    path = segments / str(name) / file
    for link in (segments, path.parent, path):
        if link.is_symlink():
            raise CorruptedIndexError(f"{link} is a link, but an index must hold its own files")
    return path


# The catalog.


def check_tables(connection: sqlite3.Connection, tables: Collection[str]) -> None:
    """Check that a catalog has the tables with these statements and no more."""
    found = set()
    for kind, statement in connection.execute("SELECT type, sql FROM sqlite_master"):
        if (kind, statement) != ("index", None):  # made by SQLite for a primary key or a unique column
            whole = _FIELD_COLUMNS.fullmatch(str(statement))
            found.add(f"{whole[1]})" if whole else statement)
    if found != set(tables):
        raise damaged("its tables are not those of an index")


def check_counters(settings: Mapping[str, Any]) -> None:
    """Check the counters of a catalog, and the dimension of its vectors."""
    for name, least, most in (("generation", 0, _MAX_COUNT), ("next_number", 0, _MAX_COUNT), ("dim", 1, MAX_DIM + 1)):
        value = settings.get(name)
        if (type(value) is not int or not least <= value < most) and (name != "dim" or value is not None):
            raise damaged(f"its {name} is {value!r}")


def check_segment_row(row: Any, first: int) -> None:
    """Check a `SegmentRow` whose row ids may begin with `first`."""
    is_possible = isinstance(row.name, str) and set(map(type, row[1:7])) == {int} and isinstance(row.files, dict)
    if is_possible:
        most = min(row.last - row.first + 1, row.tokens)
        is_possible = first <= row.first and 0 <= row.removed < row.rows <= most and row.last < _MAX_COUNT
        is_possible = is_possible and 0 < row.documents <= row.rows - row.removed
    if not is_possible:
        raise damaged(f"the row of its segment {row.name!r:.60} has values that no index has")


def decode_json(value: object, what: str) -> Any:
    """Return the value of a column that holds JSON; `what` names the column in an error."""
    try:
        return json.loads(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError) as error:
        raise damaged(f"its {what} is not JSON") from error


def row_checksum(table: str, values: Sequence[Any]) -> int:
    """Return the CRC-32 of the name of a table and the values of a row."""
    return zlib.crc32("".join([table, *spell(values)]).encode())


def checksums(table: str, spelled: Sequence[Sequence[str]]) -> list[int]:
    """Return the `row_checksum` of each row of some columns, given as `spell` returns them."""
    lines = map("".join, zip(repeat(table), *spelled, strict=False))
    return list(map(zlib.crc32, map(str.encode, lines)))


def spell(values: Iterable[Any]) -> list[str]:
    """Return what a checksum covers of some values: their types, and what they are as a text."""
    # Not the repr of a text, since that depends on the system and the version of Python.
    return [_TYPES.get(type(value), "\x1fx") + str(value) for value in values]


def check_row(table: str, row: Sequence[Any]) -> Sequence[Any]:
    """Return the values of a row without their checksum, the last one, which must match them."""
    if row[-1] == row_checksum(table, row[:-1]):
        return row[:-1]
    raise CorruptedIndexError(
        f"the catalog of this index is damaged: the row {row[0]!r:.60} of its table {table!r} does not match its "
        f"checksum. verify() lists all damage; restore {CATALOG} from a backup or rebuild the index."
    )


# Files of arrays.


def check_description(written: Any, path: Path) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the dtype and the shape of the array in a file, as the catalog gives them, if they fit its size."""
    if not path.is_file():
        raise CorruptedIndexError("it is missing")
    size = path.stat().st_size
    try:
        expected = written["bytes"]
        name = written["dtype"]
        shape = tuple(written["shape"])
    except (KeyError, TypeError):
        expected = None
        name = None
        shape = ()
    if type(expected) is not int or size != expected:
        raise CorruptedIndexError(f"it has {size} bytes, but {expected} were written")
    # Bounds within which numpy can make an array, even if one dimension is 0.
    is_shape = len(shape) <= MAX_DIMENSIONS and set(map(type, shape)) <= {int} and min(shape, default=0) >= 0
    if isinstance(name, str) and name in _DTYPES and is_shape and math.prod(filter(None, shape)) < _MAX_SIZE:
        dtype = np.dtype(name)
        if 0 <= size - math.prod(shape) * dtype.itemsize <= _MAX_HEADER_BYTES:
            return dtype, shape
    raise CorruptedIndexError(f"it has {size} bytes; the catalog gives it the dtype {name!r:.60}, shape {shape!r:.60}")


def check_segment(
    arrays: Mapping[str, np.ndarray], row: Any, token_arrays: Mapping[str, tuple[np.dtype, tuple[int, ...]]]
) -> None:
    """Check that the arrays of a segment fit together and fit its `SegmentRow`, so that kernels may rely on them.

    Row ids and offsets ascend and stay inside the arrays, each row has a token, the passages of a document follow each
    other, and each of `token_arrays`, given as dtype and shape per token, has an entry for each token. The values in
    these entries are not checked.
    """
    expected = {name: (dtype, (row.tokens, *shape)) for name, (dtype, shape) in token_arrays.items()}
    expected["documents"] = np.dtype("int64"), (3, row.rows + 1)
    expected["ids"] = np.dtype("uint8"), (arrays["ids"].shape[:1] if "ids" in arrays else ())
    if "passages" in arrays:
        expected["passages"] = np.dtype("int32"), (3, row.rows)
    found = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    if found != expected:
        raise CorruptedIndexError(f"it has the arrays {found}, not {expected}")
    row_ids, offsets, id_offsets = arrays["documents"]
    # Neighbours are compared, as differences could overflow.
    if (row_ids[0], row_ids[-2]) != (row.first, row.last) or (row_ids[1:-1] <= row_ids[:-2]).any():
        raise CorruptedIndexError("the row ids of its documents do not ascend from the first to the last")
    if "passages" in arrays:
        positions = arrays["passages"][0].astype("int64")
        follow = (positions[1:] == positions[:-1] + 1) & (row_ids[1:-1] == row_ids[:-2] + 1)
        if positions[0] != 0 or not (follow | (positions[1:] == 0)).all():
            raise CorruptedIndexError("the passages of its documents do not follow each other")
    for ends, size in ((offsets, row.tokens), (id_offsets, len(arrays["ids"]))):
        if ends[0] != 0 or ends[-1] != size or (ends[1:] <= ends[:-1]).any():
            raise CorruptedIndexError(f"the offsets of its documents do not divide {size} tokens or bytes of ids")
