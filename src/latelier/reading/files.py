"""The text of a file, whatever its format, as Markdown, with what it says about itself: title, headings, pages.

Office files, EPUB, mail and HTML are read by the standard library, PDF by pypdfium2 (the extra ``files``). Nothing in a
file is executed or fetched, and what is taken of an archive is limited.
"""

from __future__ import annotations

import base64
import codecs
import datetime
import io
import itertools
import quopri
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from html import unescape
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple
from xml.etree import ElementTree

from latelier.errors import EmptyTextError, InvalidArgumentError, LatelierError
from latelier.reading.images import Picture, is_pdf, page_count, page_text
from latelier.reading.process import in_worker
from latelier.reading.records import HEADINGS, InputDocument, Part
from latelier.utils.checks import cut, is_unicode
from latelier.utils.files import LONGEST_LINE, parse_json, read_bytes
from latelier.utils.misc import needs_extra

_MARKDOWN = (".md", ".markdown", ".mdx", ".qmd", ".rmd", ".rst")
_PLAIN = (".txt", ".text", ".log", ".org", ".adoc", ".asciidoc", ".tex", ".textile", ".csv", ".tsv")
_CODE_SUFFIXES = """
.py .pyi .pyx .js .jsx .mjs .cjs .ts .tsx .vue .svelte .java .kt .kts .scala .groovy .clj .go .rs .c .h .cc .cpp .cxx
.hh .hpp .cs .fs .vb .swift .m .mm .rb .php .pl .pm .lua .r .jl .hs .ml .mli .ex .exs .erl .elm .dart .nim .zig .sh
.bash .zsh .fish .ps1 .bat .sql .proto .graphql .toml .yaml .yml .ini .cfg .conf .cmake .gradle .tf .nix .el .lisp
.scm .asm .s .f .f90 .pas .d .v .sv .vhd
"""
_CODE = frozenset(_CODE_SUFFIXES.split())
_NAMES = frozenset({"readme", "license", "copying", "authors", "changelog", "changes", "news", "todo", "makefile"})
_MOST_BYTES = 1 << 28  # of a file, and of what is taken of an archive


class Content(NamedTuple):
    """A text as Markdown; `pages` are the positions where pages begin, `own` the part of the id within the file."""

    text: str
    title: str = ""
    metadata: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    pages: tuple[int, ...] = ()
    own: str = ""


def is_readable(path: Path) -> bool:
    """Whether a file is of a kind that `read_file` reads, by its name or its first line."""
    return path.name.removesuffix(".gz").lower() in _NAMES or _kind(path) in _KINDS


def keeps_lines(name: str) -> bool:
    """Whether a line of the text that is stored of a file is the same line of the file."""
    return PurePosixPath(name.removesuffix(".gz")).suffix.lower() in {*_MARKDOWN, *_PLAIN, *_CODE}


def is_code(name: str) -> bool:
    """Whether a file is source code, by its name."""
    return PurePosixPath(name.removesuffix(".gz")).suffix.lower() in _CODE


def _kind(path: Path) -> str:
    """Return the suffix of a file without .gz; of a mail or a mailbox with another one, which is usual, theirs."""
    suffix = PurePosixPath(path.name.removesuffix(".gz")).suffix.lower()
    try:
        with path.open("rb") if suffix not in _KINDS and path.is_file() else io.BytesIO() as file:
            found = _MAIL.match(file.read(1000))
    except OSError:  # an error when it is read
        return suffix
    if found is None:
        return suffix
    if found["box"]:
        return ".mbox"
    return ".eml"


_MAIL = re.compile(rb"(?P<box>From [^\n]*\n)?(?:Return-Path|Received|Delivered-To|Message-ID|X-[\w-]+|From): ", re.I)


def read_file(path: Path, name: str, encoding: str | None = None) -> list[InputDocument]:
    """Return the document that a file is, or those in it (the messages of a mailbox); ids begin with `name`.

    What has more of a format than Markdown and source code is read in another process, see `in_worker`.
    """
    if not is_unicode(name):
        raise InvalidArgumentError("its name is not valid Unicode, so it cannot be an id; rename it.")
    if _kind(path) not in _READERS:
        return _documents(path, name, encoding)
    values = in_worker(documents_as_values, str(path.absolute()), name, encoding)
    return [InputDocument.of_values(*each) for each in values]


