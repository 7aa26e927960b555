"""Documents and slides of Office and OpenDocument as Markdown, with tables, boxes, notes and comments, each once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar
from xml.etree.ElementTree import Element

from latelier.reading.archives import Archive, attribute, inside, tag_of
from latelier.reading.content import Content, as_table, counted, in_pages

# What has no text of its own: properties, what was deleted or moved away, fields, phonetic readings, older forms.
_PROPERTIES = frozenset({"pPr", "rPr", "tblPr", "tblGrid", "tcPr", "trPr", "sectPr"})
_LEFT_OUT = _PROPERTIES | {
    *("del", "moveFrom", "delText", "instrText"),
    *("rt", "ruby-text", "tracked-changes", "note-citation", "Fallback"),
}
_MARKS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "line-break": "\n", "noBreakHyphen": "-"}
_REFERENCES = frozenset({"footnoteReference", "endnoteReference", "commentReference"})
_MOST_REPEATED = 100  # spaces, and cells that are said to be repeated


class _Paragraph:
    """The text of a paragraph, and what hangs on it: boxes with texts of their own, references and notes."""

    def __init__(self, element: Element, *, is_mixed: bool) -> None:
        self.boxes: list[Element] = []
        self.references: list[tuple[str, str]] = []  # the kind and the id of each
        self.notes: list[Element] = []
        self._is_mixed = is_mixed  # whether texts stand between elements, and not in those named t
        self.text = "".join(self._pieces(element)).strip()

    def _pieces(self, element: Element) -> Iterator[str]:
        waiting: list[Element | str] = [element]
        while waiting:
            each = waiting.pop()
            if isinstance(each, str):
                yield each
                continue
            tag = tag_of(each)
            if each is not element and (tag in ("txbxContent", "text-box") or tag == "p"):
                self.boxes.append(each)
            elif tag in ("note", "annotation"):
                self.notes.append(each)
            elif tag in _REFERENCES:
                self.references.append((tag, attribute(each, "id")))
            elif tag in _MARKS:
                yield _MARKS[tag]
            elif self._is_mixed and tag == "s":
                yield " " * _repeated(each, "c")
            elif tag not in _LEFT_OUT and attribute(each, "type") != "slidenum":
                if self._is_mixed or tag == "t":
                    yield each.text or ""
                for child in reversed(each):
                    waiting += [child.tail or "" if self._is_mixed else "", child]


def _repeated(element: Element, name: str) -> int:
    count = attribute(element, name)
    return min(int(count), _MOST_REPEATED) if count.isdecimal() else 1


class _Blocks:
    """The paragraphs and tables of a part of a file, in their order, as lines of Markdown."""

    paragraphs: ClassVar[tuple[str, ...]] = ("p",)
    table = "tbl"
    row = "tr"
    cells: ClassVar[tuple[str, ...]] = ("tc",)
    is_mixed = False

    def lines(self, root: Element, *, in_cell: bool = False) -> Iterator[str]:
        """Yield each paragraph and each table; what hangs on a paragraph comes after it."""
        waiting = [root]
        while waiting:
            each = waiting.pop()
            tag = tag_of(each)
            if tag in self.paragraphs:
                paragraph = _Paragraph(each, is_mixed=self.is_mixed)
                level = self.level(each)
                yield f"{'#' * level} {paragraph.text}" if level and paragraph.text and not in_cell else paragraph.text
                for note in paragraph.notes:
                    yield self.note(note)
                for reference in paragraph.references:
                    yield self.referenced(*reference)
                waiting.extend(reversed(paragraph.boxes))
            elif tag == self.table:
                yield self._table(each, in_cell=in_cell)
            elif tag not in _LEFT_OUT:
                waiting.extend(reversed(each))

    def text(self, root: Element) -> str:
        """Return the paragraphs and tables with blank lines between them."""
        return "\n\n".join(filter(None, self.lines(root)))

    def level(self, paragraph: Element) -> int:
        """Return the level of a heading, 0 for a paragraph that is none."""
        return 0

    def note(self, element: Element) -> str:
        """Return the text of a note that stands in a paragraph."""
        text = " ".join(self.text(element).split())
        return _comment(next((each.text or "" for each in inside(element, "creator")), ""), text, tag_of(element))

    def referenced(self, kind: str, id: str) -> str:
        """Return the text of a note that a paragraph refers to, if it was not returned before."""
        return ""

    def _table(self, table: Element, *, in_cell: bool) -> str:
        rows = []
        for row in inside(table, self.row):
            cells = []
            for cell in inside(row, *self.cells):
                cells.append(" ".join(" ".join(self.lines(cell, in_cell=True)).split()))
                span = next(inside(cell, "gridSpan"), None)
                count = _repeated(cell, "number-columns-repeated") if span is None else _repeated(span, "val")
                cells += [""] * (count - 1)
            if any(cells):
                rows.append(cells)
        if in_cell or max(map(len, rows), default=0) < 2:
            return "\n\n".join(" ".join(row) for row in rows)
        is_named = next(inside(table, "tblHeader", "table-header-rows"), None) is not None
        return as_table(rows, has_header=is_named or None)


def _comment(author: str, text: str, kind: str) -> str:
    if not text or not kind.startswith(("comment", "annotation")):
        return text
    return f"Comment by {author}: {text}" if author else f"Comment: {text}"


class _Word(_Blocks):
    """The blocks of a document of Word, with its notes and comments by their ids."""

    def __init__(self, archive: Archive) -> None:
        self._levels: dict[str, int] = {}
        if "word/styles.xml" in archive:
            self._levels = _levels_of_styles(archive.xml("word/styles.xml"))
        self._notes: dict[tuple[str, str], str] = {}
        for kind in ("footnote", "endnote", "comment"):
            for name in archive.names(rf"word/{kind}s\d*\.xml"):
                for each in inside(archive.xml(name), kind):
                    text = _comment(attribute(each, "author"), " ".join(self.text(each).split()), kind)
                    self._notes[f"{kind}Reference", attribute(each, "id")] = text

    def level(self, paragraph: Element) -> int:
        """Return the level of a heading, by the paragraph's style or its own level."""
        properties = next((each for each in paragraph if tag_of(each) == "pPr"), None)
        if properties is None:
            return 0
        own = _outline_level(properties)
        style = next((attribute(each, "val") for each in properties if tag_of(each) == "pStyle"), "")
        return own or self._levels.get(style, 0)

    def referenced(self, kind: str, id: str) -> str:
        """Return the text of a note or a comment, if it was not returned before."""
        return self._notes.pop((kind, id), "")

    def left(self) -> Iterable[str]:
        """Return the notes that no paragraph refers to."""
        return self._notes.values()


