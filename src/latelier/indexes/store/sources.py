"""Where documents came from: sources, their files, and the file and the place that each document was read from.

These rows are written in the transaction that stores the documents, one for each document and one for each file that
has changed.

``source``
    The folders and files that the index was filled from. The ``key`` stays if the source moves.
``file``
    What was seen of each file when it was read last, and of those that are left out why.
``origin``
    Of each document that a `Retriever` has stored, by the number of its row: a hash of what it was made of, so that an
    unchanged one is known without reading it; and its file, empty for one that a user gave, which nobody else replaces
    or removes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from latelier.indexes.store.catalog import insert_rows, read_rows
from latelier.indexes.store.integrity import check_row
from latelier.utils.values import Id


class Source(NamedTuple):
    """A folder or a file that an index is filled from.

    `root`: its absolute path, as JSON, which also holds what is no Unicode; `system`: what it is there, its file system
    and inode; `options`: how its files were read last, as JSON.
    """

    key: str
    root: str
    system: str
    options: str


class FileState(NamedTuple):
    """What was seen of a file when it was read last.

    `size`, `modified`, `changed`, `inode`: its status, times in ns; `hash`: of its bytes, empty if it has to be read
    again; `options`: those it was read with; `documents`: how many of it the index holds, unless somebody has changed
    them; `seen`: when its status was taken (ns); `place`: the mount point, and the identities of the folders down to
    it; `state`: why it is not stored whole, a `SkipReason`, or empty; `skipped`: what was said of it when it was left
    out or read in part, as a JSON list of pairs of a `SkipReason` and a message, or empty.
    """

    source: str
    name: str
    size: int = 0
    modified: int = 0
    changed: int = 0
    inode: int = 0
    hash: str = ""
    options: str = ""
    documents: int = 0
    seen: int = 0
    place: str = ""
    state: str = ""
    skipped: str = ""


class Origin(NamedTuple):
    """Where a document came from: its file, its place there, and a hash of what it was made of.

    `source` and `file` are empty for a document that a user gave. `missing`: whether the file was read whole without it
    since.
    """

    source: str = ""
    file: str = ""
    place: str = ""
    hash: str = ""
    missing: bool = False


class Seen(NamedTuple):
    """A document as one look at the index found it: the number of its row, which every write of it changes."""

    number: int
    origin: Origin


class Changes(NamedTuple):
    """What a commit changes beside the documents that it stores.

    `sources`, `files`: in place of those of the same names; `forgotten`: files that are gone, by source and name;
    `removed`: documents, as they were seen; `moved`: where stored documents are from by now.
    """

    sources: Sequence[Source] = ()
    files: Sequence[FileState] = ()
    forgotten: Sequence[tuple[str, str]] = ()
    removed: Mapping[Id, Seen] = {}
    moved: Mapping[Id, Seen] = {}


_UNKNOWN = Origin()


def unseen(ids: Sequence[Id], seen: Sequence[int | None], numbers: Mapping[Id, int]) -> list[int]:
    """Return the positions of documents whose ids are of other rows by now than their writer has seen.

    This is the rule that keeps what others have written: a write names the row that it has read, and replaces no other.
    A row that was removed meanwhile is no reason against storing the document again.
    """
    return [i for i, (id, number) in enumerate(zip(ids, seen, strict=True)) if numbers.get(id, number) != number]


def unsettled(changes: Changes) -> Changes:
    """Return what has to be written before documents where they and their files are not written in one commit.

    After a crash in between, the files have to be read again.
    """
    return Changes(sources=changes.sources, files=[file._replace(hash="") for file in changes.files])


def insert_origins(connection: sqlite3.Connection, numbers: Iterable[int], origins: Iterable[Origin | None]) -> None:
    """Insert where documents came from, by the numbers of their rows; nothing for None."""
    pairs = zip(numbers, origins, strict=True)
    insert_rows(connection, "origin", [(number, *origin[:4], int(origin[4])) for number, origin in pairs if origin])


def write(connection: sqlite3.Connection, changes: Changes, found: Mapping[Id, Seen]) -> None:
    """Write all changes but the removals; `found`: the documents of `moved` as they are by now."""
    insert_rows(connection, "source", changes.sources)
    insert_rows(connection, "file", changes.files)
    connection.executemany("DELETE FROM file WHERE source = ? AND name = ?", changes.forgotten)
    moved = [seen for id, seen in changes.moved.items() if id in found and found[id].number == seen.number]
    insert_origins(connection, [seen.number for seen in moved], [seen.origin for seen in moved])


def read_sources(connection: sqlite3.Connection) -> list[Source]:
    """Return all sources."""
    return [Source(*row) for row in read_rows(connection, "source")]


def read_files(connection: sqlite3.Connection, source: str) -> dict[str, FileState]:
    """Return the files of a source by their names."""
    return {row[1]: FileState(*row) for row in read_rows(connection, "file", "WHERE source = ?", (source,))}


def count_documents(connection: sqlite3.Connection, source: str) -> dict[str, int]:
    """Return how many documents there are of each file of a source, without those that are missing in it."""
    statement = "SELECT file, count(*) FROM origin WHERE source = ? AND missing = 0 GROUP BY file"
    return dict(connection.execute(statement, (source,)).fetchall())


def documents_of(connection: sqlite3.Connection, source: str, file: str | None = None) -> dict[Id, Seen]:
    """Return the documents of a file, or of all files of a source, in the order of their insertion."""
    condition = "origin.source = ?" if file is None else "origin.source = ? AND origin.file = ?"
    parameters = (source,) if file is None else (source, file)
    return _seen(connection, f"JOIN origin USING (number) WHERE {condition} ORDER BY number", parameters)


def missing_documents(connection: sqlite3.Connection, source: str) -> dict[Id, Seen]:
    """Return the documents of a source that are missing in their files."""
    return _seen(connection, "JOIN origin USING (number) WHERE origin.source = ? AND missing = 1", (source,))


def find_seen(connection: sqlite3.Connection, ids: Sequence[Id]) -> dict[Id, Seen]:
    """Return those of some ids that documents have, with their rows."""
    found: dict[Id, Seen] = {}
    for first in range(0, len(ids), _CHUNK):
        chunk = ids[first : first + _CHUNK]
        found |= _seen(
            connection, f"LEFT JOIN origin USING (number) WHERE id IN ({', '.join('?' * len(chunk))})", chunk
        )
    return found


_CHUNK = 500  # ids in one statement


def _seen(connection: sqlite3.Connection, tail: str, parameters: Sequence[Id]) -> dict[Id, Seen]:
    statement = f"SELECT id, document.number, source, file, place, hash, missing, origin.checksum FROM document {tail}"
    found = {}
    for id, number, *values, checksum in connection.execute(statement, parameters):
        if checksum is None:
            found[id] = Seen(number, _UNKNOWN)
        else:
            check_row("origin", (number, *values, checksum))
            source, file, place, content, missing = values
            found[id] = Seen(number, Origin(source, file, place, content, bool(missing)))
    return found
