"""The text of a file, whatever its format, as Markdown, with what it says about itself: title, headings, pages.

Each format has a reader, which returns `Content`: its text, and what of the file it did not read. What has none and is
text is read as it is. Nothing in a file is executed or fetched, and what is taken of an archive is limited.
"""

from __future__ import annotations

import codecs
import datetime
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from latelier.errors import EmptyTextError, InvalidArgumentError, LatelierError
from latelier.reading.content import LONGEST_NAME, MOST_BYTES, Content, check_length, counted, decoded
from latelier.reading.front_matter import FrontMatter, front_matter
from latelier.reading.images import Picture, is_pdf, page_count, page_text
from latelier.reading.mail import read_mail, read_mailbox
from latelier.reading.markup import SUFFIXES as MARKUP
from latelier.reading.markup import outline, rows_below_header, with_lead
from latelier.reading.notebooks import read_notebook
from latelier.reading.office import read_open_document, read_slides, read_word
from latelier.reading.pdf import read_pdf
from latelier.reading.process import in_worker
from latelier.reading.records import HEADINGS, InputDocument, Part
from latelier.reading.sheets import read_sheets
from latelier.reading.source_code import SUFFIXES as CODE
from latelier.reading.source_code import definitions
from latelier.reading.web_pages import read_book, read_web_page
from latelier.utils.checks import cut, is_unicode
from latelier.utils.files import open_binary, read_bytes

Reader = Callable[[bytes, "str | None"], Iterable[Content]]
_TABLES = frozenset({".csv", ".tsv"})
_SHEETS = frozenset({".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"})
# Texts that are read in cp1252 if they are in no other encoding; a text of any other name has to be in UTF-8.
_PLAIN = frozenset({".txt", ".text", ".log", *_TABLES})


def has_reader(path: Path) -> bool:
    """Whether a file is of a format with a reader, or one that is text, by its name or its first line."""
    kind = kind_of(path)
    return kind in _READERS or kind in _PLAIN or kind in MARKUP or kind in CODE


def keeps_lines(name: str) -> bool:
    """Whether a line of the text that is stored of a file is the same line of the file."""
    suffix = _suffix(name)
    return suffix in _PLAIN or suffix in MARKUP or suffix in CODE


def is_code(name: str) -> bool:
    """Whether a file is source code, by its name."""
    return _suffix(name) in CODE


def is_subtitle(name: str) -> bool:
    """Whether a file has times at which its texts are said, by its name."""
    return _suffix(name) in (".srt", ".vtt")


def _suffix(name: str) -> str:
    return PurePosixPath(name.removesuffix(".gz")).suffix.lower()


def kind_of(path: Path) -> str:
    """Return the suffix of a file without .gz; of a mail or a mailbox with another one, which is usual, theirs."""
    suffix = _suffix(path.name)
    known = suffix in _READERS or suffix in _PLAIN or suffix in MARKUP or suffix in CODE
    try:
        with path.open("rb") if not known and path.is_file() else io.BytesIO() as file:
            found = _MAIL.match(file.read(1000))
    except OSError:  # an error when it is read
        return suffix
    if found is None:
        return suffix
    if found["box"]:
        return ".mbox"
    return ".eml"


_MAIL = re.compile(rb"(?P<box>From [^\n]*\n)?(?:Return-Path|Received|Delivered-To|Message-ID|X-[\w-]+|From): ", re.I)
_BEGINNING = 1 << 16  # bytes
_PACKED = "an archive; unpack it"
_ARMOR = re.compile(r"\s*-----BEGIN [A-Z ]+-----")


def why_no_text(path: Path, encoding: str | None) -> str:
    """Return why a file does not begin as a text in UTF-8, UTF-16 with its mark, or the encoding that is given."""
    is_compressed = path.name.endswith(".gz")
    try:
        with open_binary(path) as file:
            source: Any = gzip.GzipFile(fileobj=file) if is_compressed else file
            data = source.read(_BEGINNING)
    except (LatelierError, OSError, EOFError, zlib.error):
        return _PACKED if is_compressed else ""  # an error when it is read
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in data:
        return _PACKED if is_compressed else "a binary file has no text"
    try:
        text = codecs.getincrementaldecoder(encoding or "utf-8")().decode(data)
    except UnicodeDecodeError:
        return f"no text in {(encoding or 'utf-8').upper()}; --encoding names that of a text"
    return "a key, or an encrypted text" if _ARMOR.match(text) else ""


def read_file(path: Path, name: str, encoding: str | None = None) -> list[InputDocument]:
    """Return the document that a file is, or those in it (the messages of a mailbox); ids begin with `name`.

    What has more of a format than light markup and source code is read in another process, see `in_worker`.
    """
    if not is_unicode(name):
        raise InvalidArgumentError("its name is not valid Unicode, so it cannot be an id; rename it.")
    if kind_of(path) not in _READERS:
        return [*_documents(path, name, encoding)]
    values = in_worker(documents_as_values, str(path.absolute()), name, encoding)
    return [InputDocument.of_values(*each) for each in values]