def read_stream(file: BinaryIO, name: str, encoding: str | None = None) -> InputDocument:
    """Return the document that a stream of text or Markdown is, with `name` as its id."""
    text = _decoded(file.read(_MOST_BYTES), encoding)
    if not text.strip():
        raise EmptyTextError("it is empty.")
    begin = _front_matter(text)[1]
    title, parts = _outline(text, begin)
    parts = tuple(part._replace(headings=_without(title, part.headings)) for part in parts)
    return InputDocument(name, text, {}, title, parts)


def documents_as_values(path: str, name: str, encoding: str | None) -> Iterator[list[Any]]:
    """Yield the documents of a file in the process that reads, as they are sent to the other one."""
    return (document.values() for document in _documents(Path(path), name, encoding))


def _documents(path: Path, name: str, encoding: str | None) -> list[InputDocument]:
    plain = PurePosixPath(name.removesuffix(".gz"))
    data = read_bytes(path, _MOST_BYTES)
    suffix = _kind(path)
    try:
        modified = _modified(path)
        reader = _READERS.get(suffix)
        if reader:
            contents = list(reader(data))
        else:
            contents = [Content(_decoded(data, encoding))]
    except LatelierError:
        raise
    except Exception as error:  # what readers of damaged files raise has no end
        reason = cut(str(error) or type(error).__name__, 200)
        raise InvalidArgumentError(f"it is damaged, or no {suffix} file: {reason}.") from error
    is_markdown = reader is not None or suffix in _MARKDOWN
    documents = []
    for content in contents:
        _check_length(content.text)
        if not (content.text.strip() or content.title):
            if len(contents) > 1:
                continue
            if suffix == ".pdf":
                raise InvalidArgumentError("it holds pictures of pages, and no text; recognise it first.")
            raise EmptyTextError("it is empty.")
        if suffix in _MARKDOWN:
            matter, begin = _front_matter(content.text)
        else:
            matter = {}
            begin = 0
        # What begins with # on a page of a PDF is a remark of some program, no heading.
        is_outlined = is_markdown and not content.pages
        if is_outlined:
            heading, parts = _outline(content.text, begin)
        else:
            heading = ""
            parts = (Part(0),)
        if suffix in _CODE:
            parts = _definitions(content.text)
        own = cut(content.title or str(matter.get("title") or "") or heading, _LONGEST_NAME)
        parts = tuple(part._replace(headings=_without(own, part.headings)) for part in parts)
        if content.pages:
            parts = tuple(Part(start, page=page, is_apart=True) for page, start in enumerate(content.pages, start=1))
        metadata = {**matter, **content.metadata, "path": name, "modified": modified}
        title = own or (name if suffix in _CODE else plain.stem)
        id = f"{name}#{content.own}" if content.own else name
        documents.append(InputDocument(id, content.text, metadata | ({"title": own} if own else {}), title, parts))
    return documents


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


def _decoded(data: bytes, encoding: str | None = None) -> str:
    """Return a text in the encoding that is given, or in UTF-16 with its mark, UTF-8, or else cp1252."""
    if encoding is None:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            encoding = "utf-16"
        else:
            encoding = "utf-8-sig"
    try:
        text = data.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        if encoding != "utf-8-sig" or b"\0" in data:
            raise InvalidArgumentError(f"it is no text in {encoding.upper().removesuffix('-SIG')}.") from error
        text = data.decode("cp1252", errors="replace")
    _check_length(text)
    return text


def _check_length(text: str) -> None:
    if len(text) > LONGEST_LINE:
        raise InvalidArgumentError(f"it is longer than {LONGEST_LINE:,} characters; split it.")


# Codecs that are no encodings of texts, or take time of the second power.
_NO_CHARSETS = frozenset({"idna", "punycode", "raw_unicode_escape", "undefined", "unicode_escape"})


def _charset(name: str | None) -> str | None:
    """Return the encoding that a file says to have, if there is such a one."""
    try:
        known = codecs.lookup(name or "").name.replace("-", "_")
    except (LookupError, ValueError):  # ValueError: a null character
        return None
    return None if known in _NO_CHARSETS else known


