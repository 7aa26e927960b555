"""Web pages: their text as Markdown, without scripts and navigation; and EPUB, a book whose chapters are such pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from html import unescape
from pathlib import PurePosixPath
from posixpath import normpath
from urllib.parse import unquote

from latelier.errors import InvalidArgumentError
from latelier.reading.archives import Archive, attribute, inside
from latelier.reading.content import LONGEST_NAME, Content, as_table, charset, counted, decoded
from latelier.reading.markup import outline

_NO_TEXT = "script style nav footer template noscript svg button select iframe object audio video rt rp"
_NAVIGATION = "nav navbar navigation sidebar sphinxsidebar menu footer breadcrumb breadcrumbs docnav headerlink"
_BLOCK_TAGS = """
p div section article main header aside form fieldset legend ul ol li dl dt dd table tr pre blockquote figure figcaption
h1 h2 h3 h4 h5 h6 hr
details summary address body title
"""
_SKIPPED, _CLASSES, _BLOCKS = (frozenset(names.split()) for names in (_NO_TEXT, _NAVIGATION, _BLOCK_TAGS))
_ROLES = frozenset({"navigation", "banner", "contentinfo", "search"})
_VOID = frozenset(
    {"br", "hr", "img", "input", "meta", "link", "area", "base", "col", "embed", "source", "track", "wbr"}
)


_DESCRIBING = frozenset({"author", "description", "keywords"})
# What begins and ends a table, and begins its rows and cells, until the whole text is known.
_TABLE, _TABLE_END, _ROW, _NAMING_CELL, _CELL = "\x01\x02\x03\x04\x05"
_CONTROLS = re.compile("[\x00-\x08]")
_MARKS = {
    "br": "\n",
    "li": "\n- ",
    "table": _TABLE,
    "tr": _ROW,
    "th": _NAMING_CELL,
    "td": _CELL,
    "dt": "\n\n",
    "dd": "\n",
}
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
        self.metadata: dict[str, str] = {}
        self.unread: list[str] = []
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
        if tag == "img":
            alternative = " ".join(attributes.get("alt", "").split())
            self._add(f" {alternative} " if alternative else "")
            if attributes.get("src", "").startswith("data:"):
                self.unread.append("picture")
        elif tag == "meta" and attributes.get("name", "").lower() in _DESCRIBING:
            self.metadata.setdefault(attributes["name"].lower(), " ".join(attributes.get("content", "").split()))
        elif tag == "math" and attributes.get("alttext"):
            self._add(attributes["alttext"])
        self._add(_MARKS.get(tag) or ("\n\n" if tag in _BLOCKS else ""))
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
        if tag == "table":
            self._add(_TABLE_END)
        if tag in _BLOCKS and tag not in ("li", "tr", "dt", "dd"):
            self._add("\n\n")
        if self._main:
            self._main -= tag == self._main_tag

    def handle_data(self, data: str) -> None:
        """Keep a text."""
        if self._in_title:
            self.title = self.title or data
        elif not self._skipping:
            data = _CONTROLS.sub("", data)
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
        whole = _with_tables(whole)
        lines = (line.rstrip() for line in re.sub(r"(?m)^ (?=\S)", "", whole).split("\n"))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _after(text: str, mark: str, at: int) -> int:
    """Return the position after a mark, or that of the end of the text."""
    found = text.find(mark, at)
    return len(text) if found < 0 else found + len(mark)


_INNERMOST = re.compile("\x01([^\x01\x02]*)(?:\x02|(?=\x01)|\\Z)")
_DEEPEST_TABLE = 8
_LONGEST_CELL = 300  # characters: longer ones are what a page is laid out with


def _with_tables(text: str) -> str:
    """Return a text with its tables as those of Markdown, the inner ones first."""
    for _ in range(_DEEPEST_TABLE):
        text, count = _INNERMOST.subn(_as_table, text)
        if not count:
            break
    return re.sub("[\x01-\x05]+ ?", "\n", text)


def _as_table(found: re.Match[str]) -> str:
    rows: list[list[str]] = []
    has_header = False
    before, *parts = found[1].split(_ROW)
    for part in parts:
        cells = re.split("([\x04\x05])", part)
        row = [cell.strip() for cell in cells[2::2]]
        if any(row):
            is_naming = _CELL not in cells[1::2]
            has_header = has_header or (is_naming and not rows)
            rows.append(row)
    widths = {len(row) for row in rows}
    is_layout = any(_is_laid_out(cell) for row in rows for cell in row)
    if is_layout or not rows or widths == {1}:
        return "\n\n" + before + "\n\n".join(cell for row in rows for cell in row if cell) + "\n\n"
    rows = [[" ".join(cell.split()) for cell in row] for row in rows]
    is_regular = len(widths) == 1 and len(rows) > 2
    return f"\n\n{before.strip()}\n\n{as_table(rows, has_header=has_header or (None if is_regular else False))}\n\n"


def _is_laid_out(cell: str) -> bool:
    return "\n\n" in cell or ("\n" in cell and len(cell) > _LONGEST_CELL)


_CHARSET = re.compile(rb"<(?:meta[^>]+charset=|\?xml[^>]+encoding=)[\"']?([\w-]+)", re.IGNORECASE)


def read_web_page(data: bytes, encoding: str | None = None) -> Iterator[Content]:
    """Yield the text of a page in the encoding that is given, or that it says to have."""
    yield of_markup(_markup(data, encoding))


def _markup(data: bytes, encoding: str | None) -> str:
    named = _CHARSET.search(data[:4096])
    if encoding is None and named:
        said = charset(named[1].decode())
        if said and not said.startswith("utf_16"):  # in which nobody could have read it
            with suppress(InvalidArgumentError):
                return decoded(data, said)
    return decoded(data, encoding)


def of_markup(markup: str) -> Content:
    """Return the text of a page."""
    page = _Page()
    page.feed(markup)
    text = page.text()
    title = " ".join(page.title.split())[:LONGEST_NAME]
    if not title and re.search(r"^# ", text, re.MULTILINE):
        title = outline(text).title
    metadata = {name: value for name, value in page.metadata.items() if value}
    return Content(text, title, metadata, unread=counted(page.unread))


# Fonts that are scrambled, which hides no text.
_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")


def read_book(data: bytes) -> Iterator[Content]:
    """Yield the text of a book in EPUB, its chapters in order, with its title and its authors."""
    archive = Archive(data)
    place = attribute(next(inside(archive.xml("META-INF/container.xml"), "rootfile"), None), "full-path")
    package = archive.xml(place)
    if "META-INF/encryption.xml" in archive:
        methods = inside(archive.xml("META-INF/encryption.xml"), "EncryptionMethod")
        if any(attribute(each, "Algorithm") not in _FONTS for each in methods):
            raise InvalidArgumentError("it is encrypted.")
    items = {attribute(item, "id"): item for item in inside(package, "item")}
    texts = []
    unread = ["picture" for item in items.values() if attribute(item, "media-type").startswith("image/")]
    for reference in inside(package, "itemref"):
        item = items.get(attribute(reference, "idref"))
        href = unquote(attribute(item, "href"))
        name = normpath(str(PurePosixPath(place).parent / href))
        if href.endswith(("html", "htm", "xml")) and name in archive:
            texts += [content.text for content in read_web_page(archive.read(name))]
    titles = [each.text for each in inside(package, "title") if each.text]
    authors = [each.text for each in inside(package, "creator") if each.text]
    metadata = {"author": ", ".join(authors)} if authors else {}
    yield Content("\n\n".join(texts), titles[0] if titles else "", metadata, unread=counted(unread))