def read_stream(file: BinaryIO, name: str, encoding: str | None = None) -> InputDocument:
    """Return the document that a stream of text or Markdown is, with `name` as its id."""
    text = decoded(file.read(MOST_BYTES), encoding)
    if not text.strip():
        raise EmptyTextError("it is empty.")
    return _document(Content(text), ".md", name, "", {})


def documents_as_values(path: str, name: str, encoding: str | None) -> Iterator[list[Any]]:
    """Yield the documents of a file in the process that reads, as they are sent to the other one."""
    return (document.values() for document in _documents(Path(path), name, encoding))


def _documents(path: Path, name: str, encoding: str | None) -> Iterator[InputDocument]:
    kind = kind_of(path)
    data = read_bytes(path, MOST_BYTES)
    metadata = {"path": name, "modified": _modified(path)}
    unread: tuple[str, ...] = ()
    is_empty = True
    for content in _contents(data, kind, encoding):
        check_length(content.text)
        if content.text.strip() or content.title:
            is_empty = False
            yield _document(content, kind, name, _default_title(name, kind), metadata)
        unread += content.unread
    if is_empty:
        raise EmptyTextError(f"it holds no text, only {', '.join(unread)}." if unread else "it is empty.")


def _contents(data: bytes, kind: str, encoding: str | None) -> Iterator[Content]:
    """Yield what a file of some kind holds; what readers of damaged files raise has no end."""
    reader = _READERS.get(kind)
    try:
        if reader is None:
            yield Content(decoded(data, encoding))
        else:
            yield from reader(data, encoding)
    except LatelierError:
        raise
    except Exception as error:
        reason = cut(str(error) or type(error).__name__, 200)
        raise InvalidArgumentError(f"it is damaged, or no {kind} file: {reason}.") from error


def _default_title(name: str, kind: str) -> str:
    plain = PurePosixPath(name.removesuffix(".gz"))
    if kind in _READERS or kind in _PLAIN or kind in MARKUP:
        return plain.stem
    return name if kind in CODE else plain.name


def _document(content: Content, kind: str, name: str, title: str, metadata: dict[str, Any]) -> InputDocument:
    """Return a document with its own title, else `title`, and its parts."""
    text = content.text
    matter = front_matter(text, kind) if kind in MARKUP else FrontMatter({})
    heading = ""
    parts = content.parts or (Part(0),)
    if kind in CODE:
        parts = definitions(text)
    elif kind in _TABLES:
        parts = rows_below_header(text)
    elif kind in MARKUP or (kind in _READERS and not content.parts):
        found = outline(text, matter.begin, kind if kind in MARKUP else ".md")
        heading = "" if kind in _SHEETS else found.title  # which is that of one sheet
        parts = tuple(found.parts)
    if matter.lead:
        parts = with_lead(parts, text, matter.lead)
    own = cut(" ".join((content.title or str(matter.values.get("title") or "") or heading).split()), LONGEST_NAME)
    parts = tuple(part._replace(headings=_without(own, part.headings)) for part in parts)
    values = {**matter.values, **content.metadata, **metadata}
    if own:
        values["title"] = own
    id = f"{name}#{content.own}" if content.own else name
    unread = (*content.unread, matter.fault) if matter.fault else content.unread
    return InputDocument(id, text, values, own or title, parts, unread=unread)


def _without(title: str, headings: str) -> str:
    """Return the headings above a part without a first one that is in the title, which is put before them."""
    first, _, others = headings.partition(HEADINGS)
    return others if first in title else headings


def read_pictures(path: Path, name: str, skip: Callable[[str], None]) -> Iterator[InputDocument]:
    """Yield a picture, or each page of a PDF as one, with its own text; `skip` is told of a page that is left out."""
    shared = {"path": name, "modified": _modified(path)}
    if not is_pdf(path):
        picture = Picture.of(path)
        yield InputDocument(name, "", {**shared, **picture.metadata}, image=picture)
        return
    for page in range(1, page_count(path) + 1):
        try:
            picture = Picture.of(path, page)
        except InvalidArgumentError as error:
            skip(f"page {page}: {error.fact.removeprefix(f'{path}: ')}")
        else:
            text = page_text(path, page)
            yield InputDocument(f"{name}#{page}", text, {**shared, **picture.metadata}, image=picture)


def _modified(path: Path) -> str:
    changed = datetime.datetime.fromtimestamp(int(path.stat().st_mtime), datetime.timezone.utc)
    return changed.strftime("%Y-%m-%dT%H:%M:%SZ")


def _read_attachment(data: bytes, name: str, *, encoding: str | None) -> Iterator[Content]:
    """Yield what a file that is attached to a mail holds."""
    kind = _suffix(name)
    reason = why_not_read(name) or ("no text" if b"\0" in data else "")
    if kind not in _READERS and reason:
        raise InvalidArgumentError(reason)
    return _contents(data, kind, encoding)


