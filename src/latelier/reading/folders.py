"""Folders: which of their files are read, and which of their folders could be listed."""

from __future__ import annotations

import codecs
import fnmatch
import itertools
import json
import mimetypes
import os
import re
import stat
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, TypeAlias, cast, get_args

from latelier.errors import EmptyTextError, InvalidArgumentError, LatelierError, StorageError
from latelier.reading.documents import RECORD_FORMATS, format_by_contents, looks_like_a_table, read_records
from latelier.reading.files import (
    has_reader,
    is_generated,
    read_file,
    read_pictures,
    read_stream,
    why_no_text,
    why_not_read,
)
from latelier.reading.images import is_picture
from latelier.reading.process import ReadingTimeoutError
from latelier.reading.records import (
    DocumentFields,
    FieldsTaken,
    FileDocuments,
    InputDocument,
    Pages,
    Reading,
    Skipped,
    SkipReason,
)
from latelier.reading.rows import OnProblem
from latelier.utils.checks import check_choice, check_unicode, cut, is_unicode, short
from latelier.utils.files import CATALOG, as_path, is_file, is_folder, parse_json, read_bytes
from latelier.utils.misc import warn_caller
from latelier.utils.values import Id, encode_fields

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


def spelled(path: Path) -> str:
    """Return an absolute path as a text that also holds names that are no Unicode, apart from all other names."""
    return json.dumps(os.path.abspath(path))  # noqa: PTH100 (links stay as they were given)


DocumentFormat: TypeAlias = Literal["auto", "jsonl", "csv", "tsv", "trec", "parquet", "txt", "whole"]


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
        A file, or a folder, of which each file is one document: any text, light markup, HTML, source code, Word,
        PowerPoint, OpenDocument, EPUB, Jupyter, mail, subtitles, and with the extra ``files`` PDF and sheets. ``.gz``
        is decompressed. The id is the path of the file relative to the folder, the title that of its front matter, else
        its first heading, else its name. Metadata are ``path``, ``title``, ``modified`` (UTC, ISO 8601) and the front
        matter, and of a passage its ``page`` or ``time``.
        JSONL and Parquet files, and CSV files with a column ``text``, hold a document in each record.

        Hidden files, ``node_modules``, virtual environments, Sphinx's ``_sources``, what ``.gitignore`` and
        ``.latelierignore`` name, and links to folders or out of the folder are left out. Files that cannot be read are
        skipped; a warning at the end, and the attribute `skipped`, name them, and what of the others was not read.
    format
        ``"jsonl"``: a record per line, with ``text``, optionally ``id`` and ``title``, and metadata under any other
        key; also one JSON array or object, and the dumps of Elasticsearch, Solr and Qdrant. ``"csv"``, ``"tsv"``,
        ``"parquet"``: columns of these names; in a TSV, a quote is a letter unless cells are quoted as in CSV, and
        without a header, the columns are id, text and title, as in MS MARCO's ``collection.tsv``, or numbers: ``id=1,
        text="3"``. ``"trec"``: TREC's SGML. ``"txt"``: a text per line. ``"whole"``: the file is one text, its name the
        id.
        ``"auto"``: by the file's extension; if that is unknown, by the first line.
    id, text, title, metadata
        Names of the fields of JSONL, CSV and Parquet files to take instead: of the id (default: ``id`` or ``_id``, else
        ``docno``, ``docid``, ``doc_id``, ``pid``, ``document_id`` or ``corpus_id``, in whatever case), of the text
        (several, and lists of texts, are joined by line ends), of the title, and of the metadata. Without `metadata`,
        all other fields are metadata. A field inside of another one is ``meta.year``.
    glob
        Patterns of the files of a folder, such as ``"*.rst"``; default: texts and known formats. A pattern with a slash
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
        For `Retriever.add` and `Retriever.update`; of a file, it can be iterated once. Its attribute `taken` then says
        which fields were taken for what: ``3,204 records; id from 'docid', text from 'title' and 'contents'``.

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
    documents: FileDocuments
    if is_folder(source):
        _check_encoding(encoding)
        documents = DocumentFolder(source, glob, format, reading)
    elif glob:
        raise InvalidArgumentError(f"received glob for {str(source)!r}, which is not a folder; name the file only.")
    else:
        documents = read_document_file(os.fspath(path), format, reading=reading)
    documents.options = json.dumps([format, *reading])
    return documents