def _levels_of_styles(styles: Element) -> dict[str, int]:
    found: dict[str, int] = {}
    bases: dict[str, str] = {}
    for style in inside(styles, "style"):
        id = attribute(style, "styleId")
        name = attribute(next(inside(style, "name"), None), "val").lower()
        named = re.fullmatch(r"heading ([1-9])|(title)", name)
        bases[id] = attribute(next(inside(style, "basedOn"), None), "val")
        found[id] = min(int(named[1] or 1), 6) if named else _outline_level(style)
    for id in found:
        base = id
        for _ in range(10):
            base = bases.get(base, "")
            found[id] = found[id] or found.get(base, 0)
    return found


def _outline_level(element: Element) -> int:
    level = attribute(next(inside(element, "outlineLvl"), None), "val")
    return min(int(level) + 1, 6) if level.isdecimal() and int(level) < 9 else 0


def read_word(data: bytes) -> Iterator[Content]:
    """Yield the text of a document of Word, with its notes, comments, headers and footers."""
    archive = Archive(data)
    blocks = _Word(archive)
    main = archive.names(r"word/document\d*\.xml")[0]
    lines = [*blocks.lines(archive.xml(main)), *blocks.left()]
    others: list[str] = []
    for name in archive.names(r"word/(?:header|footer)\d*\.xml|word/diagrams/data\d*\.xml"):
        others += blocks.lines(archive.xml(name))
    yield Content(_joined(lines, others), unread=counted(archive.others()))


