"""How an index is brought up to date with a folder or a file.

Four rules, each in one place: a write replaces the row that it has seen and no other (`Index.write`); what is known of
a file is written by the commit that stores the last of its documents (`Synchronisation.changes`); a file is gone if the
same place is looked at without it (`Place.confirms`, `_absent`); and it is unchanged if its status, the options, and
the number of its documents in the index are (`_is_unchanged`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.indexes import Id, Index
from latelier.indexes.packing import GivenDocuments
from latelier.indexes.store.sources import Changes, FileState, Origin, Seen, Source
from latelier.reading.folders import DocumentFolder, Place, spelled
from latelier.reading.records import FileDocuments, InputDocument, Skipped, SkipReason
from latelier.retrieve.preparation import Write
from latelier.utils.checks import short
from latelier.utils.misc import warn_caller


class Synchronised(NamedTuple):
    """How many documents of a source were new, changed, renamed, removed, unchanged and kept; what was skipped.

    `kept`: documents of which nobody knows whether their source is gone; `skipped` says why.

    Examples
    --------
    >>> print(Synchronised(new=2, changed=1, renamed=0, removed=0, unchanged=40, kept=0, skipped=[]))
    2 new, 1 changed, 40 unchanged
    """

    new: int
    changed: int
    renamed: int
    removed: int
    unchanged: int
    kept: int
    skipped: list[Skipped]

    def __str__(self) -> str:
        """Return the numbers that are not zero, or that nothing has changed."""
        names = ("new", "changed", "renamed", "removed", "unchanged", "kept")
        named = {name: getattr(self, name) for name in names}
        return ", ".join(f"{count:,} {name}" for name, count in named.items() if count) or "nothing to do"


def changed_last(index: Index, count: int) -> dict[Id, str]:
    """Return a document of each of the files that were changed last, and when (ISO 8601); none of no folder."""
    files = [file for source in index.origins.sources() for file in index.origins.files(source.key).values()]
    newest = sorted((file for file in files if file.documents), key=lambda file: -file.modified)[:count]
    found = {}
    for file in newest:
        for id in list(index.origins.documents(file.source, file.name))[:1]:
            when = datetime.fromtimestamp(file.modified // 10**9, timezone.utc)
            found[id] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def skipped_files(index: Index) -> dict[str, list[Skipped]]:
    """Return what the last runs have said of files that were left out or read in part, for each source by its path."""
    found = {}
    for source in index.origins.sources():
        states = sorted(index.origins.files(source.key).values(), key=lambda state: state.name)
        root = json.loads(source.root)
        found[root] = [
            Skipped(state.name or Path(root).name, message, reason)
            for state in states
            for reason, message in _told(state)
        ]
    return found


def _told(state: FileState) -> list[tuple[SkipReason, str]]:
    """Return what was said of a file that was left out or read in part."""
    return [(SkipReason(reason), message) for reason, message in json.loads(state.skipped or "[]")]


def _as_told(entries: Iterable[tuple[SkipReason, str]]) -> str:
    """Return what is said of a file as its state holds it."""
    pairs = [(reason.value, message) for reason, message in dict.fromkeys(entries)]
    return json.dumps(pairs) if pairs else ""


# The coarsest time of change of a file system, FAT's, in nanoseconds.
_COARSEST = 2 * 10**9
# Files that were left out for another reason than these were not read whole.
_READ_WHOLE = frozenset({SkipReason.EMPTY, SkipReason.UNREAD, SkipReason.RECORDS, SkipReason.ID})
# How the place of a document without an id of its own begins.
_LINE = "#"
# The state of a file that was not found by the last run, and is kept for one run.
_MISSING = "missing"
# The state of a file or folder that was not read, of which the index holds no document.
_NOT_READ = "not read"
# What the listing of each run says anew.
_OF_A_RUN = frozenset({SkipReason.EXCLUDED, SkipReason.KEPT})
# Documents that are stored under new ids in one commit.
_RENAMED_AT_ONCE = 512
_NOTHING = GivenDocuments([], [])


def _is_unchanged(known: FileState, now: FileState, count: int) -> bool:
    """Whether a file has nothing to be read: neither it, the options, nor its documents in the index have changed.

    `now`: what it is, with a hash if its status alone does not tell; `count`: of its documents in the index.
    """
    if not known.hash or known.options != now.options or known.documents != count:
        return False
    if now.hash:
        return known.hash == now.hash
    # A change so close to the last look may have the same time.
    is_same = (known.size, known.modified, known.changed, known.inode) == (
        *(now.size, now.modified),
        *(now.changed, now.inode),
    )
    return is_same and max(known.modified, known.changed) + _COARSEST < known.seen


def find_source(sources: Iterable[Source], path: Path) -> Source | None:
    """Return the source with a path, or the one whose path leads to the same folder or file now."""
    root = spelled(path)
    by_root = {source.root: source for source in sources}
    if root in by_root:
        return by_root[root]
    for source in by_root.values():
        try:
            if Path(json.loads(source.root)).samefile(path):
                return source
        except OSError:
            continue
    return None


def _new_key(sources: list[Source], root: str) -> str:
    """Return a key for a path that no source has: the same one for two runs at once, and another after a move."""
    keys = {source.key for source in sources}
    candidates = (hashlib.blake2b(f"{i} {root}".encode(), digest_size=8).hexdigest() for i in itertools.count())
    return next(key for key in candidates if key not in keys)


class _File:
    """A file that is read in this run: what is known of it, and what was found in it so far."""

    def __init__(self, now: FileState, rows: Mapping[Id, Seen]) -> None:
        self.now = now
        self.rows = rows  # its documents in the index before
        self.held: set[Id] = set()
        self.count = 0  # of documents in it
        self.lines = 0  # of these, new ones without an id
        self.waiting = 0  # documents that were read, and neither stored nor left out
        self.is_read = False
        self.is_begun = False  # whether the index knows that it is being read
        self.is_whole = False
        self.is_less = False  # whether it is unchanged, and somebody has removed documents of it from the index
        self.restored = 0  # of these, those that are stored again
        self.has_own = False  # whether the user has stored documents alike
        self.refused: dict[tuple[str, str], list[Id]] = {}
        self.moved: dict[Id, Seen] = {}
        self.by_hash: dict[str, list[Id]] = {}
        for id, row in rows.items():
            if row.origin.place.startswith(_LINE):
                self.by_hash.setdefault(row.origin.hash, []).append(id)

    def take(self, hash: str) -> Id | None:
        """Return a document without an id of its own that the index has of this file, with the same content."""
        ids = self.by_hash.get(hash)
        if ids:
            return ids.pop(0)
        return None


class Synchronisation:
    """One run that brings an index up to date with a source.

    `read` yields what is new or changed. Of each chunk the writer lets `choose` say what is stored; each commit takes
    `changes` with it, and is followed by `stored`. `finish` removes what is gone. An interrupted run has nothing to
    undo: what the index knows of a file is true after each commit.
    """

    replace = None

    def __init__(
        self, index: Index, documents: FileDocuments, path: Path, moved_from: str | os.PathLike[str] | None
    ) -> None:
        self._index = index
        self._documents = documents
        self._folder = documents if isinstance(documents, DocumentFolder) else None
        self._path = path
        sources = index.origins.sources()
        found = find_source(sources, path)
        known = found or Source(_new_key(sources, spelled(path)), spelled(path), "", "")
        if moved_from is not None:
            known = _moved(sources, Path(moved_from), path)
        self._is_moved = moved_from is not None
        system = self._folder.place("").folders[-1] if self._folder is not None else ""
        self._source = Source(known.key, spelled(path), system, documents.options)
        self._is_stored = self._source == found
        states = index.origins.files(known.key)
        self._files = {name: state for name, state in states.items() if state.state != _NOT_READ}
        self._left_out = {name: state for name, state in states.items() if state.state == _NOT_READ}
        self._told_before = {(name, message) for name, state in states.items() for _, message in _told(state)}
        self._kept: dict[str, str] = {}  # files whose documents are kept, and why
        self._looked_at = 0  # files
        self._several: set[str] = set()  # how the report names several of these at once
        self._counts = index.origins.counts(known.key)
        self._others = {source.key: json.loads(source.root) for source in sources if source.key != known.key}
        self._missing = index.origins.missing(known.key)
        self._names = [] if self._folder is None else [self._folder.name(file) for file in self._folder.files]
        self._absent = self._find_absent()
        self._unchanged: set[str] = set()
        self._renamed: set[str] = set()
        self._read: dict[str, _File] = {}
        self._yielded: dict[Id, str] = {}  # the file of each document that was read
        self._files_ready: dict[str, FileState] = {}
        self._moved: dict[Id, Seen] = {}
        self._kinds: Counter[str] = Counter()

    # Reading.

    def read(self, *, remove: bool) -> Iterator[Write]:
        """Yield the documents of what is new or changed; files that have another name only are renamed first."""
        folder = self._folder
        if folder is None:
            if not self._passes(self._path, ""):
                yield from self._read_file("", self._documents)
            return
        if remove:
            self._rename(folder)
        for number, (path, name) in enumerate(zip(folder.files, self._names, strict=True), start=1):
            self._looked_at = number
            if not self._passes(path, name):
                yield from self._read_file(name, folder.read(path))

    def share(self) -> float | None:
        """Return which part of the source was read: of the files of a folder, of the bytes of a file."""
        if self._folder is None:
            return self._documents.share()
        return self._looked_at / len(self._names)

    def _passes(self, path: Path, name: str) -> bool:
        """Whether a file is unchanged; if not, it is one that is read."""
        known = self._files.get(name) or FileState(self._source.key, name)
        count = self._counts.get(name, 0)
        now = self._look(path, name)
        is_unchanged = now.seen > 0 and _is_unchanged(known, now, count)
        if not is_unchanged and now.seen > 0:
            now = now._replace(hash=_hash(path))
            is_unchanged = now.hash != "" and _is_unchanged(known, now, count)
        if not is_unchanged:
            rows: dict[Id, Seen] = {}
            if name in self._files:
                rows = self._index.origins.documents(self._source.key, name)
            self._read[name] = _File(now, rows)
            is_same = known.hash != "" and (known.hash, known.options) == (now.hash, now.options)
            self._read[name].is_less = is_same and not known.state and count < known.documents
            return False
        self._unchanged.add(name)
        if name not in self._renamed:
            self._kinds["unchanged"] += count
        state = known.state if known.state != _MISSING else ""
        told = _as_told(each for each in _told(known) if each[0] not in _OF_A_RUN)
        same = known._replace(place=now.place, state=state, skipped=told)
        if now.hash:
            same = now._replace(documents=known.documents, state=state, skipped=told)
        if same != known:
            self._files_ready[name] = same
        if state == SkipReason.TIME:
            for reason, message in _told(known):
                if reason is SkipReason.TIME:
                    self._skip(name, message, reason)
        return True

    def _look(self, path: Path, name: str) -> FileState:
        """Return the status of a file, without its hash; `seen` is 0 if it cannot be looked at."""
        place = ""
        if self._folder is not None:
            place = json.dumps(self._folder.place(name))
        now = time.time_ns()
        try:
            status = path.stat()
        except OSError:  # an error when it is read
            return FileState(self._source.key, name, place=place, options=self._source.options)
        return FileState(
            self._source.key,
            name,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
            options=self._source.options,
            seen=now,
            place=place,
        )

    def _read_file(self, name: str, documents: Iterable[InputDocument]) -> Iterator[Write]:
        file = self._read[name]
        skipped = self._documents.skipped
        begin = len(skipped)
        key = self._source.key
        for number, document in enumerate(documents):
            file.count += 1
            if document.id is not None and self._folder is not None:
                other = self._yielded.setdefault(document.id, name)
                if other != name:
                    file.refused.setdefault((key, other), []).append(document.id)
                    continue
            elif document.id is not None:
                self._yielded[document.id] = name
            place = str(number) if document.id is not None else f"{_LINE}{number}"
            file.waiting += 1
            yield Write(document, None, Origin(key, name, place))
        file.is_read = True
        told = [each for each in skipped[begin:] if self._folder is None or each.path == name]
        reasons = {each.reason for each in told}
        file.now = file.now._replace(skipped=_as_told(self._of_file(told)))
        file.is_whole = reasons <= _READ_WHOLE
        if SkipReason.TIME in reasons:
            file.now = file.now._replace(state=SkipReason.TIME.value)
        elif file.is_whole:
            file.now = file.now._replace(documents=file.count)
        else:
            file.now = file.now._replace(hash="", state=SkipReason.UNREADABLE.value)
        if not self._is_as_before(name, file.now):
            file.now = file.now._replace(hash="")
        if not file.waiting:
            self._complete(name)

    def _is_as_before(self, name: str, before: FileState) -> bool:
        """Whether a file was not changed while it was read."""
        path = self._path if self._folder is None else self._path / name
        now = self._look(path, name)
        return (now.size, now.modified, now.changed, now.inode) == before[2:6]

    # What becomes of each document.

    def choose(self, chunk: list[Write]) -> list[Write]:
        """Return the documents that are stored; the others are unchanged, or stand under ids of others."""
        rows = self._seen(chunk)
        chosen = []
        for write in chunk:
            name = write.origin.file
            if self._is_stored_alike(write, rows):
                file = self._read[name]
                file.waiting -= 1
                if file.is_read and not file.waiting:
                    self._complete(name)
            else:
                row = rows.get(write.document.id) if write.document.id is not None else None
                self._kinds[self._kind(name, row is None)] += 1
                chosen.append(write if row is None else write._replace(seen=row.number))
        return chosen

    def _seen(self, chunk: list[Write]) -> dict[Id, Seen]:
        """Return the rows of documents, as they were when their file was begun, or as they are if they were others'."""
        rows: dict[Id, Seen] = {}
        others: list[Id] = []
        for write in chunk:
            id = write.document.id
            if id is None:
                continue
            row = self._read[write.origin.file].rows.get(id)
            if row is None:
                others.append(id)
            else:
                rows[id] = row
        if others:
            rows |= self._index.origins.seen(others)
        return rows

    def _kind(self, name: str, is_new: bool) -> str:
        """Return as what a document is counted that is stored: one that is stored again has not changed."""
        if not is_new:
            return "changed"
        if self._read[name].is_less:
            self._read[name].restored += 1
            return "unchanged"
        return "new"

    def _is_stored_alike(self, write: Write, rows: Mapping[Id, Seen]) -> bool:
        """Whether a document is not stored, as it is unchanged, or as its id is that of a document of others."""
        file = self._read[write.origin.file]
        id = write.document.id
        if id is None:
            id = file.take(write.origin.hash)
            if id is None:
                file.lines += 1
                return False
            row = file.rows[id]
        else:
            found = rows.get(id)
            if found is None:
                file.held.add(id)
                return False
            row = found
        if not row.origin.source and row.origin.hash == write.origin.hash:
            self._kinds["unchanged"] += 1
            file.has_own = True
            return True
        if not self._may_take(id, row.origin, write.origin):
            file.refused.setdefault((row.origin.source, row.origin.file), []).append(id)
            return True
        file.held.add(id)
        if row.origin.hash != write.origin.hash:
            return False
        self._kinds["unchanged"] += 1
        if (row.origin.source, row.origin.file, row.origin.missing) != (*write.origin[:2], False):
            file.moved[id] = Seen(row.number, write.origin)
        return True

    def _may_take(self, id: Id, owner: Origin, own: Origin) -> bool:
        """Whether the document of an id is that of a file, or of one that does not hold it any more."""
        if owner.source != own.source:
            return owner.source != "" and owner.missing
        if owner.file == own.file or owner.missing or owner.file in self._absent:
            return True
        other = self._read.get(owner.file)
        return other is not None and other.is_read and other.is_whole and self._yielded.get(id) != owner.file

    # What a commit takes with it.

    def changes(self, stored: list[Write]) -> Changes:
        """Return what a commit of documents says of their files: that they are being read, or, with the last, read."""
        self._store_source()
        counts = Counter(write.origin.file for write in stored)
        for name, count in counts.items():
            file = self._read[name]
            if file.is_read and file.waiting == count:
                self._complete(name)
            elif not file.is_begun:
                before = self._files.get(name) or file.now
                self._files_ready[name] = before._replace(hash="")
                file.is_begun = True
        return self._take_ready()

    def stored(self, stored: list[Write], left: list[int]) -> None:
        """Count what was stored; others have stored something else meanwhile under the ids of those that were left."""
        for write in stored:
            self._read[write.origin.file].waiting -= 1
        writes = [stored[i] for i in left]
        rows = self._index.origins.seen([write.document.id for write in writes if write.document.id is not None])
        for write in writes:
            id = write.document.id
            self._kinds[self._kind(write.origin.file, write.seen is None)] -= 1
            row = rows.get(id) if id is not None else None
            file = self._read[write.origin.file]
            if row is not None and row.origin[:4] == write.origin[:4]:
                self._kinds["unchanged"] += 1
            elif id is not None:
                owner = ("", "") if row is None else (row.origin.source, row.origin.file)
                file.refused.setdefault(owner, []).append(id)

    def _complete(self, name: str) -> None:
        """Let the next commit say what is known of a file that was read and whose documents are stored."""
        file = self._read[name]
        missing: dict[Id, Seen] = {}
        if file.now.state == SkipReason.TIME:
            held = file.held | {id for id, row in file.rows.items() if not row.origin.missing}
            file.now = file.now._replace(documents=len(held) + file.lines)
        if file.is_whole:
            for id, row in file.rows.items():
                if id not in file.held and not row.origin.missing and self._yielded.get(id, name) == name:
                    missing[id] = Seen(row.number, row.origin._replace(missing=True))
        self._moved.update({**missing, **file.moved})
        self._files_ready[name] = file.now

    def _take_ready(self) -> Changes:
        ready = Changes(files=list(self._files_ready.values()), moved=self._moved)
        self._files_ready = {}
        self._moved = {}
        return ready

    def _store_source(self) -> None:
        """Store the source by itself, before a document names it."""
        if not self._is_stored:
            self._index.write(_NOTHING, Changes(sources=[self._source], files=self._moved_files()))
            self._is_stored = True

    def _moved_files(self) -> list[FileState]:
        if not self._is_moved:
            return []
        return list(self._files.values())

    # What is gone, and what is not.

    def _find_absent(self) -> dict[str, FileState]:
        """Return the files that are known not to be there: each folder down to them was listed, at the same place."""
        folder = self._folder
        if folder is None:
            return {}
        if self._is_moved:  # nothing confirms what is missing at another place
            self._files = {name: state._replace(place="") for name, state in self._files.items()}
        listed = set(self._names)
        absent = {}
        for name, state in self._files.items():
            if name not in listed and folder.find(name) is None and folder.place(name).confirms(_place(state)):
                absent[name] = state
        return absent

    def finish(self, *, remove: bool) -> Synchronised:
        """Remove what is known to be gone, and say what is kept."""
        removed: dict[Id, Seen] = {}
        gone: list[str] = []
        kept = 0
        self._say_refused()
        if remove:
            gone = self._gone()
            for name in gone:
                removed |= self._index.origins.documents(self._source.key, name)
            removed |= {id: row for id, row in self._missing.items() if self._is_missing_twice(id, row)}
            removed = {id: row for id, row in removed.items() if id not in self._yielded}
            kept = self._keep(set(gone)) + self._say_missing()
        forgotten = [(self._source.key, name) for name in [*gone, *self._note_skipped(set(gone))]]
        ready = self._take_ready()
        if ready.files or ready.moved or forgotten or removed or self._is_moved:
            self._store_source()
            self._index.write(_NOTHING, ready._replace(forgotten=forgotten, removed=removed))
        counts = {name: self._kinds[name] for name in ("new", "changed", "renamed", "unchanged")}
        return Synchronised(**counts, removed=len(removed), kept=kept, skipped=self._documents.skipped)

    def _of_file(self, told: Iterable[Skipped]) -> list[tuple[SkipReason, str]]:
        """Return what was said of one file; of the records of a single file how many they are, and the first."""
        of_records: dict[SkipReason, list[Skipped]] = {}
        entries = []
        for each in told:
            if self._folder is None and each.path != self._path.name:
                of_records.setdefault(each.reason, []).append(each)
            else:
                entries.append((each.reason, each.message))
        for reason, some in of_records.items():
            entries.append((reason, f"{len(some):,} of its records: {some[0].path}: {some[0].message}"))
        return entries

    def _note_skipped(self, gone: set[str]) -> list[str]:
        """Let the last commit say what was left out and why; return the names of which there is nothing to say."""
        by_name: dict[str, list[Skipped]] = {}
        for each in self._documents.skipped:
            if each.path not in self._several:
                name = "" if self._folder is None else each.path
                by_name.setdefault(_storable(name), []).append(each)
        states = {**self._files, **{name: file.now for name, file in self._read.items()}, **self._files_ready}
        for name, state in states.items():
            if name in gone:
                continue
            told = self._of_file(by_name.pop(name, ()))
            if name in self._kept:
                told.append((SkipReason.KEPT, self._kept[name]))
            if name in self._unchanged:
                told = [*_told(state), *told]
            if _as_told(told) != state.skipped or name in self._files_ready:
                self._files_ready[name] = state._replace(skipped=_as_told(told))
        for name, skipped in by_name.items():
            state = FileState(self._source.key, name, state=_NOT_READ, skipped=_as_told(self._of_file(skipped)))
            if state != self._left_out.get(name):
                self._files_ready[name] = state
        return [name for name in self._left_out if name not in by_name and name not in states]

    def _gone(self) -> list[str]:
        """Return the absent files whose documents are removed: not if more than half are missing for the first time."""
        stored = [name for name in self._files if self._counts.get(name)]
        missing = [name for name in self._absent if self._counts.get(name)]
        if 2 * len(missing) <= len(stored):
            return list(self._absent)
        return [name for name, state in self._absent.items() if state.state == _MISSING or name not in missing]

    def _is_missing_twice(self, id: Id, row: Seen) -> bool:
        """Whether the file of a document that was missing in it before was looked at again without it."""
        if self._folder is None and not row.origin.place.startswith(_LINE):
            return False  # records with ids of their own stay
        file = self._read.get(row.origin.file)
        if file is None:
            return row.origin.file in self._unchanged
        return file.is_whole and id not in file.held

    def _keep(self, gone: set[str]) -> int:
        """Keep the documents of files that are not there, those that were looked for until the next run; say why."""
        folder = self._folder
        if folder is None:
            return 0
        listed = set(self._names)
        named = {each.path for each in self._documents.skipped}
        kept: dict[str, dict[str, int]] = {}
        for name, state in self._files.items():
            if name in listed or name in gone:
                continue
            found = folder.find(name)
            place = folder.place(name)
            mount = _place(state).mount
            if found in named:
                why = found or ""
            elif found is not None:
                why = _LEFT_OUT
            elif mount not in ("", place.mount):
                why = _NOT_MOUNTED
            else:
                why = _MANY if name in self._absent else _ELSEWHERE
                self._files_ready[name] = state._replace(place=json.dumps(place), state=_MISSING)
            kept.setdefault(why, {})[name] = self._counts.get(name, 0)
        for why, counts in kept.items():
            self._say_kept(why, {name: count for name, count in counts.items() if count})
        return sum(count for counts in kept.values() for count in counts.values())

    def _say_kept(self, why: str, counts: Mapping[str, int]) -> None:
        if not counts:
            return
        kept = _are_kept(sum(counts.values()))
        if "{}" not in why:
            self._append(why, kept)
            return
        names = list(counts)
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        self._several.add(f"{names[0]}{more}")
        self._kept |= {name: why.format(_are_kept(count)) for name, count in counts.items()}
        self._documents.skipped.append(Skipped(f"{names[0]}{more}", why.format(kept), SkipReason.KEPT))

    def _say_missing(self) -> int:
        """Name files that do not hold all of their documents any more; return how many documents that are."""
        kept = 0
        for name, file in self._read.items():
            rows = file.rows.items()
            absent = [id for id, row in rows if id not in file.held and self._yielded.get(id, name) == name]
            if not file.is_whole and absent:
                self._append(self._shown(name), _are_kept(len(absent)))
                kept += len(absent)
                continue
            new = [id for id in absent if not file.rows[id].origin.missing]
            if self._folder is None:
                new = [id for id in new if file.rows[id].origin.place.startswith(_LINE)]
            if not new:
                continue
            kept += len(new)
            message = f"{_are_kept(len(new))} until the next run, unless it holds them again"
            if any(each.path == self._shown(name) for each in self._documents.skipped):
                self._append(self._shown(name), message)
            else:
                self._skip(name, f"it does not hold all of its documents any more; {message}", SkipReason.KEPT)
        return kept

    def _say_refused(self) -> None:
        """Name the documents of others that stay as they are."""
        for name, file in self._read.items():
            if file.restored:
                self._skip(name, "documents of it were removed by hand; they are stored again", SkipReason.KEPT)
            if file.refused or file.has_own:
                self._files_ready[name] = file.now._replace(state=SkipReason.ID.value)
            for (source, owner), ids in file.refused.items():
                such = f"such as {short(ids[0])}"
                if source == "":
                    fact = (
                        f"in the index are other documents, which were not added from it, with {len(ids):,} of its "
                        f"ids, {such}; they stay. Remove them to have its own"
                    )
                elif source == self._source.key:
                    fact = f"{len(ids):,} of its ids are those of documents of {owner}, {such}; they stay"
                else:
                    root = self._others.get(source, "another source")
                    fact = f"{len(ids):,} of its ids are those of documents of {root}, {such}; they stay"
                    if not os.path.exists(root):  # noqa: PTH110 (it may be no path of this system)
                        fact += ". If that was moved here, say so: moved_from, --moved-from"
                self._skip(name, fact, SkipReason.ID)

    def _shown(self, name: str) -> str:
        """Return how a file is named in messages."""
        if self._folder is None:
            return self._path.name
        return name

    def _skip(self, name: str, message: str, reason: SkipReason) -> None:
        self._documents.skipped.append(Skipped(self._shown(name), message, reason))

    def _append(self, path: str, message: str) -> None:
        """Add to the last message about a file or folder."""
        skipped = self._documents.skipped
        places = [i for i, each in enumerate(skipped) if each.path == path]
        if places:
            last = skipped[places[-1]]
            skipped[places[-1]] = last._replace(message=f"{last.message.rstrip('.')}; {message}")
        else:
            skipped.append(Skipped(path, message, SkipReason.KEPT))

    def warn(self) -> None:
        """Name the files of a folder that were skipped; those that were skipped in the last run too are counted."""
        if self._folder is None:
            for each in self._documents.skipped:
                if each.reason in (SkipReason.ID, SkipReason.KEPT):
                    warn_caller(f"{each.path}: {each.message}")
            return
        self._folder.warn(self._told_before)

    # Names.

    def _rename(self, folder: DocumentFolder) -> None:
        """Give the documents of files that are known to be gone to new files with the same content and suffix."""
        gone: dict[tuple[str, str], list[FileState]] = {}
        for name, state in self._absent.items():
            if state.hash and state.options == self._source.options and 0 < state.documents == self._counts.get(name):
                gone.setdefault((state.hash, PurePosixPath(name).suffix), []).append(state)
        sizes = {state.size for states in gone.values() for state in states}
        waiting: list[tuple[FileState, FileState]] = []
        for path, name in zip(folder.files, self._names, strict=True):
            now = self._look(path, name)
            if name in self._files or now.size not in sizes:
                continue
            now = now._replace(hash=_hash(path))
            candidates = gone.get((now.hash, path.suffix))
            if candidates:
                before = candidates.pop(0)
                waiting.append((before, now._replace(documents=before.documents, skipped=before.skipped)))
            if sum(now.documents for _, now in waiting) >= _RENAMED_AT_ONCE:
                self._store_renamed(waiting)
                waiting = []
        self._store_renamed(waiting)

    def _store_renamed(self, renamed: list[tuple[FileState, FileState]]) -> None:
        """Store documents under their new ids with the vectors that they have, in place of the old ones."""
        rows: dict[Id, Seen] = {}
        new: dict[Id, tuple[Id, FileState, FileState]] = {}
        states = []
        for before, now in renamed:
            own = self._index.origins.documents(before.source, before.name)
            ids = {id: f"{now.name}{str(id)[len(before.name) :]}" for id in own}
            is_derived = all(id == before.name or str(id).startswith(f"{before.name}#") for id in own)
            if own and is_derived and not self._index.existing(list(ids.values())):
                rows |= own
                new |= {id: (ids[id], before, now) for id in own}
                states.append((before, now))
        if not states:
            return
        old = list(rows)
        records = self._index.get(old)
        metadata = []
        for record, (_, before, now) in zip(records, new.values(), strict=True):
            fields = dict(record.metadata)
            paths = {"path": (before.name, now.name)}
            paths["image"] = (str(self._path / before.name), str(self._path / now.name))
            for field, (was, is_now) in paths.items():
                if fields.get(field) == was:
                    fields[field] = is_now
            metadata.append(fields)
        origins = [rows[id].origin._replace(file=now.name) for id, (_, _, now) in new.items()]
        given = GivenDocuments(
            [id for id, _, _ in new.values()],
            self._index.get_embeddings(old),
            [record.text for record in records],
            metadata,
            [record.passages or None for record in records],
            [None] * len(old),
            origins,
        )
        forgotten = [(before.source, before.name) for before, _ in states]
        self._store_source()
        changes = Changes(files=[now for _, now in states], forgotten=forgotten, removed=rows)
        left = {given.ids[i] for i in self._index.write(given, changes)}
        for before, now in states:
            del self._files[before.name], self._absent[before.name]
            count = sum(each[2] is now and each[0] not in left for each in new.values())
            self._files[now.name] = now
            self._counts[now.name] = count
            self._renamed.add(now.name)
            self._kinds["renamed"] += count