def _check_encoding(name: str | None) -> None:
    try:
        codecs.lookup(name or "utf-8")
    except LookupError as error:
        raise InvalidArgumentError(f"received encoding={name!r}; expected one that Python knows, as cp1252.") from error


_READING = Reading()
_SKIPPING = Reading(on_problem="skip")


def read_document_file(
    file: str | Path | BinaryIO,
    format: DocumentFormat = "auto",
    *,
    name: str | None = None,
    reading: Reading = _READING,
) -> FileDocuments:
    """Return the documents of a path, a pipe, a device, or a file opened for bytes, which messages call `name`."""
    _check_encoding(reading.encoding)
    if name is None and isinstance(file, (str, Path)):
        source = str(file)
    else:
        source = name or "the file"
    path = Path(file) if isinstance(file, (str, Path)) else None
    if reading.pages == "images" and path is not None and is_picture(path.name):
        skipped: list[Skipped] = []
        skip = partial(_skip_page, skipped, source)
        documents = read_pictures(path, path.name, skip)
        return FileDocuments(documents, skipped, path)
    chosen: Any = format if format != "auto" else RECORD_FORMATS.get(_suffix(source), "auto")
    if format == "auto" and path is not None and is_file(path):
        if chosen in ("auto", "txt"):
            chosen = _format_of_text(path, chosen)
        elif _is_whole_object(path, reading):
            chosen = "whole"
    if chosen != "whole":
        return read_records(file, chosen, source, reading)
    if path is None:
        reading.check_of_text(source)
        return FileDocuments(iter([read_stream(cast("BinaryIO", file), source, reading.encoding)]), [], are_texts=True)
    if reading.pages == "images":
        raise InvalidArgumentError(
            f"{source} is no PDF, no picture, and no file of records, which pages='images' reads."
        )
    reading.check_of_text(source)
    try:
        texts = read_file(path, path.name, reading.encoding)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
    unread = [each for text in texts for each in text.unread]
    skipped = [Skipped(path.name, not_read(unread), SkipReason.UNREAD)] if unread else []
    return FileDocuments(iter(texts), skipped, path, are_texts=True)


def _suffix(name: str) -> str:
    return PurePosixPath(name.removesuffix(".gz")).suffix.lower()


def _format_of_text(path: Path, chosen: str) -> str:
    """Return the format of a file with a name that is that of texts or of nothing known, by its first lines."""
    found = format_by_contents(path)
    if found == "trec":
        return found
    if chosen == "txt":
        if looks_like_a_table(path):
            warn_caller(
                f"the lines of {str(path)!r} are rows with tabs, and are read as texts; format 'tsv' (--format tsv) "
                "reads them as a table, 'txt' as texts without this warning."
            )
        return chosen
    if has_reader(path) or (found is None and not _is_empty_or_unknown(path)):
        return "whole"
    return chosen


def _is_empty_or_unknown(path: Path) -> bool:
    """Whether a file has no text, is compressed without being named so, or cannot be read, which is told later."""
    try:
        with path.open("rb") as file:
            begin = file.read(4096)
    except OSError:
        return True
    return begin.startswith(b"\x1f\x8b") or not begin.lstrip(b"\xef\xbb\xbf \t\r\n").strip()


_MOST_NAMED = 10  # skipped files in a warning
_FOLDERS = re.compile(r"(?:^|(?<=/))(?:\*\*/)+")
_IGNORING = (".gitignore", ".latelierignore")
_IGNORED = frozenset({"node_modules", "__pycache__", "__MACOSX", "_sources"})  # the last: Sphinx's, beside its HTML
_OTHERS = frozenset({CATALOG, "pyvenv.cfg"})  # what an index and a virtual environment hold