_MATTER = re.compile(r"---[ \t]*\r?\n(.*?\n)(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_ENTRY = re.compile(r"([\w-]+):(?:[ \t]+(.*))?")


def _front_matter(text: str) -> tuple[dict[str, Any], int]:
    """Return the plain values and lists of the YAML before a Markdown text, and where the text begins."""
    found = _MATTER.match(text)
    if not found:
        return {}, 0
    matter: dict[str, Any] = {}
    name = ""
    for line in found[1].splitlines():
        if entry := _ENTRY.fullmatch(line.rstrip()):
            name = entry[1]
            value = (entry[2] or "").strip()
            if value.startswith("[") and value.endswith("]"):
                inner = value[1:-1].split(",")
            else:
                inner = None
            if inner is not None:
                matter[name] = [_unquoted(each) for each in inner if each.strip()]
            else:
                matter[name] = _unquoted(value)
        elif name and line.lstrip().startswith("- "):
            if not isinstance(matter[name], list):
                matter[name] = []
            matter[name].append(_unquoted(line.lstrip()[2:]))
    return {name: value for name, value in matter.items() if value not in ("", [])}, found.end()


def _unquoted(value: str) -> str:
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]")
_LONGEST_NAME = 1000  # of a title, a heading or a definition, which is put before each passage below it
_UNDERLINE = re.compile(r" {0,3}(=+|-+|~{3,}|\^{3,})[ \t]*")
# Code, items of a list, quotes, tables and HTML: dashes below are no underline.
_NO_PARAGRAPH = re.compile(r"    |\t| {0,3}(?:[-*+][ \t]|\d+[.)][ \t]|[>|<])")


def _outline(text: str, begin: int) -> tuple[str, tuple[Part, ...]]:
    """Return the first heading of a Markdown text, and its parts with the headings above them; code has none."""
    above: list[tuple[int, str]] = []
    parts = [Part(begin)]
    first = ""
    fence = ""
    at = begin
    block: list[tuple[int, str]] = []  # the lines since the last blank one, with their positions
    for line in text[begin:].splitlines(keepends=True):
        start = at
        at = at + len(line)
        line = line.rstrip("\r\n")
        opened = _FENCE.match(line)
        heading = None
        if opened and not fence:
            fence = opened[1]
        elif opened and opened[1].startswith(fence):
            fence = ""
        elif not fence and (found := _HEADING.match(line)) and (name := _heading(line[found.end() :])):
            heading = len(found[1]), cut(name, _LONGEST_NAME)
        elif not fence and len(block) == 1 and (found := _UNDERLINE.fullmatch(line)) and _is_paragraph(block[0][1]):
            heading = "=-~^".index(found[1][0]) + 1, cut(block[0][1].strip(), _LONGEST_NAME)
            start = block[0][0]
        if heading:
            first = first or heading[1]
            above = [each for each in above if each[0] < heading[0]]
            parts.append(Part(start, HEADINGS.join(name for _, name in above)))
            above.append(heading)
            parts.append(Part(at, HEADINGS.join(name for _, name in above)))
        if line.strip() and not (fence or opened or heading):
            block = [*block[:1], (start, line)]
        else:
            block = []
    return first, tuple(parts)


def _heading(line: str) -> str:
    """Return the text of a heading, of what stands after its # and a space; more # at its end are no part of it."""
    return line.strip(" \t").rstrip("#").rstrip(" \t")


def _is_paragraph(line: str) -> bool:
    return any(map(str.isalnum, line)) and not _NO_PARAGRAPH.match(line)


def _without(title: str, headings: str) -> str:
    """Return the headings above a part without the title, which is put before them."""
    if title:
        return headings.removeprefix(title).removeprefix(HEADINGS)
    return headings


# A definition by its keyword, by a function as its value, or by parameters and a brace; or other code at the margin.
_DEFINITION = re.compile(
    r"""
    ^(?P<margin>[ \t]*)(?:
        (?:(?:export|default|pub(?:\(\w+\))?|public|private|protected|internal|static|final|abstract|async|sealed|open
            |override|inline|unsafe|virtual|data|local|partial|create|or|replace|temporary)[ \t]+)*
        (?:def|defp|defmodule|class|func|fun|function\*?|fn|interface|struct|enum|trait|impl|module|namespace|object|record
            |type|sub|proc|protocol|extension|table|view|trigger|procedure)(?:<[^>\n]*>)?[ \t]+
        (?:\([^)\n]*\)[ \t]*|if[ \t]+not[ \t]+exists[ \t]+)?
        (?P<named>[\w.$:]+)[?!]?
            (?=[ \t]{0,80}(?:[({:<;=\[]|$|(?:extends|implements|for|struct|interface|is|as|do|where)\b))
        |(?:export[ \t]+)?(?:(?:const|let|var)[ \t]+)?(?P<valued>[\w.$]+)[ \t]*(?:=|<-|:)[ \t]*(?:async[ \t]+)?
            (?:function\b|\([^)\n]*\)[ \t]*=>)
        |(?:[\w<>\[\],.*&:?]+[ \t]+)*?[*&]*
            (?P<braced>(?!(?:if|for|foreach|while|switch|catch|return|else|using|lock|match)\b)[\w:~$]+)
            [ \t]{0,80}\([^;{}()]{0,400}\)[^;{}()=\n]{0,80}\n?[ \t]{0,80}\{
    )|^(?=\w)""",
    re.MULTILINE | re.VERBOSE | re.IGNORECASE,
)
_REMARK = re.compile(r"[ \t]*(?:#(?!include|define|if|end)|//|/?\*|@|--|\[)")
_LEAST_PIECE = 200  # characters of definitions that are a passage of their own; shorter ones are joined