# Why documents are kept; how many they are is put in.
_LEFT_OUT = "a pattern or an ignore file leaves it out, or it is an index; {}"
_NOT_MOUNTED = "its drive is not mounted; {}"
_ELSEWHERE = "where it was is another place by now, such as another drive or a new folder; {} until the next run"
_MANY = "more than half of all files are missing at once; {} until the next run"


def _moved(sources: list[Source], source: Path, path: Path) -> Source:
    """Return a source that was moved to a path."""
    found = {each.root: each for each in sources}
    known = found.get(spelled(source)) or found.get(spelled(source.resolve()))
    if known is None:
        roots = ", ".join(short(json.loads(root)) for root in found) or "none"
        raise InvalidArgumentError(
            f"received moved_from={str(source)!r}, from which this index was not filled; its sources are: {roots}."
        )
    if source.exists():
        raise InvalidArgumentError(f"received moved_from={str(source)!r}, which is still there.")
    if find_source(sources, path) not in (None, known):
        raise InvalidArgumentError(
            f"received moved_from={str(source)!r}, but the index was filled from {str(path)!r} already."
        )
    return known


def _place(state: FileState) -> Place:
    """Return where a file was when it was last looked for; nowhere if that is not known."""
    if not state.place:
        return Place("", ())
    mount, folders = json.loads(state.place)
    return Place(mount, tuple(folders))


def _hash(path: Path) -> str:
    """Return a hash of the bytes of a file; empty if it cannot be read."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def _storable(name: str) -> str:
    """Return a name as text: one that is not Unicode with its bytes escaped."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _are_kept(count: int) -> str:
    if count == 1:
        return "its document is kept"
    return f"its {count:,} documents are kept"