class DocumentFolder(FileDocuments):
    """The files of a folder, listed once; `skipped` names each file and folder that was left out so far."""

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
        # The folders that were listed without an error, by their paths as in `name`, the folder itself as "".
        self._folders: dict[str, _ListedFolder] = {}
        self._list()
        self._listed = len(self.skipped)
        self.files.sort(key=lambda path: path.relative_to(folder).parts)
        kinds = {_suffix(path.name) for path in self.files if not path.name.lower().startswith("readme")}
        kinds = kinds - {".json"} or kinds  # what describes a data set
        self._is_data_set = len(kinds) == 1 and RECORD_FORMATS.get(kinds.pop()) in ("jsonl", "parquet", "trec")
        self.are_texts = not self._is_data_set and reading.pages == "texts"

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[InputDocument]:
        del self.skipped[self._listed :]  # those of an earlier iteration
        self.taken = FieldsTaken()
        for path in self.files:
            yield from self.read(path)
        self.warn()

    def name(self, path: Path) -> str:
        """Return the path of a file relative to the folder, with slashes: the id of its document."""
        return path.relative_to(self.folder).as_posix()

    def find(self, name: str) -> str | None:
        """Return None if a file is known not to be there; else its name, or the first folder that was not listed.

        Known: each folder from the root to the one that has no such entry was listed without an error.
        """
        folder = ""
        for part in name.split("/"):
            listed = self._folders.get(folder)
            if listed is None:
                return folder
            if part not in listed.names:
                return None
            folder = f"{folder}/{part}" if folder else part
        return name

    def place(self, name: str) -> Place:
        """Return where a file is: what the folders from the root down to it are, as far as they were listed."""
        place = self._folders[""].place
        folder = ""
        for part in name.split("/")[:-1]:
            folder = f"{folder}/{part}" if folder else part
            if folder not in self._folders:
                break
            place = self._folders[folder].place
        return place

    def read(self, path: Path) -> Iterator[InputDocument]:
        """Yield the documents of a file; one that cannot be read is skipped, as it may be one of thousands."""
        ids: set[Id | None] = set()
        twice: list[Id] = []
        faults: list[str] = []
        unread: list[str] = []
        try:
            for document in self._documents_of(path, self.name(path)):
                try:
                    _check_storable(document)
                except InvalidArgumentError as error:
                    faults.append(error.fact)
                    continue
                if document.id is not None and document.id in ids:
                    twice.append(document.id)
                    continue
                ids.add(document.id)
                unread += document.unread
                yield document
        except EmptyTextError as error:
            self.skip(path, str(error), SkipReason.EMPTY)
        except ReadingTimeoutError as error:
            self.skip(path, f"{error} It is not tried again until the file changes", SkipReason.TIME)
        except LatelierError as error:
            message = str(error).removeprefix(f"{path} ").removeprefix(f"{path}: ")
            self.skip(path, message, SkipReason.UNREADABLE)
        except Exception as error:  # noqa: BLE001 (a reader's own fault is that of one file)
            self.skip(path, f"{type(error).__name__}: {error}", SkipReason.UNREADABLE)
        if faults:
            several = f"{len(faults):,} of its documents: " if ids or len(faults) > 1 else ""
            self.skip(path, f"{several}{faults[0]}", SkipReason.RECORDS if ids else SkipReason.UNREADABLE)
        if unread:
            self.skip(path, not_read(unread), SkipReason.UNREAD)
        if twice:
            again = short(twice[0]) + (f" and {len(twice) - 1:,} more" if len(twice) > 1 else "")
            self.skip(path, f"of ids that are given twice, {again}, the first document is stored", SkipReason.ID)

    def _documents_of(self, path: Path, name: str) -> Iterator[InputDocument]:
        try:
            is_empty = path.stat().st_size == 0
        except OSError:  # an error when it is read
            is_empty = False
        if is_empty:
            raise EmptyTextError("it is empty.")
        kind: str = RECORD_FORMATS.get(_suffix(path.name), "txt")
        if _suffix(path.name) == ".txt" and self._format == "auto":
            kind = _format_of_text(path, kind)
        records: Any = self._format if self._format not in ("auto", "whole") else kind
        if self._reading.pages == "images":
            yield from read_pictures(path, name, partial(_skip_page, self.skipped, name))
        elif self._format == "whole" or records == "txt" or not self._has_text(path, records):
            documents = read_file(path, name, self._reading.encoding)
            if not self.glob and is_generated(name, documents[0].text):
                self.skip(path, "it is minified or generated; --glob reads it all the same", SkipReason.EXCLUDED)
            else:
                yield from documents
        else:
            yield from self._records_of(path, name, records)

    def _records_of(self, path: Path, name: str, format: Any) -> Iterator[InputDocument]:
        found = read_records(path, format, name, self._reading._replace(on_problem="skip"))
        found.path = None  # so that it does not warn of each file
        number = -1
        partitions = dict(part.split("=", 1) for part in name.split("/")[:-1] if "=" in part)  # as Hive names them
        for number, document in enumerate(found):
            if self._is_data_set and document.id is not None:
                yield document._replace(metadata={**partitions, **document.metadata})
            else:
                id = number if document.id is None else document.id
                yield document._replace(id=f"{name}#{id}", metadata={"path": name, **document.metadata})
        self.taken += found.taken
        if number < 0:
            self.skip(path, "none of its records has a field 'text'", SkipReason.RECORDS)
        elif found.skipped:
            first = found.skipped[0].message
            self.skip(path, f"{len(found.skipped):,} of its records: {first}", SkipReason.RECORDS)

    def warn(self, before: Container[tuple[str, str]] = ()) -> None:
        """Name the files that were skipped, those of one kind and for one reason in one line; excluded ones last.

        Those that were told `before`, by their names and messages, are only counted.
        """
        if not self.files:
            wanted = ", ".join(map(short, self.glob)) or "texts, and files of known formats"
            warn_caller(f"no file of {self.folder} is read: looked for {wanted} in it and its sub-folders.")
        kinds: dict[tuple[str, str], list[str]] = {}
        excluded = set()  # of these, kinds are left out, which is told last
        known = 0
        for name, message, reason in self.skipped:
            concerns_documents = reason in (SkipReason.ID, SkipReason.KEPT)  # each run names them
            if not concerns_documents and (name, message) in before:
                known += 1
                continue
            kinds.setdefault((_suffix(name), message), []).append(name if name.isprintable() else short(name))
            if reason is SkipReason.EXCLUDED:
                excluded.add(message)
        lines = []
        for (suffix, message), names in sorted(kinds.items(), key=lambda kind: (kind[0][1] in excluded, -len(kind[1]))):
            several = f"{len(names):,} files {suffix or 'without a suffix'}, such as {names[0]}"
            lines.append(f"\n  {names[0] if len(names) == 1 else several}: {message}")
        if known:
            lines.append(f"\n  {known:,} as before")
        if len(lines) > _MOST_NAMED:
            hidden = len(lines) - _MOST_NAMED
            listed = "latelier info INDEX --skipped, or the attribute skipped, lists all"
            more = f"\n  and files of {hidden:,} more kinds or reasons; {listed}"
        else:
            more = ""
        in_part = sum(each.reason is SkipReason.UNREAD for each in self.skipped)
        count = len(self.skipped) - in_part
        plural = "" if count == 1 else "s"
        lead = f"skipped {count:,} file{plural} of {self.folder}"
        if in_part:
            lead = f"{lead}, and read {in_part:,} in part" if count else f"read {in_part:,} of {self.folder} in part"
        if len(lines) == 1 and known:
            warn_caller(f"{lead}, as before")
        elif lines:
            warn_caller(f"{lead}:{''.join(lines[:_MOST_NAMED])}{more}")

    def skip(self, path: Path, message: str, reason: SkipReason) -> None:
        """Note that a file or a folder is left out."""
        self.skipped.append(Skipped(self.name(path), cut(message, _LONGEST_MESSAGE), reason))

    def _has_text(self, path: Path, format: Any) -> bool:
        """Whether a file of records has their fields; tables and single objects without them are read as one text."""
        if format not in ("csv", "tsv"):
            return not _is_whole_object(path, self._reading)
        try:
            found = read_records(path, format, path.name, self._reading._replace(on_problem="skip"))
            return next(iter(found), None) is not None
        except InvalidArgumentError:
            return self._reading.fields.are_named

    def _list(self) -> None:
        """List the files below the folder; an error of the folder itself is raised, not recorded."""
        try:
            root = _ListedFolder.of(self.folder)
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise InvalidArgumentError(f"there is no folder {str(self.folder)!r}.") from error
        except OSError as error:
            raise StorageError(f"cannot list {self.folder}: {error}.") from error
        waiting = [(root, list[_Rules]())]
        while waiting:
            folder, rules = waiting.pop()
            relative = self.name(folder.path)
            self._folders["" if relative == "." else relative] = folder
            rules = [*rules, *self._rules_in(folder)]
            for entry in folder.entries:
                path = Path(entry.path)
                try:
                    is_inner = entry.is_dir(follow_symlinks=False)
                    is_link = entry.is_symlink()
                except OSError as error:
                    self.skip(path, f"it cannot be looked at: {error}", SkipReason.UNREADABLE)
                    continue
                if entry.name.startswith(".") or entry.name in _IGNORED or _is_ignored(path, rules, is_folder=is_inner):
                    continue
                if is_inner:
                    try:
                        inner = _ListedFolder.of(path, folder)
                    except OSError as error:
                        self.skip(path, f"it cannot be listed: {error}", SkipReason.UNREADABLE)
                    else:
                        if not inner.names & _OTHERS:
                            waiting.append((inner, rules))
                elif self._takes(path, is_link):
                    self.files.append(path)
            folder.entries.clear()

    def _takes(self, path: Path, is_link: bool) -> bool:
        """Whether a file is read; if it has to be told why not, it is skipped."""
        relative = self.name(path)
        matches = (pattern.match(relative if has_slash else path.name) for has_slash, pattern in self._patterns)
        if self._patterns and not (is_link and is_folder(path)) and not any(matches):
            return False
        try:
            target = path.resolve(strict=True) if is_link else path
            kind = path.stat().st_mode
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
            lead = "a link that leads nowhere: " if is_link else ""
            self.skip(path, f"{lead}{error}", SkipReason.UNREADABLE)
            return False
        if not is_unicode(relative):
            message = "its name is not valid Unicode, so it cannot be an id; rename it"
            self.skip(path, message, SkipReason.UNREADABLE)
            return False
        message = self._exclusion(path, target, kind)
        if message:
            self.skip(path, message, SkipReason.EXCLUDED)
        return not message

    def _exclusion(self, path: Path, target: Path, kind: int) -> str:
        """Return why a file or a link, which leads to `target`, is of no kind that is read; else an empty text."""
        is_link = target is not path
        if is_link and stat.S_ISDIR(kind):
            return "a link to a folder"
        if is_link and not target.is_relative_to(self.folder.resolve()):
            return "a link to a file outside of the folder"
        if is_link and any(part.startswith(".") for part in target.relative_to(self.folder.resolve()).parts):
            return "a link to a hidden file"
        if not stat.S_ISREG(kind):
            return "not a regular file"
        if self._reading.pages == "images":
            return "" if is_picture(path.name) else "neither a PDF nor a picture"
        reason = why_not_read(path.name)
        is_known = has_reader(path) or _suffix(path.name) in RECORD_FORMATS
        if self._patterns or (is_known and not reason):
            return ""
        reason = reason or why_no_text(path, self._reading.encoding)
        media = (mimetypes.guess_type(path.name)[0] or "").partition("/")[0]
        if media == "image" and is_picture(path.name):
            return "a picture: --pages images reads it, with a model of page images"
        if media == "image" or (reason and media in ("audio", "video", "font")):
            return f"{media} has no text"
        return reason

    def _rules_in(self, folder: _ListedFolder) -> Iterator[_Rules]:
        """Yield the rules of the ignore files in a folder; what cannot be applied of them is told."""
        for name in _IGNORING:
            if name in folder.names:
                path = folder.path / name
                try:
                    rules, faults = _read_rules(path)
                except (OSError, InvalidArgumentError) as error:
                    self.skip(path, f"its rules are not applied: {error}", SkipReason.UNREADABLE)
                    continue
                yield rules
                if faults:
                    again = short(faults[0]) + (f" and {len(faults) - 1:,} more" if len(faults) > 1 else "")
                    message = f"rules that are not valid, or too long, are not applied: {again}"
                    self.skip(path, message, SkipReason.UNREADABLE)


