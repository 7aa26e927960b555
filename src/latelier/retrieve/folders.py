"""Folders: which of their files are read, and how an index is synchronised with them."""

from __future__ import annotations

import fnmatch
import hashlib
import mimetypes
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, get_args

from latelier.errors import InvalidArgumentError, LatelierError, StorageError
from latelier.indexes import Id, Index
from latelier.indexes.store.integrity import CATALOG
from latelier.retrieve.files import is_readable, read_file, read_pictures
from latelier.retrieve.images import is_picture
from latelier.retrieve.passages import StoredDocuments
from latelier.retrieve.records import (
    RECORD_FORMATS,
    DocumentFields,
    FileDocuments,
    InputDocument,
    OnProblem,
    Pages,
    Reading,
    check_encoding,
    read_records,
)
from latelier.utils.checks import check_choice, cut, short
from latelier.utils.files import as_path, is_file, is_folder
from latelier.utils.misc import warn_caller

DocumentFormat: TypeAlias = Literal["auto", "jsonl", "csv", "parquet", "txt", "whole"]


def read_documents(
    path: str | os.PathLike[str],
    *,
    format: DocumentFormat = "auto",
    id: str | None = None,
    text: str | Sequence[str] | None = None,
    title: str | None = None,
    metadata: str | Sequence[str] | None = None,
    glob: str | Sequence[str] = (),
    encoding: str | None = None,
    delimiter: str | None = None,
    on_problem: OnProblem = "stop",
    pages: Pages = "texts",
) -> FileDocuments:
    r"""Return the documents of a file or a folder, which are read one by one while the result is iterated.

    Parameters
    ----------
    path
        A file, or a folder, of which each file is one document: text, Markdown, HTML, source code, Word, PowerPoint,
        Excel, OpenDocument, EPUB, Jupyter, mail, subtitles, and with the extra ``files`` PDF. ``.gz`` is decompressed.
        The id is the path of the file relative to the folder, the title that of its front matter, else its first
        heading, else its name. Metadata are ``path``, ``title``, ``modified`` (UTC, ISO 8601) and the front matter.
        JSONL and Parquet files, and CSV files with a column ``text``, hold a document in each record.

        Hidden files, ``node_modules``, virtual environments, Sphinx's ``_sources``, what ``.gitignore`` and
        ``.latelierignore`` name, and links to folders or out of the folder are left out. Files that cannot be read are
        skipped; a warning at the end, and the attribute `skipped`, name them.
    format
        ``"jsonl"``: a record per line, with ``text``, optionally ``id`` and ``title``, and metadata under any other
        key; also one JSON array or object, and the dumps of Elasticsearch and Qdrant. ``"csv"``, ``"parquet"``:
        columns of these names. ``"txt"``: a text per line. ``"whole"``: the file is one text, its name the id.
        ``"auto"``: by the file's extension; if that is unknown, by the first line.
    id, text, title, metadata
        Names of the fields of JSONL, CSV and Parquet files to take instead: of the id, of the text (several are joined
        by line ends), of the title, and of the metadata. Without `metadata`, all other fields are metadata. A field
        inside of another one is ``meta.year``.
    glob
        Patterns of the files of a folder, such as ``"*.rst"``; default: all of known formats. A pattern with a slash
        is compared with the path relative to the folder, where ``*`` also matches slashes, and ``**/`` folders of any
        depth or none; others with the name.
    encoding, delimiter
        Of text and CSV files; None: UTF-8, UTF-16 or cp1252, and a comma, semicolon, tab or bar, as the file has it.
    on_problem
        ``"stop"``: a faulty record is an error. ``"skip"``: it is left out. Records without a text always are.
    pages
        ``"images"``: pages of PDF, pictures (PNG, JPEG, WebP, TIFF, GIF, BMP), and those that a field ``image`` of
        records names are documents, for models that read them; of a folder, no other files are read. Pages have
        ``page`` in their metadata. Needs the extra ``images``.

    Returns
    -------
    iterable of InputDocument
        For `Retriever.add` and `Retriever.update`; of a file, it can be iterated once.

    Raises
    ------
    InvalidArgumentError
        If there is no such file or folder, or an option does not fit it; while reading, at a faulty line or row.
    MissingExtraError
        For a Parquet file, if pyarrow is not installed.
    StorageError
        If a file cannot be read.

    Examples
    --------
    >>> from pathlib import Path
    >>> _ = Path("films.csv").write_text("no,plot,year\n7,A shark bites.,1975\n")
    >>> [film] = read_documents("films.csv", id="no", text="plot")
    >>> film.id, film.text, film.metadata
    ('7', 'A shark bites.', {'year': 1975})
    """
    source = as_path(path)
    fields = DocumentFields.of(id, text, title, metadata)
    check_choice("format", format, get_args(DocumentFormat))
    check_choice("on_problem", on_problem, get_args(OnProblem))
    check_choice("pages", pages, get_args(Pages))
    reading = Reading(fields, encoding, delimiter, on_problem, pages)
    if is_folder(source):
        check_encoding(encoding)
        return DocumentFolder(source, glob, format, reading)
    if glob:
        raise InvalidArgumentError(f"received glob for {str(source)!r}, which is not a folder; name the file only.")
    return read_document_file(os.fspath(path), format, reading=reading)