def _definitions(text: str) -> tuple[Part, ...]:
    """Return the functions and classes of source code as parts; what is one is guessed, in any language."""
    above: list[tuple[int, str]] = []
    parts = [Part(0)]
    last = 0  # where the last part begins that is a passage of its own
    end = 0  # of the match before, which the remarks above a definition come after
    for found in _DEFINITION.finditer(text):
        name = found["named"] or found["valued"] or found["braced"]
        name = name and cut(name, _LONGEST_NAME)
        margin = len((found["margin"] or "").expandtabs(4))
        outer = [each for each in above if each[0] < margin]
        if name is None and parts[-1].headings:
            above = []
            parts.append(Part(found.start()))
        elif name is not None and len(outer) < 2:
            above = [*outer, (margin, name)]
            start = found.start()
            while start > end and _REMARK.match(text, before := text.rfind("\n", end, start - 1) + 1 or end, start):
                start = before
            is_apart = start - last >= _LEAST_PIECE
            last = start if is_apart else last
            parts.append(Part(start, HEADINGS.join(each for _, each in above), is_apart=is_apart))
        end = found.end()
    return tuple(parts)


_NO_TEXT = "script style nav footer aside form template noscript svg button select iframe object math audio video"
_NAVIGATION = "nav navbar navigation sidebar sphinxsidebar menu footer breadcrumb breadcrumbs docnav headerlink"
_BLOCK_TAGS = """
p div section article main header ul ol li dl dt dd table tr pre blockquote figure figcaption h1 h2 h3 h4 h5 h6 hr
details summary address body title
"""
_SKIPPED, _CLASSES, _BLOCKS = (frozenset(names.split()) for names in (_NO_TEXT, _NAVIGATION, _BLOCK_TAGS))
_ROLES = frozenset({"navigation", "banner", "contentinfo", "search", "complementary"})
_VOID = frozenset(
    {"br", "hr", "img", "input", "meta", "link", "area", "base", "col", "embed", "source", "track", "wbr"}
)


# Elements whose content is text until their end.
_RAW = frozenset({"script", "style", "textarea", "title", "xmp"})
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")
_ATTRIBUTE = re.compile(r"[\s/]*(?:([^\s/>=][^\s/>=]*)(\s*=\s*)?|(>)|=)")
_VALUE = re.compile(r"[^\s>]*")