_LONGEST_MESSAGE = 200  # characters of the reason why a file is skipped
_MOST_UNREAD = 5  # named of one file


def not_read(unread: Sequence[str]) -> str:
    """Return what a file holds besides what was read of it, in one line."""
    named = ", ".join(unread[:_MOST_UNREAD])
    if len(unread) > _MOST_UNREAD:
        named += f" and {len(unread) - _MOST_UNREAD:,} more"
    return f"{named} not read"


def _skip_page(skipped: list[Skipped], name: str, message: str) -> None:
    skipped.append(Skipped(name, message, SkipReason.UNREADABLE))


def _check_storable(document: InputDocument) -> None:
    """Check that tokenizers and the index can take a document, so that it is not an error of all others as well."""
    check_unicode(document.text, "its text")
    check_unicode(document.title, "its title")
    if isinstance(document.id, str):
        check_unicode(document.id, "its id")
    encode_fields(document.metadata, document.id or 0)


_LONGEST_OBJECT = 100_000  # bytes: larger ones are data, or written by programs


def _is_whole_object(path: Path, reading: Reading) -> bool:
    """Whether a file is one JSON object, such as a configuration, and no record: it is read as one text."""
    if _suffix(path.name) != ".json" or reading.fields.are_named or reading.pages == "images":
        return False
    try:
        value = parse_json(read_bytes(path, _LONGEST_OBJECT).decode("utf-8-sig"))
        records = read_records(path, "jsonl", path.name, _SKIPPING)
        records.path = None  # without a warning of its own
        return isinstance(value, dict) and next(iter(records), None) is None
    except (LatelierError, ValueError):  # it is no JSON, or cannot be read, which is told when it is read
        return False


