"""How an index is brought up to date with a folder or a file.

A document is removed only if its source is known to be gone: each folder from the root to its file was listed in this
run without an error, and one of them has no such entry; or its file was read whole in two runs, without it. Nothing
else is removed or replaced: what cannot be looked at is kept, and a document with an id that `synchronise` has not
written, or has written for another file, stays as it is.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.indexes import Id, Index
from latelier.reading.folders import DocumentFolder
from latelier.reading.records import FileDocuments, InputDocument, Skipped, SkipReason
from latelier.retrieve.indexing import Pace, Rows
from latelier.retrieve.preparation import whole_text
from latelier.utils.checks import short


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


class FileState(NamedTuple):
    """What an index keeps of a file.

    `modified`: its time of change (ns); `seen`: when that was looked at (ns); `digest`: the hash of its content, empty
    if it has to be read again; `ids`: its documents; `missing`: those that it held once, and not when it was last read;
    `records`: documents of a file of records with ids of their own, which are never removed; `mount`: the mount point
    of its drive, if it is in a folder.
    """

    modified: int = 0
    size: int = 0
    digest: str = ""
    seen: int = 0
    ids: tuple[Id, ...] = ()
    missing: tuple[Id, ...] = ()
    records: tuple[Id, ...] = ()
    mount: str = ""

    @classmethod
    def of(cls, stored: list[Any]) -> FileState:
        """Return the state that an index has stored as a list."""
        state = cls(*stored)
        return state._replace(ids=tuple(state.ids), missing=tuple(state.missing), records=tuple(state.records))

    def as_json(self) -> list[Any]:
        """Return the state as an index stores it."""
        return [list(value) if isinstance(value, tuple) else value for value in self]

    @property
    def held(self) -> tuple[Id, ...]:
        """All documents that are this file's."""
        return (*self.ids, *self.missing, *self.records)

    def is_current(self, status: os.stat_result) -> bool:
        """Whether a file is unchanged by its status; a change so close to the last look may have the same time."""
        is_same = (status.st_mtime_ns, status.st_size) == (self.modified, self.size)
        return is_same and self.digest != "" and self.modified + _COARSEST < self.seen