_READING = Reading()


def read_document_file(
    file: str | Path | BinaryIO,
    format: DocumentFormat = "auto",
    *,
    name: str | None = None,
    reading: Reading = _READING,
) -> FileDocuments:
    """Return the documents of a path, a pipe, a device, or a file opened for bytes, which messages call `name`."""
    check_encoding(reading.encoding)
    if name is None and isinstance(file, (str, Path)):
        source = str(file)
    else:
        source = name or "the file"
    path = Path(file) if isinstance(file, (str, Path)) else None
    if reading.pages == "images" and path is not None and is_picture(path.name):
        skipped: list[tuple[str, str]] = []
        documents = read_pictures(path, path.name, lambda reason: skipped.append((source, reason)))
        return FileDocuments(documents, skipped, path)
    chosen: Any = format if format != "auto" else RECORD_FORMATS.get(_suffix(source), "auto")
    if chosen == "auto" and path is not None and is_file(path) and (is_readable(path) or not _has_records(path)):
        chosen = "whole"
    if chosen != "whole":
        return read_records(file, chosen, source, reading)
    if path is None:
        raise InvalidArgumentError(f"the format 'whole' needs a file with a name; received {source}.")
    if reading.pages == "images":
        raise InvalidArgumentError(
            f"{source} is no PDF, no picture, and no file of records, which pages='images' reads."
        )
    reading.check_of_text(source)
    try:
        texts = read_file(path, path.name, reading.encoding)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
    return FileDocuments(iter(texts), [], path, are_texts=True)


def _suffix(name: str) -> str:
    return PurePosixPath(name.removesuffix(".gz")).suffix.lower()