class Place(NamedTuple):
    """Where a folder is: where its drive is mounted, and what each folder from the root down to it is.

    `folders`: of each the file system, by its UUID or what else the system names it by, and the inode.
    """

    mount: str
    folders: tuple[str, ...]

    def confirms(self, other: Place) -> bool:
        """Whether a file that was at another place before would be found by looking here, down to a missing folder."""
        return bool(self.folders) and (self.mount, self.folders) == (other.mount, other.folders[: len(self.folders)])


def _file_system(path: Path, device: int) -> str:
    """Return the name of the file system of a folder that stays if it is mounted anew, as far as the system has one."""
    with suppress(OSError):
        for link in Path("/dev/disk/by-uuid").iterdir():
            with suppress(OSError):
                if link.stat().st_rdev == device:
                    return link.name
    with suppress(OSError, AttributeError):  # Windows has no such function
        if number := os.statvfs(path).f_fsid:
            return f"{number:x}"
    return f"d{device:x}"


class _ListedFolder(NamedTuple):
    """A folder that was listed without an error: all names in it, its device and file system, and where it is."""

    path: Path
    entries: list[os.DirEntry[str]]
    names: frozenset[str]
    device: int
    system: str
    place: Place

    @classmethod
    def of(cls, path: Path, parent: _ListedFolder | None = None) -> _ListedFolder:
        """List a folder, which is in another one that was listed, or is the root; raise an OSError if it cannot be."""
        with os.scandir(path) as found:
            entries = list(found)
        status = path.stat()
        device = status.st_dev
        if parent is not None and device == parent.device:
            system = parent.system
            mount = parent.place.mount
        else:
            system = _file_system(path, device)
            top = path.resolve()
            while parent is None and top != top.parent and top.parent.stat().st_dev == device:
                top = top.parent
            mount = spelled(top)
        above = () if parent is None else parent.place.folders
        place = Place(mount, (*above, f"{system}:{status.st_ino:x}"))
        return cls(path, entries, frozenset(entry.name for entry in entries), device, system, place)