def _joined(lines: list[str], others: list[str]) -> str:
    """Return lines with blank ones between them, and others after them, each once."""
    known = {*lines}
    lines = lines + [line for line in dict.fromkeys(others) if line not in known]
    return "\n\n".join(filter(None, lines))


_NO_TEXT = frozenset({"sldNum", "sldImg", "hdr", "dt"})  # what stands on notes beside them


def read_slides(data: bytes) -> Iterator[Content]:
    """Yield the text of slides in the order of the presentation, with the notes of the speaker."""
    archive = Archive(data)
    texts: list[str] = []
    title = ""
    unread = archive.others()
    for name in _slides(archive):
        slide = archive.xml(name)
        lines = [*_Blocks().lines(slide)]
        title = title or ("" if texts else _title_of_slide(slide))
        for kind, target in archive.related(name).values():
            if target in archive and kind == "notesSlide":
                lines += _notes_of_slide(archive.xml(target))
            elif target in archive and kind == "diagramData":
                lines += _Blocks().lines(archive.xml(target))
            elif target in archive and kind == "comments":
                unread += ["comment" for _ in inside(archive.xml(target), "cm")]
        texts.append("\n".join(filter(None, lines)))
    yield in_pages(texts)._replace(title=title, unread=counted(unread))


def _slides(archive: Archive) -> list[str]:
    place = "ppt/presentation.xml"
    if place not in archive:
        return archive.names(r"ppt/slides/slide\d+\.xml")
    related = archive.related(place)
    ids = [dict(each.attrib) for each in inside(archive.xml(place), "sldId")]
    found = [related[id][1] for each in ids for id in each.values() if id in related]
    return [name for name in found if name in archive] or archive.names(r"ppt/slides/slide\d+\.xml")


def _title_of_slide(slide: Element) -> str:
    for shape in inside(slide, "sp"):
        kind = attribute(next(inside(shape, "ph"), None), "type")
        if kind in ("title", "ctrTitle"):
            return " ".join(_Blocks().text(shape).split())
    return ""


def _notes_of_slide(notes: Element) -> Iterator[str]:
    for shape in inside(notes, "sp"):
        if attribute(next(inside(shape, "ph"), None), "type") not in _NO_TEXT:
            yield from _Blocks().lines(shape)


class _OpenDocument(_Blocks):
    """The blocks of a document of OpenDocument."""

    paragraphs: ClassVar[tuple[str, ...]] = ("p", "h")
    table = "table"
    row = "table-row"
    cells: ClassVar[tuple[str, ...]] = ("table-cell", "covered-table-cell")
    is_mixed = True

    def __init__(self, root: Element) -> None:
        styles = {attribute(each, "name"): attribute(each, "parent-style-name") for each in inside(root, "style")}
        self._titles = {"Title", *(name for name, parent in styles.items() if parent == "Title")}

    def level(self, paragraph: Element) -> int:
        """Return the level of a heading; a title is one of the first."""
        if tag_of(paragraph) == "h":
            return min(int(attribute(paragraph, "outline-level") or 1), 6)
        return int(attribute(paragraph, "style-name") in self._titles)


def read_open_document(data: bytes) -> Iterator[Content]:
    """Yield the text of a document of OpenDocument, with headers and footers, or of its slides."""
    archive = Archive(data)
    root = archive.xml("content.xml")
    blocks = _OpenDocument(root)
    pages = [*inside(root, "page")]
    unread = counted(archive.others())
    if pages:
        yield in_pages(["\n".join(filter(None, blocks.lines(page))) for page in pages])._replace(unread=unread)
        return
    others: list[str] = []
    if "styles.xml" in archive:
        for each in inside(archive.xml("styles.xml"), "header", "footer"):
            others += blocks.lines(each)
    yield Content(_joined([*blocks.lines(root)], others), unread=unread)