class _Page:
    """The text of a page as Markdown, without scripts and navigation; of its main part alone, if it names one.

    As in browsers, a comment, a tag or a quote without an end reaches to the end of the page: so each character is
    looked at once, and not again for each beginning, as by the standard library.
    """

    def __init__(self) -> None:
        self.pieces: list[tuple[bool, str]] = []  # whether each is of the main part
        self.title = ""
        self._skipping = ""
        self._main_tag = ""
        self._depth = 0
        self._main = 0
        self._pre = 0
        self._in_title = False

    def feed(self, markup: str) -> None:
        """Read a whole page."""
        at = 0
        while at < len(markup):
            begin = markup.find("<", at)
            if begin < 0:
                begin = len(markup)
            if begin > at:
                self.handle_data(unescape(markup[at:begin]))
            tag = _TAG.match(markup, begin)
            if tag:
                at = self._read_tag(markup, tag)
            elif markup.startswith("<!--", begin):
                at = _after(markup, "-->", begin + 2)  # <!--> is a whole one
            elif markup.startswith("<![CDATA[", begin):
                at = _after(markup, "]]>", begin)
                self.handle_data(markup[begin + 9 : at].removesuffix("]]>"))
            elif markup.startswith(("<!", "<?", "</"), begin):
                at = _after(markup, ">", begin)
            else:
                at = begin + 1
                self.handle_data(markup[begin:at])

    def _read_tag(self, markup: str, found: re.Match[str]) -> int:
        """Read a tag, and the text of an element that holds nothing else; return the position after it."""
        name = found[2].lower()
        attributes: dict[str, str] = {}
        at = found.end()
        while (part := _ATTRIBUTE.match(markup, at)) and not part[3]:
            at = part.end()
            value = ""
            if part[2] is not None and markup.startswith(("'", '"'), at):
                end = _after(markup, markup[at], at + 1)
                value = markup[at + 1 : end - 1]
                at = end
            elif part[2] is not None and (given := _VALUE.match(markup, at)):
                value = given[0]
                at = given.end()
            if part[1]:
                attributes.setdefault(part[1].lower(), unescape(value))
        if part is None:  # the page ends in the tag
            return len(markup)
        if found[1]:
            self.handle_endtag(name)
            return part.end()
        self.handle_starttag(name, attributes)
        if name not in _RAW:
            return part.end()
        closing = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(markup, part.end())
        until = closing.start() if closing else len(markup)
        text = markup[part.end() : until]
        self.handle_data(text if name in ("script", "style", "xmp") else unescape(text))
        return until

    def handle_starttag(self, tag: str, attributes: dict[str, str]) -> None:
        """Take note of what an element means for its text."""
        if self._skipping:
            self._depth += tag == self._skipping
            return
        role = attributes.get("role")
        classes = set(attributes.get("class", "").split())
        if tag not in _VOID and (tag in _SKIPPED or role in _ROLES or classes & _CLASSES):
            self._skipping = tag
            self._depth = 1
            return
        if self._main:
            self._main += tag == self._main_tag
        elif tag in ("main", "article") or role == "main":
            self._main = 1
            self._main_tag = tag
        self._in_title = self._in_title or tag == "title"
        mark = {"br": "\n", "li": "\n- ", "td": " | ", "th": " | ", "tr": "\n", "dt": "\n\n", "dd": "\n"}.get(tag)
        self._add(mark or ("\n\n" if tag in _BLOCKS else ""))
        if tag == "pre":
            self._pre += 1
            self._add("```\n")
        if tag[0] == "h" and tag[1:].isdigit():
            self._add("#" * min(int(tag[1:]), 6) + " ")

    def handle_endtag(self, tag: str) -> None:
        """Take note of the end of an element."""
        if self._skipping:
            self._depth -= tag == self._skipping
            if not self._depth:
                self._skipping = ""
            return
        self._in_title = self._in_title and tag != "title"
        if tag == "pre" and self._pre:
            self._pre -= 1
            self._add("\n```")
        if tag in _BLOCKS and tag not in ("li", "tr", "dt", "dd"):
            self._add("\n\n")
        if self._main:
            self._main -= tag == self._main_tag

    def handle_data(self, data: str) -> None:
        """Keep a text."""
        if self._in_title:
            self.title = self.title or data
        elif not self._skipping:
            self._add(data if self._pre else re.sub(r"\s+", " ", data))

    def _add(self, text: str) -> None:
        if text:
            self.pieces.append((self._main > 0, text))

    def text(self) -> str:
        """Return the text, with blank lines between blocks."""
        main = "".join(text for is_main, text in self.pieces if is_main)
        if len(main.split()) > 20:
            whole = main
        else:
            whole = "".join(text for _, text in self.pieces)
        lines = (line.rstrip() for line in re.sub(r"(?m)^ (?=\S)", "", whole).split("\n"))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _after(text: str, mark: str, at: int) -> int:
    """Return the position after a mark, or that of the end of the text."""
    found = text.find(mark, at)
    return len(text) if found < 0 else found + len(mark)


def _html(data: bytes | str) -> Iterator[Content]:
    if isinstance(data, str):
        markup = data
    else:
        named = re.search(rb"<meta[^>]+charset=[\"']?([\w-]+)", data[:2048], re.IGNORECASE)
        try:
            markup = _decoded(data, _charset(named[1].decode()) if named else None)
        except InvalidArgumentError:
            markup = _decoded(data)
    page = _Page()
    page.feed(markup)
    text = page.text()
    title = " ".join(page.title.split())[:_LONGEST_NAME]
    if re.search(r"^# ", text, re.MULTILINE):
        heading = _outline(text, 0)[0]
    else:
        heading = ""
    yield Content(text, heading or title)


def _pdf(data: bytes) -> Iterator[Content]:
    with needs_extra("Reading PDF", "files"):
        import pypdfium2
    try:
        file = pypdfium2.PdfDocument(data)
        texts = [page.get_textpage().get_text_bounded().replace("\r\n", "\n").strip() for page in file]
        title = str(file.get_metadata_dict().get("Title") or "").strip()
    except pypdfium2.PdfiumError as error:
        raise InvalidArgumentError(f"it is damaged, encrypted, or no PDF: {error}") from error
    yield _in_pages(texts)._replace(title=title if any(texts) else "", metadata={"pages": len(texts)})