def _of_bytes(read: Callable[[bytes], Iterable[Content]]) -> Reader:
    return lambda data, encoding: read(data)


def _of_mail(read: Callable[..., Iterable[Content]]) -> Reader:
    return lambda data, encoding: read(data, partial(_read_attachment, encoding=encoding))


# Subtitles, SubRip and WebVTT: what is said, with the time at which it is.

_TIMES = re.compile(r"[ \t]*((?:\d+:)?\d\d?:\d\d)(?:[.,]\d+)?[ \t]*-->")
_HEADS = ("WEBVTT", "STYLE", "REGION", "NOTE", "X-TIMESTAMP")
_VOICE = re.compile(r"<v(?:\.[^ <>]*)?[ \t]+([^<>]+)>")
_TAGS = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")


def read_subtitles(data: bytes, encoding: str | None = None) -> Iterator[Content]:
    """Yield the text of subtitles, each on lines of its own, as a part with its time."""
    text = ""
    parts = [Part(0)]
    remarks = 0
    for block in re.split(r"\n[ \t]*\n", decoded(data, encoding).replace("\r\n", "\n")):
        lines = block.strip("\n").split("\n")
        at = next((number for number, line in enumerate(lines) if _TIMES.match(line)), None)
        if at is None and lines[0].startswith(_HEADS):
            remarks += lines[0].startswith("NOTE")
            continue
        first = 0 if at is None else at + 1
        said = [_TAGS.sub("", _VOICE.sub(r"\1: ", line)).strip() for line in lines[first:]]
        if any(said):
            text += "\n\n" if text else ""
            if at is not None:
                parts.append(Part(len(text), time=_time(lines[at])))
            text += "\n".join(filter(None, said))
    yield Content(text, parts=tuple(parts), unread=counted(["remark"] * remarks))


def _time(line: str) -> str:
    """Return the time at which a line of times begins, with its hours."""
    found = _TIMES.match(line)
    time = found[1] if found else ""
    return ":".join(part.zfill(2) for part in time.split(":")) if time.count(":") == 2 else f"00:{time.zfill(5)}"


_READERS: dict[str, Reader] = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), read_web_page),
    **dict.fromkeys((".srt", ".vtt"), read_subtitles),
    **dict.fromkeys((".docx", ".docm", ".dotx"), _of_bytes(read_word)),
    **dict.fromkeys((".pptx", ".pptm", ".ppsx"), _of_bytes(read_slides)),
    **dict.fromkeys(_SHEETS, _of_bytes(read_sheets)),
    **dict.fromkeys((".odt", ".odp", ".ott"), _of_bytes(read_open_document)),
    ".pdf": _of_bytes(read_pdf),
    ".epub": _of_bytes(read_book),
    ".ipynb": _of_bytes(read_notebook),
    ".eml": _of_mail(read_mail),
    ".mbox": _of_mail(read_mailbox),
}
# Formats that hold text and have no reader, and what to do with a file.
_NOT_READ = {
    **dict.fromkeys((".doc", ".dot", ".wpd", ".wps", ".rtf", ".pages"), "is not read; save it as .docx"),
    **dict.fromkeys((".ppt", ".pps", ".key"), "is not read; save it as .pptx"),
    ".numbers": "is not read; save it as .xlsx",
    **dict.fromkeys((".msg", ".pst", ".ost"), "is not read; save its mails as .eml or .mbox"),
    **dict.fromkeys((".mobi", ".azw", ".azw3", ".djvu"), "is not read; convert it to .epub or .pdf"),
}
_LOCKS = frozenset({"package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "go.sum"})
_ARCHIVES = frozenset([".zip", ".tar", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar", ".jar", ".whl", ".iso", ".dmg"])


def why_not_read(name: str) -> str:
    """Return why a file is not read that may be text for a program, by its name; empty if there is no reason."""
    suffix = _suffix(name)
    if suffix in _NOT_READ:
        return f"{suffix} {_NOT_READ[suffix]}"
    if name.lower() in _LOCKS or suffix == ".lock":
        return "a lock file, which programs write; --glob reads it all the same"
    if suffix in _ARCHIVES:
        return _PACKED
    return ""


_MOST_IN_LINES = 400  # of people, lines have fewer characters in the mean
_LEAST_SPACE = 25  # and a space in so many characters at least, where words have spaces between them


def is_generated(name: str, text: str) -> bool:
    """Whether a text that is neither a document nor a table is minified, or written by a program."""
    if _suffix(name) in (".txt", ".text") or _suffix(name) in MARKUP or _suffix(name) in _READERS:
        return False
    begin = text[:_BEGINNING]
    has_long_lines = len(text) > _MOST_IN_LINES * (text.count("\n") + 1)
    return has_long_lines and (is_code(name) or (begin.isascii() and len(begin) > _LEAST_SPACE * begin.count(" ")))