class _Rules(NamedTuple):
    """The rules of an ignore file, for paths relative to its folder."""

    folder: Path
    spec: GitIgnoreSpec


_LONGEST_RULES = 1 << 20  # bytes of an ignore file
_MOST_RULES = 10_000
_LONGEST_RULE = 1000  # characters


def _read_rules(file: Path) -> tuple[_Rules, list[str]]:
    """Return the rules of an ignore file, as git reads them, and those that are none."""
    from pathspec import GitIgnoreSpec  # only if there is an ignore file
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    if not stat.S_ISREG(file.stat().st_mode):
        raise InvalidArgumentError("it is not a regular file.")
    with file.open("rb") as opened:
        data = opened.read(_LONGEST_RULES + 1)
    lines = data.removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape").split("\n")
    if len(data) > _LONGEST_RULES or len(lines) > _MOST_RULES:
        raise InvalidArgumentError(f"it has more than {_LONGEST_RULES:,} bytes or {_MOST_RULES:,} lines.")
    patterns = []
    faults = []
    for line in lines:
        try:
            if len(line) > _LONGEST_RULE:
                raise ValueError
            regex, is_ignored = GitIgnoreSpecPattern.pattern_to_regex(line)
            if regex is not None:
                patterns.append(GitIgnoreSpecPattern(re.compile(linear_regex(regex), re.DOTALL), is_ignored))
        except (ValueError, re.error):
            faults.append(line)
    return _Rules(file.parent, GitIgnoreSpec(patterns, backend="simple")), faults