def _in_pages(texts: list[str]) -> Content:
    starts = itertools.accumulate((len(text) + 2 for text in texts[:-1]), initial=0)
    return Content("\n\n".join(texts), pages=tuple(starts))


class _Archive:
    """The members of a zip file, of which a limited number of bytes is read."""

    def __init__(self, data: bytes) -> None:
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        self._left = _MOST_BYTES

    def names(self, pattern: str) -> list[str]:
        """Return the names of members that match, in the order of the numbers in them."""
        found = [name for name in self._zip.namelist() if re.fullmatch(pattern, name)]
        return sorted(found, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])

    def read(self, name: str) -> bytes:
        with self._zip.open(name) as member:
            data = member.read(self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise InvalidArgumentError(f"it unpacks to more than {_MOST_BYTES:,} bytes.")
        return data

    def xml(self, name: str) -> ElementTree.Element:
        return ElementTree.fromstring(self.read(name))


def _tag(element: ElementTree.Element) -> str:
    """Return the name of an element or an attribute without its namespace."""
    return str(element.tag).rpartition("}")[2]


def _attribute(element: ElementTree.Element | None, name: str) -> str:
    items = () if element is None else element.attrib.items()
    return next((value for key, value in items if key.rpartition("}")[2] == name), "")


def _inside(element: ElementTree.Element, *tags: str) -> Iterator[ElementTree.Element]:
    """Yield the elements of some tags in the order of the document, of those within each other the outermost."""
    waiting = [element]
    while waiting:
        each = waiting.pop()
        if each is not element and _tag(each) in tags:
            yield each
        else:
            waiting.extend(reversed(each))


_MARKS = {"tab": "\t", "br": "\n", "line-break": "\n", "p": "\n"}  # a paragraph in another one: a text box, a note


def _run_text(paragraph: ElementTree.Element) -> str:
    return "".join(
        _MARKS.get(_tag(each)) or each.text or ""
        for each in paragraph.iter()
        if each is not paragraph and (_tag(each) == "t" or _tag(each) in _MARKS)
    )


def _docx(data: bytes) -> Iterator[Content]:
    archive = _Archive(data)
    styles: dict[str, str] = {}
    if "word/styles.xml" in archive.names(".*"):
        for style in _inside(archive.xml("word/styles.xml"), "style"):
            styles[_attribute(style, "styleId")] = _attribute(next(_inside(style, "name"), None), "val").lower()
    lines = []
    for paragraph in _inside(archive.xml("word/document.xml"), "p"):
        named = styles.get(_attribute(next(_inside(paragraph, "pStyle"), None), "val"), "")
        level = re.fullmatch(r"heading (\d)|(title)", named)
        text = _run_text(paragraph).strip()
        if text:
            lines.append(f"{'#' * int(level[1] or 1)} {text}" if level else text)
    yield Content("\n\n".join(lines))


def _pptx(data: bytes) -> Iterator[Content]:
    archive = _Archive(data)
    slides = []
    for name in archive.names(r"ppt/slides/slide\d+\.xml"):
        slides.append("\n".join(filter(None, (_run_text(each).strip() for each in _inside(archive.xml(name), "p")))))
    yield _in_pages(slides)


def _xlsx(data: bytes) -> Iterator[Content]:
    archive = _Archive(data)
    shared: list[str] = []
    if archive.names("xl/sharedStrings.xml"):
        shared = [
            "".join(each.text or "" for each in _inside(item, "t")) for item in archive.xml("xl/sharedStrings.xml")
        ]
    book = archive.xml("xl/workbook.xml")
    titles = [_attribute(sheet, "name") for sheet in _inside(book, "sheet")]
    is_1904 = _attribute(next(_inside(book, "workbookPr"), None), "date1904") in ("1", "true")
    dates = _date_styles(archive)
    if is_1904:
        begin = datetime.datetime(1904, 1, 1)
    else:
        begin = datetime.datetime(1899, 12, 30)
    lines = []
    for number, name in enumerate(archive.names(r"xl/worksheets/sheet\d+\.xml")):
        lines.append(f"## {titles[number] if number < len(titles) else number + 1}\n")
        for row in _inside(archive.xml(name), "row"):
            cells = []
            for cell in _inside(row, "c"):
                value = "".join(each.text or "" for each in _inside(cell, "v", "t"))
                if _attribute(cell, "t") == "s" and value:
                    value = shared[int(value)]
                elif _attribute(cell, "s") in dates and re.fullmatch(r"\d{1,6}(\.\d+)?(E-?\d+)?", value):
                    time = begin + datetime.timedelta(seconds=round(float(value) * 86400))
                    value = time.isoformat(" ").removesuffix(" 00:00:00").removeprefix("1899-12-30 ")
                cells.append(value)
            lines.append(" | ".join(cells) if any(cells) else "")
        lines.append("")
    yield Content("\n".join(lines) if any(line and not line.startswith("## ") for line in lines) else "")


# Formats of dates and times that have a number only; others are codes such as yyyy-mm-dd.
_DATES = frozenset(map(str, [*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)]))