def changed_last(index: Index, count: int) -> dict[Id, str]:
    """Return a document of each of the files that were changed last, and when (ISO 8601); none of no folder."""
    stored = index.settings.get(_SETTING, None) or {}
    states = [FileState.of(state) for files in stored.values() for state in files.values()]
    newest = sorted((state for state in states if state.ids), key=lambda state: -state.modified)[:count]
    times = (datetime.fromtimestamp(state.modified // 10**9, timezone.utc) for state in newest)
    return {state.ids[0]: time.strftime("%Y-%m-%dT%H:%M:%SZ") for state, time in zip(newest, times, strict=True)}


class Owner(NamedTuple):
    """The file that a document is from: the path of its source, and its name in it."""

    source: str
    name: str


# The coarsest time of change of a file system, FAT's, in nanoseconds.
_COARSEST = 2 * 10**9
# The key among the settings of the index: for each folder or file, the states of files by their names.
_SETTING = "files"
# Another: for each folder, a digest of the files that were skipped for each reason.
_SKIPPED = "skipped"
_MOST_TOLD = 1000
# Files that were left out for another reason than these were not read whole.
_READ_WHOLE = frozenset({SkipReason.EMPTY, SkipReason.UNREAD, SkipReason.RECORDS, SkipReason.ID})
# Passages that are stored under new ids in one commit.
_RENAMED_AT_ONCE = 512


class Synchronisation:
    """One run that brings an index up to date with a source: what has to be read, renamed and removed.

    `read` yields what is new or changed; the writer calls `may_replace` before it encodes, and `before_commit`; then
    `finish` removes what is gone, or `interrupt` keeps what an interrupted run has stored.
    """

    def __init__(
        self, index: Index, documents: FileDocuments, path: Path, moved_from: str | os.PathLike[str] | None
    ) -> None:
        self._index = index
        self._documents = documents
        self._folder = documents if isinstance(documents, DocumentFolder) else None
        self._path = path
        self._key = _key(path)
        self._all: dict[str, dict[str, list[Any]]] = dict(index.settings.get(_SETTING, None) or {})
        if moved_from is not None:
            self._move(Path(moved_from))
        self._known = {name: FileState.of(state) for name, state in self._all.get(self._key, {}).items()}
        self._seen: dict[str, FileState] = {}
        self._owners: dict[Id, Owner] = {}
        for source, files in self._all.items():
            for name, state in files.items():
                for id in (*FileState.of(state).ids, *FileState.of(state).records):
                    self._owners.setdefault(id, Owner(source, name))
        self._own = {id for state in self._known.values() for id in state.held}
        self._written: dict[Id, None] = {}
        self._numbers: list[Id] = []  # of documents that came without an id
        self._refused: list[Id] = []
        self._renamed: set[str] = set()
        self.unchanged = 0

    def read(self, *, remove: bool) -> Iterator[InputDocument]:
        """Yield the documents of what is new or changed; files that have another name only are renamed first."""
        folder = self._folder
        if folder is None:
            yield from self._read_file()
            return
        if remove:
            self._rename(folder)
        for path in folder.files:
            name = folder.name(path)
            if not self._is_unchanged(path, name):
                yield from self._read_in_folder(folder, path, name)

    def may_replace(self, id: Id) -> bool:
        """Whether a document that is in the index, with another content, is this source's; if not, it is refused."""
        if id in self._own or id in self._written:
            return True
        self._refused.append(id)
        return False

    def before_commit(self, rows: Rows) -> None:
        """Note the documents of a commit, after which the process may be killed, as those of this source."""
        self._numbers += rows.numbers
        self._written.update(dict.fromkeys(rows.documents))
        self._store(self._interrupted())

    def interrupt(self) -> None:
        """Keep what is stored of an interrupted run; its last commit may or may not have come about."""
        if self._index.dim is not None:
            existing = self._index.existing(self._numbers)
            self._numbers = [id for id in self._numbers if id in existing]
            self._store(self._interrupted())

    def finish(self, pace: Pace, *, remove: bool) -> Synchronised:
        """Remove what is known to be gone, and say what is kept."""
        self._note_refused()
        if self._folder is None and self._numbers:
            state = self._seen[self._path.name]
            self._seen[self._path.name] = state._replace(ids=(*state.ids, *self._numbers))
        gone = self._missing_twice() if remove else []
        unknown: dict[str, list[Id]] = {}
        for name, state in self._known.items():
            if name in self._seen:
                continue
            if remove and self._is_gone(name, state):
                gone += state.held
                continue
            self._seen[name] = state
            if remove:
                unknown.setdefault(self._place(name, state), []).extend(state.held)
        held = {id for state in self._seen.values() for id in (*state.ids, *state.records)}
        for source, files in self._all.items():
            if source != self._key:
                held.update(id for state in files.values() for id in FileState.of(state).held)
        removed = self._index.existing([id for id in gone if id not in held])
        if removed:
            self._index.remove(removed)
        kept = self._say_what_is_kept(unknown) if remove else 0
        if self._index.dim is not None:
            self._store(self._seen)
        renamed = sum(len(self._seen[name].ids) for name in self._renamed)
        counts = {"new": pace.new, "changed": pace.changed, "renamed": renamed, "removed": len(removed)}
        return Synchronised(
            **counts, unchanged=pace.unchanged + self.unchanged, kept=kept, skipped=self._documents.skipped
        )

    # Reading.

    def _read_in_folder(self, folder: DocumentFolder, path: Path, name: str) -> Iterator[InputDocument]:
        known = self._known.get(name, FileState())
        me = Owner(self._key, name)
        for id in known.ids:  # until it is read, so that another file may hold what this one does not any more
            if self._owners.get(id) == me:
                del self._owners[id]
        begin = len(folder.skipped)
        ids: list[Id] = []
        others: dict[Owner, list[Id]] = {}
        for document in folder.read(path):
            if document.id is None:
                continue
            owner = self._owners.setdefault(document.id, me)
            if owner == me:
                ids.append(document.id)
                self._seen[name] = self._seen[name]._replace(ids=tuple(ids))
                yield document
            else:
                others.setdefault(owner, []).append(document.id)
        state = self._seen[name]._replace(ids=tuple(ids))
        reasons = {each.reason for each in folder.skipped[begin:] if each.path == name}
        read = set(ids)
        before = [id for id in (*known.ids, *known.missing) if id not in read]
        if reasons <= _READ_WHOLE:
            state = state._replace(missing=tuple(before))
        else:
            kept = [id for id in before if self._owners.setdefault(id, me) == me]
            state = state._replace(ids=(*ids, *kept), digest="")
            if kept:
                self._append(name, _are_kept(len(kept)))
        if others:
            state = state._replace(digest="")
        self._seen[name] = state
        for owner, taken in others.items():
            self._skip_taken(name, owner, taken)

    def _read_file(self) -> Iterator[InputDocument]:
        """Yield the documents of a file; those without an id get that of a former run with the same text."""
        name = self._path.name
        if self._is_unchanged(self._path, name):
            return
        known = self._known.get(name, FileState())
        before: dict[str | None, list[Id]] = {}
        once = (*known.ids, *known.missing)
        existing = self._index.existing(once)
        for record in self._index.get([id for id in once if id in existing]):
            before.setdefault(record.text, []).append(record.id)
        me = Owner(self._key, name)
        ids: dict[Id, None] = {}
        records = dict.fromkeys(known.records)
        others: dict[Owner, list[Id]] = {}
        for document in self._documents:
            if document.id is None:
                if again := before.get(whole_text(document)):
                    id = again.pop(0)
                    document = document._replace(id=id)
                    ids[id] = None
            else:
                owner = self._owners.setdefault(document.id, me)
                if owner != me:
                    others.setdefault(owner, []).append(document.id)
                    continue
                (records if document.image is None else ids)[document.id] = None
            self._seen[name] = self._seen[name]._replace(ids=tuple(ids), records=tuple(records))
            yield document
        before_now = tuple(id for id in once if id not in ids)
        if {each.reason for each in self._documents.skipped} <= _READ_WHOLE:
            self._seen[name] = self._seen[name]._replace(missing=before_now)
        else:
            self._seen[name] = self._seen[name]._replace(ids=(*ids, *before_now), digest="")
        for owner, taken in others.items():
            self._skip_taken(name, owner, taken)
            self._seen[name] = self._seen[name]._replace(digest="")

    def _is_unchanged(self, path: Path, name: str) -> bool:
        known = self._known.get(name)
        mount = "" if self._folder is None else self._folder.mount(name)
        now = time.time_ns()
        try:
            status = path.stat()
            if known is not None and known.is_current(status):
                state = known._replace(mount=mount)
            else:
                state = FileState(status.st_mtime_ns, status.st_size, _digest(path), now, mount=mount)
                if known is not None and state.digest == known.digest:
                    state = state._replace(ids=known.ids, missing=known.missing, records=known.records)
        except OSError:  # an error when it is read
            state = FileState(mount=mount)
        self._seen[name] = state
        if known is None or not state.digest or state.digest != known.digest:
            return False
        if name not in self._renamed:
            self.unchanged += len(state.ids) + len(state.records)
        return True

    # What is gone, and what is not.

    def _is_gone(self, name: str, state: FileState) -> bool:
        """Whether a file is known not to be there, on the drive on which it was."""
        folder = self._folder
        if folder is None:
            return False
        return folder.find(name) is None and state.mount in ("", folder.mount(name))

    def _missing_twice(self) -> list[Id]:
        """Return what files that were read held neither in this run nor in the one before, and forget it."""
        gone = []
        for name, state in self._seen.items():
            before = set(self._known.get(name, FileState()).missing)
            twice = [id for id in state.missing if id in before]
            gone += twice
            self._seen[name] = state._replace(missing=tuple(id for id in state.missing if id not in before))
        return gone

    def _place(self, name: str, state: FileState) -> str:
        """Return what is not known of a file that was not seen: the folder that could not be listed, or itself."""
        folder = self._folder
        if folder is None:
            return name
        return folder.find(name) or f"{state.mount} (not mounted)"

    def _say_what_is_kept(self, unknown: dict[str, list[Id]]) -> int:
        """Name the places of documents that are kept; return how many there are."""
        kept = 0
        named = {each.path for each in self._documents.skipped}
        left_out: list[str] = []
        count_left_out = 0
        for place, ids in unknown.items():
            count = len(self._index.existing(ids))
            kept += count
            if count and place in named:
                self._append(place, _are_kept(count))
            elif count and place.endswith(" (not mounted)"):
                self._skip(place, f"this drive is not there; {_are_kept(count)}", SkipReason.KEPT)
            elif count:
                left_out.append(place)
                count_left_out += count
        if left_out:
            message = f"a pattern or an ignore file leaves it out, or it is an index; {_are_kept(count_left_out)}"
            if len(left_out) > 1:
                more = f" and {len(left_out) - 1:,} more"
            else:
                more = ""
            self._skip(f"{left_out[0]}{more}", message, SkipReason.KEPT)
        for name, state in self._seen.items():
            count = len(self._index.existing(state.missing))
            kept += count
            if count:
                message = f"{_are_kept(count)} until the next run, unless it holds them again"
                if name in named:
                    self._append(name, message)
                else:
                    self._skip(name, f"it does not hold all of its documents any more; {message}", SkipReason.KEPT)
        return kept

    def _note_refused(self) -> None:
        """Leave the documents of others as they are, and name them."""
        by_file: dict[str, list[Id]] = {}
        for id in self._refused:
            by_file.setdefault(self._owners[id].name, []).append(id)
        for name, ids in by_file.items():
            refused = set(ids)
            state = self._seen[name]
            own = tuple(id for id in state.ids if id not in refused)
            records = tuple(id for id in state.records if id not in refused)
            self._seen[name] = state._replace(ids=own, records=records, digest="")
            fact = f"in the index are other documents, which were not added from it, with {len(ids):,} of its ids"
            self._skip(name, f"{fact}, such as {short(ids[0])}; they stay. Remove them to have its own", SkipReason.ID)

    def _skip_taken(self, name: str, owner: Owner, ids: list[Id]) -> None:
        if owner.source == self._key:
            place = owner.name
        else:
            place = owner.source
        fact = f"{len(ids):,} of its ids are those of documents of {place}, such as {short(ids[0])}; they stay"
        if owner.source != self._key and not Path(owner.source).exists():
            fact += ". If that was moved here, say so: moved_from, --moved-from"
        self._skip(name, fact, SkipReason.ID)

    def _skip(self, path: str, message: str, reason: SkipReason) -> None:
        self._documents.skipped.append(Skipped(path, message, reason))

    def _append(self, path: str, message: str) -> None:
        """Add to the last message about a file or folder."""
        skipped = self._documents.skipped
        last = max(i for i, each in enumerate(skipped) if each.path == path)
        skipped[last] = skipped[last]._replace(message=f"{skipped[last].message.rstrip('.')}; {message}")

    # Names.

    def _rename(self, folder: DocumentFolder) -> None:
        """Give the documents of files that are known to be gone to new files with the same content and suffix."""
        present = {folder.name(path) for path in folder.files}
        gone: dict[tuple[str, str], list[str]] = {}
        for name, state in self._known.items():
            if name not in present and state.digest and not state.missing and self._is_gone(name, state):
                gone.setdefault((state.digest, PurePosixPath(name).suffix), []).append(name)
        sizes = {self._known[name].size for names in gone.values() for name in names}
        waiting: list[_Renaming] = []
        for path in folder.files:
            name = folder.name(path)
            try:
                status = path.stat()
                if name in self._known or status.st_size not in sizes:
                    continue
                digest = _digest(path)
            except OSError:  # an error when it is read
                continue
            candidates = gone.get((digest, path.suffix))
            if not candidates:
                continue
            renaming = _Renaming(candidates[0], name)
            if self._can_rename(renaming):
                candidates.pop(0)
                known = self._known[renaming.old]
                times: dict[str, Any] = {
                    "modified": status.st_mtime_ns,
                    "seen": time.time_ns(),
                    "mount": folder.mount(name),
                }
                waiting.append(renaming._replace(state=known._replace(**times)))
            if sum(len(each.state.ids) for each in waiting) >= _RENAMED_AT_ONCE:
                self._store_renamed(waiting)
                waiting = []
        self._store_renamed(waiting)

    def _can_rename(self, renaming: _Renaming) -> bool:
        """Whether the ids follow from the name, and the new ones are free."""
        ids = self._known[renaming.old].ids
        if not ids or not all(id == renaming.old or str(id).startswith(f"{renaming.old}#") for id in ids):
            return False
        new = [renaming.id(id) for id in ids]
        return not self._index.existing(new) and not any(id in self._owners for id in new)

    def _store_renamed(self, renamings: list[_Renaming]) -> None:
        """Store documents under their new ids with the vectors that they have, and remove the old ones."""
        if not renamings:
            return
        claimed = {each.new: FileState(ids=tuple(map(each.id, each.state.ids))) for each in renamings}
        self._store({**self._known, **claimed})  # if the process is killed after the next commit
        existing = self._index.existing([id for renaming in renamings for id in renaming.state.ids])
        owners = [renaming for renaming in renamings for id in renaming.state.ids if id in existing]
        old = [id for renaming in renamings for id in renaming.state.ids if id in existing]
        new: list[Id] = [renaming.id(id) for id, renaming in zip(old, owners, strict=True)]
        if old:
            records = self._index.get(old)
            metadata = []
            for record, renaming in zip(records, owners, strict=True):
                own = dict(record.metadata)
                paths = {"path": (renaming.old, renaming.new)}
                paths["image"] = (str(self._path / renaming.old), str(self._path / renaming.new))
                for field, (before, after) in paths.items():
                    if own.get(field) == before:
                        own[field] = after
                metadata.append(own)
            vectors = self._index.get_embeddings(old)
            texts = [record.text for record in records]
            ranges = [record.passages or None for record in records]
            self._index.update(new, vectors, texts, metadata, ranges=ranges)
            self._index.remove(old)
        for renaming in renamings:
            state = renaming.state._replace(ids=tuple(map(renaming.id, renaming.state.ids)))
            for id in self._known.pop(renaming.old).ids:
                self._owners.pop(id, None)
            self._known[renaming.new] = state
            self._owners.update(dict.fromkeys(state.ids, Owner(self._key, renaming.new)))
            self._own.update(state.ids)
            self._renamed.add(renaming.new)
        self._store(self._known)

    def _move(self, source: Path) -> None:
        """Take the documents of a source that was moved for those of this one."""
        before = _key(source)
        if before not in self._all:
            known = ", ".join(map(short, self._all)) or "none"
            raise InvalidArgumentError(
                f"received moved_from={str(source)!r}, from which this index was not filled; its sources are: {known}."
            )
        if source.exists():
            raise InvalidArgumentError(f"received moved_from={str(source)!r}, which is still there.")
        if self._key in self._all:
            raise InvalidArgumentError(
                f"received moved_from={str(source)!r}, but the index was filled from {self._key!r} already."
            )
        states = {name: FileState.of(state)._replace(mount="") for name, state in self._all.pop(before).items()}
        if self._folder is None:
            states = dict(zip([self._path.name], states.values(), strict=False))
        self._all[self._key] = {name: state.as_json() for name, state in states.items()}

    def warn(self) -> None:
        """Name the files of a folder that were skipped; those that were skipped in the last run too are counted."""
        if self._folder is None:
            return
        before = self._index.settings.get(_SKIPPED, None) or {}
        told = self._folder.warn(before.get(self._key))
        if told != before.get(self._key, {}) and len(told) <= _MOST_TOLD:
            self._index.settings[_SKIPPED] = {**before, self._key: told}

    # What the index keeps.

    def _interrupted(self) -> dict[str, FileState]:
        """Return the states before this run, with what it has stored; what it has read is read again."""
        states = dict(self._known)
        for name, state in self._seen.items():
            known = self._known.get(name, FileState())
            ids = [id for id in state.ids if id in self._written]
            if self._folder is None:
                ids += self._numbers
            records = [id for id in state.records if id in self._written]
            states[name] = known._replace(
                ids=tuple(dict.fromkeys((*known.ids, *ids))), records=tuple(dict.fromkeys((*known.records, *records)))
            )
        return states

    def _store(self, states: dict[str, FileState]) -> None:
        files = {name: state.as_json() for name, state in states.items()}
        if files != self._all.get(self._key):
            self._all = {**self._all, self._key: files}
            self._index.settings[_SETTING] = self._all


class _Renaming(NamedTuple):
    """A file whose name alone has changed."""

    old: str
    new: str
    state: FileState = FileState()

    def id(self, id: Id) -> str:
        """Return the id of a document under the new name."""
        return f"{self.new}{str(id)[len(self.old) :]}"


def _key(source: Path) -> str:
    """Return the path of a source as the settings of an index can hold it, even if it is not UTF-8."""
    return str(source.resolve()).encode(errors="backslashreplace").decode()


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _are_kept(count: int) -> str:
    if count == 1:
        return "its document is kept"
    return f"its {count:,} documents are kept"