# What pathspec makes of ** before and within a path, of * within a name, and all else.
_GAPS = {"(?:.+/)?": "(?:.+?/)??", "(?:/.+)?": "(?:/.+?)??"}
_TOKEN = re.compile(r"\(\?:\.\+/\)\?|\(\?:/\.\+\)\?|\(\?P<\w+>/\)|\[\^?\]?[^]]*\][*+]?|\\.|.", re.DOTALL)
_ANY = "[^/]*"


def linear_regex(regex: str) -> str:
    """Return a regular expression of pathspec that takes linear time for what matches or does not.

    Of several gaps (* in a name, ** in a path), each but the last is matched at its first place only: what comes after
    it begins with another gap, so a later place would find no more.
    """
    count = itertools.count()

    def once(pattern: str) -> str:
        name = f"first{next(count)}"
        return f"(?=(?P<{name}>{pattern}))(?P={name})"  # an atomic group, which Python has from 3.11 on

    def divide(tokens: Iterable[str], separators: Container[str]) -> list[list[str]]:
        pieces: list[list[str]] = [[]]
        for token in tokens:
            if token in separators:
                pieces += [[token], []]
            else:
                pieces[-1].append(token)
        return pieces

    def within_names(tokens: list[str]) -> str:
        made = ""
        for piece in divide(tokens, ("/",)):
            first, *others = divide(piece, (_ANY,))
            made += "".join(first)
            for inner in others[1:-2:2]:
                made += once(f"[^/]*?{''.join(inner)}")
            if others:
                made += _ANY + "".join(others[-1])
        return made

    begin, *others = divide(_TOKEN.findall(regex), _GAPS)
    made = within_names(begin)
    for gap, piece in zip(others[:-2:2], others[1:-2:2], strict=True):
        made += once(f"{_GAPS[gap[0]]}{within_names(piece)}(?=/)")
    if others:
        made += "".join(others[-2]) + within_names(others[-1])
    return made


def _is_ignored(path: Path, rules: list[_Rules], *, is_folder: bool) -> bool:
    """Whether the innermost ignore file with a rule for a path leaves it out."""
    for folder, spec in reversed(rules):
        relative = path.relative_to(folder).as_posix()
        is_ignored = spec.check_file(f"{relative}/" if is_folder else relative).include
        if is_ignored is not None:
            return is_ignored
    return False