def _date_styles(archive: _Archive) -> set[str]:
    """Return the styles of cells that show their number as a date or a time."""
    if not archive.names("xl/styles.xml"):
        return set()
    styles = archive.xml("xl/styles.xml")
    codes = {_attribute(each, "numFmtId"): _attribute(each, "formatCode") for each in _inside(styles, "numFmt")}
    codes = {
        id: re.sub(r'"[^"]*"|\[[^][]*\]|\\.', "", code[:1000]) for id, code in codes.items()
    }  # without texts and colours
    dates = _DATES | {id for id, code in codes.items() if re.search("[dmyhs]", code, re.IGNORECASE)}
    formats = [_attribute(each, "numFmtId") for cells in _inside(styles, "cellXfs") for each in cells]
    return {str(number) for number, format in enumerate(formats) if format in dates}


def _odt(data: bytes) -> Iterator[Content]:
    lines = []
    for each in _inside(_Archive(data).xml("content.xml"), "h", "p"):
        text = "".join(_texts_inside(each)).strip()
        level = int(_attribute(each, "outline-level") or 1)
        lines.append(f"{'#' * min(level, 6)} {text}" if _tag(each) == "h" and text else text)
    yield Content("\n\n".join(filter(None, lines)))


def _texts_inside(element: ElementTree.Element) -> Iterator[str]:
    """Yield the texts of a paragraph of OpenDocument, with paragraphs in it on lines of their own."""
    waiting: list[ElementTree.Element | str] = [element]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
            continue
        if _tag(each) == "p" and each is not element:
            yield "\n"
        yield each.text or ""
        for child in reversed(each):
            waiting += [child.tail or "", child]


def _epub(data: bytes) -> Iterator[Content]:
    archive = _Archive(data)
    place = _attribute(next(_inside(archive.xml("META-INF/container.xml"), "rootfile"), None), "full-path")
    package = archive.xml(place)
    files = {_attribute(item, "id"): _attribute(item, "href") for item in _inside(package, "item")}
    texts = []
    for item in _inside(package, "itemref"):
        href = files.get(_attribute(item, "idref"), "")
        if href.endswith(("html", "htm", "xml")):
            texts += [content.text for content in _html(archive.read(str(PurePosixPath(place).parent / href)))]
    title = next(_inside(package, "title"), None)
    author = next(_inside(package, "creator"), None)
    if author is None or not author.text:
        metadata = {}
    else:
        metadata = {"author": author.text}
    yield Content("\n\n".join(texts), "" if title is None else title.text or "", metadata)


def _notebook(data: bytes) -> Iterator[Content]:
    cells = parse_json(_decoded(data)).get("cells", [])
    texts = []
    for cell in cells:
        text = "".join(cell.get("source") or [])
        texts.append(f"```\n{text}\n```" if cell.get("cell_type") == "code" and text else text)
    yield Content("\n\n".join(filter(None, texts)))


def _subtitles(data: bytes) -> Iterator[Content]:
    lines = [re.sub(r"<[^<>]*>|\{\\[^{}]*\}", "", line).strip() for line in _decoded(data).splitlines()]
    kept = (line for line in lines if not ("-->" in line or line.isdecimal() or line.startswith(("WEBVTT", "NOTE"))))
    yield Content(re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip())


def _mail(data: bytes) -> Iterator[Content]:
    yield _message(data)