def _has_records(path: Path) -> bool:
    """Whether a file of an unknown kind, which is not one text, begins as a JSON record."""
    try:
        with path.open("rb") as file:
            begin = file.read(4096)
    except OSError:
        return True  # an error when it is read
    return begin.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[", b"\x1f\x8b")) or not begin.strip()


_MOST_NAMED = 10  # skipped files in a warning
_FOLDERS = re.compile(r"(?:^|(?<=/))(?:\*\*/)+")
_IGNORING = (".gitignore", ".latelierignore")
_IGNORED = frozenset({"node_modules", "__pycache__", "__MACOSX", "_sources"})  # the last: Sphinx's, beside its HTML
_OTHERS = frozenset({CATALOG, "pyvenv.cfg"})  # what an index and a virtual environment hold
# of people, lines have fewer characters in the mean
_SCRIPTS = (".js", ".mjs", ".cjs")
_MOST_IN_LINES = 400


class DocumentFolder(FileDocuments):
    """The files of a folder, listed once; `skipped` holds the path and the reason of each that was skipped so far."""

    def __init__(
        self,
        folder: Path,
        glob: str | Sequence[str] = (),
        format: DocumentFormat = "auto",
        reading: Reading = _READING,
    ) -> None:
        patterns = (glob,) if isinstance(glob, str) else tuple(glob)
        super().__init__(iter(()), [], folder, are_texts=True)
        self.folder = folder
        self.glob = patterns
        self._format = format
        self._reading = reading
        # No path holds the character that stands for **/. The shortest match comes first, since `fnmatch` tries no
        # other one of what is between two asterisks.
        translated = [fnmatch.translate(_FOLDERS.sub("\0", each)).replace("\0", "(?:.*?/)??") for each in patterns]
        self._patterns = [("/" in each, re.compile(regex)) for each, regex in zip(patterns, translated, strict=True)]
        self.files: list[Path] = []
        self._list()
        self._listed = len(self.skipped)
        self.files.sort(key=lambda path: path.relative_to(folder).parts)
        kinds = {_suffix(path.name) for path in self.files if not path.name.lower().startswith("readme")}
        kinds = kinds - {".json"} or kinds  # what describes a data set
        self._is_data_set = len(kinds) == 1 and RECORD_FORMATS.get(kinds.pop()) in ("jsonl", "parquet")
        self.are_texts = not self._is_data_set and reading.pages == "texts"

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[InputDocument]:
        del self.skipped[self._listed :]  # those of an earlier iteration
        for path in self.files:
            yield from self.read(path)
        self.warn()

    def name(self, path: Path) -> str:
        """Return the path of a file relative to the folder, with slashes: the id of its document."""
        return path.relative_to(self.folder).as_posix()

    def read(self, path: Path) -> Iterator[InputDocument]:
        """Yield the documents of a file; one that cannot be read is skipped, as it may be one of thousands."""
        name, kind = self.name(path), RECORD_FORMATS.get(_suffix(path.name), "txt")
        records: Any = self._format if self._format not in ("auto", "whole") else kind
        try:
            if self._reading.pages == "images":
                yield from read_pictures(path, name, lambda reason: self._skip(path, reason))
                return
            if self._format == "whole" or records == "txt" or (records == "csv" and not self._has_text(path)):
                documents = read_file(path, name, self._reading.encoding)
                text = documents[0].text
                if not self.glob and _suffix(name) in _SCRIPTS and len(text) > _MOST_IN_LINES * (text.count("\n") + 1):
                    raise InvalidArgumentError("it is minified or generated; --glob reads it all the same")
                yield from documents
                return
            reading = self._reading._replace(on_problem="skip")
            found = read_records(path, records, name, reading)
            # without a warning of its own
            found.path = None
            number = -1
            partitions = dict(part.split("=", 1) for part in name.split("/")[:-1] if "=" in part)  # as Hive names them
            for number, document in enumerate(found):
                if self._is_data_set and document.id is not None:
                    yield document._replace(metadata={**partitions, **document.metadata})
                else:
                    id = number if document.id is None else document.id
                    yield document._replace(id=f"{name}#{id}", metadata={"path": name, **document.metadata})
            if number < 0:
                self._skip(path, "none of its records has a field 'text'")
            elif found.skipped:
                self._skip(path, f"{len(found.skipped):,} of its records: {found.skipped[0][1]}")
        except LatelierError as error:
            self._skip(path, cut(str(error).removeprefix(f"{path} ").removeprefix(f"{path}: "), 200))

    def warn(self) -> None:
        """Name the files that were skipped, those of one kind and for one reason in one line."""
        if not self.files:
            wanted = ", ".join(map(short, self.glob)) or "files of known formats"
            warn_caller(f"no file of {self.folder} is read: looked for {wanted} in it and its sub-folders.")
        if not self.skipped:
            return
        kinds: dict[tuple[str, str], list[str]] = {}
        for name, reason in self.skipped:
            kinds.setdefault((_suffix(name), reason), []).append(name if name.isprintable() else short(name))
        lines = []
        for (suffix, reason), names in sorted(kinds.items(), key=lambda kind: -len(kind[1])):
            several = f"{len(names):,} files {suffix or 'without a suffix'}, such as {names[0]}"
            lines.append(f"\n  {names[0] if len(names) == 1 else several}: {reason}")
        if len(lines) > _MOST_NAMED:
            more = f"\n  and files of {len(lines) - _MOST_NAMED:,} more kinds or reasons"
        else:
            more = ""
        plural = "" if len(self.skipped) == 1 else "s"
        warn_caller(f"skipped {len(self.skipped):,} file{plural} of {self.folder}:{''.join(lines[:_MOST_NAMED])}{more}")

    def _has_text(self, path: Path) -> bool:
        """Whether a CSV file has the columns of records; others are read as one text."""
        try:
            found = read_records(path, "csv", "", self._reading._replace(on_problem="skip"))
            return next(iter(found), None) is not None
        except InvalidArgumentError:
            return self._reading.fields.are_named

    def _list(self) -> None:
        """List the files below the folder; an error of the folder itself is raised, not recorded."""
        try:
            waiting = [(self.folder, [*os.scandir(self.folder)], list[_Rule]())]
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise InvalidArgumentError(f"there is no folder {str(self.folder)!r}.") from error
        except OSError as error:
            raise StorageError(f"cannot list {self.folder}: {error}.") from error
        while waiting:
            folder, entries, rules = waiting.pop()
            rules = [*rules, *(rule for name in _IGNORING for rule in _read_rules(folder / name))]
            for entry in entries:
                path = Path(entry.path)
                is_inner = entry.is_dir(follow_symlinks=False)
                if entry.name.startswith(".") or entry.name in _IGNORED or _is_ignored(path, rules, is_folder=is_inner):
                    continue
                if is_inner:
                    inner = self._inner_entries(path)
                    if not any(each.name in _OTHERS for each in inner):
                        waiting.append((path, inner, rules))
                elif (reason := self._why_not(path, entry.is_symlink())) is None:
                    self.files.append(path)
                elif reason:
                    self._skip(path, reason)

    def _inner_entries(self, path: Path) -> list[os.DirEntry[str]]:
        try:
            return [*os.scandir(path)]
        except OSError as error:
            self._skip(path, str(error))
            return []

    def _why_not(self, path: Path, is_link: bool) -> str | None:
        """Return why a path is not read; None if it is, and an empty text if no pattern matches it."""
        relative = self.name(path)
        matches = (pattern.match(relative if has_slash else path.name) for has_slash, pattern in self._patterns)
        if self._patterns and not (is_link and path.is_dir()) and not any(matches):
            return ""
        try:
            target = path.resolve(strict=True) if is_link else path
            kind = path.stat().st_mode
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
            if is_link:
                return f"a link that leads nowhere: {error}"
            return str(error)
        if is_link and stat.S_ISDIR(kind):
            return "a link to a folder"
        if is_link and not target.is_relative_to(self.folder.resolve()):
            return "a link to a file outside of the folder"
        if not stat.S_ISREG(kind):
            return "not a regular file"
        if self._reading.pages == "images":
            if is_picture(path.name):
                return None
            return "neither a PDF nor a picture"
        if self._patterns or is_readable(path) or _suffix(path.name) in RECORD_FORMATS:
            return None
        media = (mimetypes.guess_type(path.name)[0] or "").partition("/")[0]
        if media in ("image", "audio", "video", "font"):
            if is_picture(path.name):
                return "a picture: --pages images reads it, with a model of page images"
            return f"{media} has no text"
        return f"no known kind of text; --glob '*{path.suffix or path.name}' reads it as text"

    def _skip(self, path: Path, reason: str) -> None:
        self.skipped.append((self.name(path), reason))


class FileState(NamedTuple):
    """What an index keeps of a file: its time of change (ns), size and hash, when that was seen (ns), and its ids."""

    modified: int
    size: int
    digest: str
    seen: int
    ids: list[Id]

    def is_current(self, status: os.stat_result) -> bool:
        """Whether a file is unchanged by its status; a change so close to the last look may have the same time."""
        is_same = (status.st_mtime_ns, status.st_size) == (self.modified, self.size)
        return is_same and self.modified + _COARSEST < self.seen


# The coarsest time of change of a file system, FAT's, in nanoseconds.
_COARSEST = 2 * 10**9
# The key among the settings of the index: for each folder or file, the states of files by their names.
_SETTING = "files"


class Synchronised(NamedTuple):
    """How many documents of a source were new, changed, removed from the index, and unchanged; what was skipped.

    Examples
    --------
    >>> print(Synchronised(new=2, changed=1, removed=0, unchanged=40, skipped=[]))
    2 new, 1 changed, 40 unchanged
    """

    new: int
    changed: int
    removed: int
    unchanged: int
    skipped: list[tuple[str, str]]

    def __str__(self) -> str:
        """Return the numbers that are not zero, or that nothing has changed."""
        named = {name: getattr(self, name) for name in ("new", "changed", "removed", "unchanged")}
        return ", ".join(f"{count:,} {name}" for name, count in named.items() if count) or "nothing to do"


class Synchronisation:
    """Which files of a source, a folder or one file, are new or changed since an index was last filled from it."""

    def __init__(self, index: Index, source: Path) -> None:
        self._index = index
        self.key = str(source.resolve())
        self._all: dict[str, dict[str, list[Any]]] = dict(index.settings.get(_SETTING, None) or {})
        if self.key not in self._all and len(self._all) == 1 and not Path(only := next(iter(self._all))).exists():
            self._all[self.key] = self._all.pop(only)  # the source was moved
        self._known = {name: FileState(*state) for name, state in self._all.get(self.key, {}).items()}
        self._seen: dict[str, FileState] = {}
        self._taken = {name: key for key, files in self._all.items() if key != self.key for name in files}
        self.unchanged = 0

    def documents(self, folder: DocumentFolder) -> Iterator[InputDocument]:
        """Yield the documents of the files that are new or changed."""
        for path in folder.files:
            name = folder.name(path)
            if name in self._taken:
                reason = f"a file of {self._taken[name]} has its id in this index; give the folder an index of its own"
                folder.skipped.append((name, reason))
            elif not self._is_unchanged(path, name):
                ids = self._seen[name].ids
                for document in folder.read(path):
                    ids += [] if document.id is None else [document.id]
                    yield document

    def records(self, path: Path, documents: FileDocuments) -> Iterator[InputDocument]:
        """Yield the documents of a file; those without an id get that of a former run with the same text."""
        if self._is_unchanged(path, path.name):
            return
        before: dict[str | None, list[Id]] = {}
        known = self._known.get(path.name)
        stored = StoredDocuments(self._index)
        for record in stored.get([id for id in known.ids if id in stored]) if known else []:
            before.setdefault(record.text, []).append(record.id)
        for document in documents:
            if document.id is None and (again := before.get(document.with_title())):
                document = document._replace(id=again[0])
                self._seen[path.name].ids.append(again.pop(0))
            elif document.image is not None and document.id is not None:
                self._seen[path.name].ids.append(document.id)
            yield document

    def gone(self, folder: DocumentFolder | None) -> list[Id]:
        """Return the ids of documents that the source does not hold any more; files that cannot be read keep theirs."""
        unread = dict(folder.skipped) if folder else {}
        for name, state in self._known.items():
            is_there = folder is not None and bool(folder.glob) and (folder.folder / name).exists()
            if name not in self._seen and (name in unread or is_there):
                self._seen[name] = state
            elif name in unread and "is empty" not in unread[name]:
                self._seen[name].ids.extend(state.ids)
        held = {(type(id), id) for state in self._seen.values() for id in state.ids}
        return [id for state in self._known.values() for id in state.ids if (type(id), id) not in held]

    def store(self, *, is_complete: bool, numbers: list[Id]) -> None:
        """Keep what was seen; after an interruption, without what would take a file to be stored that is not."""
        if numbers and self._seen:
            next(iter(self._seen.values())).ids.extend(numbers)
        states = self._seen
        if not is_complete:
            before = {name: state._replace(digest="", seen=0) for name, state in states.items()} | self._known
            ids = {name: [*state.ids, *(states[name].ids if name in states else [])] for name, state in before.items()}
            states = {name: state._replace(ids=list(dict.fromkeys(ids[name]))) for name, state in before.items()}
        if states != self._known:
            files = {name: list(state) for name, state in states.items()}
            self._index.settings[_SETTING] = {**self._all, self.key: files}

    def _is_unchanged(self, path: Path, name: str) -> bool:
        known = self._known.get(name)
        now = time.time_ns()
        try:
            status = path.stat()
            if known is not None and known.is_current(status):
                self._seen[name] = known
            else:
                digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
                is_same = known is not None and digest == known.digest
                ids = known.ids if known is not None and is_same else []
                self._seen[name] = FileState(status.st_mtime_ns, status.st_size, digest, now, list(ids))
                if not is_same:
                    return False
        except OSError:  # an error when it is read
            self._seen[name] = FileState(0, 0, "", 0, [])
            return False
        self.unchanged += len(self._seen[name].ids)
        return True


class _Rule(NamedTuple):
    """A line of an ignore file: what the path below its folder has to match, and whether it takes files in again."""

    folder: Path
    pattern: re.Pattern[str]
    takes_in: bool
    is_for_folders: bool


def _read_rules(file: Path) -> Iterator[_Rule]:
    """Yield the rules of an ignore file, as git reads them; none if there is no such file."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        rule = line.rstrip()
        takes_in = rule.startswith("!")
        rule = rule.removeprefix("!")
        is_for_folders = rule.endswith("/")
        rule = rule.rstrip("/")
        if rule and not line.startswith("#"):
            anywhere = "" if "/" in rule else "(?:.*/)?"
            parts = re.split(r"(\*\*/|/\*\*$|\*|\?|\[[^]]+\])", rule.removeprefix("/"))
            regex = "".join(_WILD.get(part) or _literal(part) for part in parts)
            yield _Rule(file.parent, re.compile(anywhere + regex), takes_in, is_for_folders)


_WILD = {"**/": "(?:.*/)?", "/**": "/.*", "*": "[^/]*", "?": "[^/]"}


def _literal(part: str) -> str:
    if part.startswith("[") and part.endswith("]"):
        return part.replace("[!", "[^")
    return re.escape(part)


def _is_ignored(path: Path, rules: list[_Rule], *, is_folder: bool) -> bool:
    """Whether the last rule that matches a path leaves it out."""
    for rule in reversed(rules):
        if (is_folder or not rule.is_for_folders) and rule.pattern.fullmatch(path.relative_to(rule.folder).as_posix()):
            return not rule.takes_in
    return False