def _message(data: bytes, number: int | None = None) -> Content:
    """Return the text of a mail, of a mailbox if it has a number, with sender, receivers, date and attachments."""
    from email import message_from_bytes
    from email.utils import parsedate_to_datetime

    message: Any = message_from_bytes(data, policy=_mail_policy())
    shown = list(_shown_texts(message))
    plain = [part for part in shown if part.get_content_subtype() == "plain"]
    pages = [part for part in shown if part.get_content_subtype() == "html"]
    every = (part for part in message.walk() if part.get_content_maintype() == "text")  # of a mail that is attached
    text = "\n\n".join(map(_text_of, plain[:1] or pages[:1] or shown or every))
    names = [_header(str(name)) for part in message.walk() if part is not message and (name := part.get_filename())]
    if names:
        text += f"\n\nAttachments: {', '.join(names)}"
    headers = {name: _header(str(message[name])) for name in ("from", "to", "subject") if message[name]}
    title = headers.pop("subject", "")
    with suppress(ValueError, TypeError, IndexError, OverflowError):  # of a date in no known form
        headers["date"] = parsedate_to_datetime(str(message["date"])[:_LONGEST_DATE]).isoformat()
    if number is None:
        own = ""
    else:
        own = str(message["message-id"] or number).strip("<> \t\r\n")
    return Content(text.strip() and text, title, headers, own=own)


_LONGEST_DATE = 100
_LONGEST_PARAMETERS = 2000  # of a header whose parts the standard library takes time of the second power for
_DEEPEST_PART = 30


@cache
def _mail_policy() -> Any:
    """Return how mail is read: headers as they are, without those that are too long, and parts to a limited depth."""
    from email.message import Message
    from email.policy import Compat32

    class Part(Message):
        depth = 0

        def attach(self, payload: Any) -> None:
            payload.depth = self.depth + 1
            if payload.depth > _DEEPEST_PART:
                raise InvalidArgumentError(f"its parts are nested more than {_DEEPEST_PART} deep.")
            super().attach(payload)

    class Headers(Compat32):
        def header_source_parse(self, sourcelines: Any) -> tuple[str, str]:
            name, value = super().header_source_parse(sourcelines)
            if name.lower().startswith("content-"):
                value = value[:_LONGEST_PARAMETERS]
            return name, value

        def header_fetch_parse(self, name: str, value: Any) -> Any:
            return value  # bytes that are no ASCII as surrogates

    return Headers(message_factory=Part)


def _shown_texts(part: Any) -> Iterator[Any]:
    """Yield the parts of a mail that are texts to read, not those attached."""
    if part.get_content_disposition() == "attachment":
        return
    if part.get_content_maintype() == "multipart" and part.is_multipart():
        for inner in part.get_payload():
            yield from _shown_texts(inner)
    elif part.get_content_maintype() == "text":
        yield part


# Words of another encoding in a header, and the white space between two of them.
_ENCODED = re.compile(r"=\?([^?\s]*)\?([bq])\?([^?\s]*)\?=(?:\s+(?==\?[^?\s]*\?[bq]\?[^?\s]*\?=))?", re.IGNORECASE)


def _header(value: str) -> str:
    """Return the text of a header: on one line, with its encoded words decoded."""
    text = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _ENCODED.sub(_decoded_word, " ".join(text.split()))


def _decoded_word(found: re.Match[str]) -> str:
    charset = _charset(found[1].partition("*")[0])
    try:
        if found[2].lower() == "b":
            data = base64.b64decode(found[3] + "==")
        else:
            data = quopri.decodestring(found[3], header=True)
        return data.decode(charset or "utf-8", "replace")
    except ValueError:  # of base64
        return found[0]


def _text_of(part: Any) -> str:
    payload = part.get_payload(decode=True) or b""
    try:
        text = payload.decode(_charset(part.get_content_charset()) or "utf-8")
    except (LookupError, UnicodeDecodeError):
        text = _decoded(payload.replace(b"\0", b""))
    if part.get_content_type() == "text/html":
        return "\n".join(content.text for content in _html(text))
    return text


def _mailbox(data: bytes) -> Iterator[Content]:
    parts = re.split(rb"^From [^\n]*\n(?=>?[\w-]+[: ])", data, flags=re.MULTILINE)[1:]
    for number, part in enumerate(parts):
        yield _message(re.sub(rb"^>(?=>*From )", b"", part, flags=re.MULTILINE), number)


_READERS: dict[str, Callable[[bytes], Iterable[Content]]] = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), _html),
    ".pdf": _pdf,
    ".docx": _docx,
    ".pptx": _pptx,
    ".xlsx": _xlsx,
    **dict.fromkeys((".odt", ".odp", ".ods"), _odt),
    ".epub": _epub,
    ".ipynb": _notebook,
    **dict.fromkeys((".srt", ".vtt"), _subtitles),
    ".eml": _mail,
    ".mbox": _mailbox,
}
_KINDS = frozenset({*_READERS, *_CODE, *_MARKDOWN, *_PLAIN})
