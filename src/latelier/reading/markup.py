"""The headings and tables of light markup as the parts of a text: Markdown, rST, Org, AsciiDoc, Textile, LaTeX.

A part begins at each heading, with the headings above it, and at the rows of a table, with the names of its columns.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from latelier.reading.content import LONGEST_NAME, is_header
from latelier.reading.records import HEADINGS, Part
from latelier.utils.checks import cut


class Outline:
    """The parts of a text from `begin` on, as its headings and tables are met; `title` is the first heading."""

    def __init__(self, begin: int = 0) -> None:
        self.title = ""
        self.parts = [Part(begin)]
        self._above: list[tuple[int, str]] = []

    def heading(self, start: int, end: int, level: int, name: str) -> None:
        """Begin a part at a heading, and one after it."""
        name = cut(name, LONGEST_NAME)
        self.title = self.title or name
        self._above = [each for each in self._above if each[0] < level]
        self.parts.append(Part(start, self._headings()))
        self._above.append((level, name))
        self.parts.append(Part(end, self._headings()))

    def header(self, start: int, row: str) -> None:
        """Begin a part at the rows of a table, below the names of its columns."""
        self.parts.append(Part(start, self._headings(), header=cut(row.strip(), LONGEST_NAME)))

    @property
    def in_table(self) -> bool:
        """Whether the last part is the rows of a table."""
        return bool(self.parts[-1].header)

    def end_of_table(self, start: int) -> None:
        """Begin a part after a table, if there was one."""
        if self.in_table:
            self.parts.append(Part(start, self._headings()))

    def _headings(self) -> str:
        return HEADINGS.join(name for _, name in self._above)


class _Line(NamedTuple):
    """A line without its end, from `start` to `end` of a text."""

    start: int
    end: int
    text: str


def _lines(text: str, begin: int) -> Iterator[_Line]:
    end = begin
    for line in text[begin:].splitlines(keepends=True):
        start = end
        end = start + len(line)
        yield _Line(start, end, line.rstrip("\r\n"))


class _Dialect(NamedTuple):
    """How a light markup is read by lines.

    `heading` returns the level and the name in a line that is a heading; `fence` the mark of the code in which the
    lines after one are, given that of the lines before it; `underlines` are the marks below headings, first level
    first, or with `any_order` in the order in which a text has them.
    """

    heading: Callable[[str], tuple[int, str] | None]
    fence: Callable[[str, str], str]
    underlines: str = ""
    any_order: bool = False


def _outline(text: str, begin: int, dialect: _Dialect) -> Outline:
    outline = Outline(begin)
    fence = ""
    block: list[_Line] = []  # the first line since the last blank one, and the last two
    levels: list[str] = []  # of underlines so far
    for line in _lines(text, begin):
        if not line.text or line.text.isspace():
            if block:
                block = []
                outline.end_of_table(line.start)
            continue
        before = fence
        fence = dialect.fence(line.text, before)
        heading = None
        start = line.start
        if not (fence or before):
            heading = dialect.heading(line.text)
            if heading is None and block:
                heading = _underlined(block, line.text, dialect, levels)
                start = block[0].start if heading else start
        if heading:
            outline.heading(start, line.end, *heading)
        elif block and not fence and not outline.in_table and _is_ruler(line.text) and "|" in block[-1].text:
            outline.header(line.end, block[-1].text)
        if heading or fence or before:
            block = []
            outline.end_of_table(line.start)
        else:
            block = [*block[:1], *block[1:][-1:], line]
    return outline


_RULER = re.compile(r"[ \t]*[|:+ \t-]+")


def _is_ruler(line: str) -> bool:
    """Whether a line stands between the names of columns and the rows of a table."""
    return "|" in line and "-" in line and _RULER.fullmatch(line) is not None


_UNDERLINE = re.compile(r" {0,3}([!-/:-@\[-`{-~])\1*[ \t]*")
# Code, items of a list, quotes, tables and HTML: dashes below are no underline.
_NO_PARAGRAPH = re.compile(r"    |\t| {0,3}(?:[-*+][ \t]|\d+[.)][ \t]|[>|<])")
_LONE_MARKS = "~^"  # of which three are an underline; of others, one is


def _underlined(block: list[_Line], line: str, dialect: _Dialect, levels: list[str]) -> tuple[int, str] | None:
    """Return the level and the name of a heading that has a line of marks below it."""
    found = _UNDERLINE.fullmatch(line)
    if not found or found[1] not in dialect.underlines:
        return None
    mark = found[1]
    width = len(line.strip())
    title = block[-1].text
    if not any(map(str.isalnum, title)):
        return None
    if not dialect.any_order:
        if len(block) > 1 or _NO_PARAGRAPH.match(title) or (mark in _LONE_MARKS and width < 3):
            return None
        return dialect.underlines.index(mark) + 1, title.strip()
    has_overline = len(block) == 2 and block[0].text.strip() == line.strip()
    if not (has_overline or len(block) == 1) or width < min(len(title.strip()), 4):
        return None
    style = mark * (1 + has_overline)
    if style not in levels:
        levels.append(style)
    return levels.index(style) + 1, title.strip()


_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")


def _markdown_heading(line: str) -> tuple[int, str] | None:
    found = _HEADING.match(line)
    if not found:
        return None
    name = line[found.end() :].strip(" \t").rstrip("#").rstrip(" \t")
    return (len(found[1]), name) if name else None


def _markdown_fence(line: str, before: str) -> str:
    found = _FENCE.match(line)
    if found and not before:
        return found[1]
    if found and found[1].startswith(before):
        return ""
    return before


def _no_heading(line: str) -> None:
    return None


_ORG_HEADING = re.compile(r"(\*+)[ \t]+(?:(?:TODO|DONE|NEXT|WAITING|HOLD|STARTED|CANCELL?ED|SOMEDAY)[ \t]+)?(.*)")
_ORG_PRIORITY = re.compile(r"\[#\w\][ \t]*")
_ORG_TAGS = re.compile(r"[ \t]:[\w@#%:]+:$")
_ORG_BLOCK = re.compile(r"[ \t]*#\+(begin|end)_(\w+)", re.IGNORECASE)


def _org_heading(line: str) -> tuple[int, str] | None:
    found = _ORG_HEADING.fullmatch(line)
    if not found:
        return None
    name = _ORG_TAGS.sub("", _ORG_PRIORITY.sub("", found[2], count=1).rstrip()).strip()
    return (len(found[1]), name) if name else None


def _org_fence(line: str, before: str) -> str:
    found = _ORG_BLOCK.match(line)
    if not found:
        return before
    name = found[2].lower()
    if found[1].lower() == "begin":
        return before or name
    return "" if name == before else before


_ADOC_HEADING = re.compile(r"(={1,6}|#{1,6})[ \t]+(\S.*)")
_ADOC_BLOCK = re.compile(r"(-{4,}|\.{4,}|\+{4,}|/{4,})[ \t]*")


def _adoc_heading(line: str) -> tuple[int, str] | None:
    found = _ADOC_HEADING.fullmatch(line)
    return (len(found[1]), found[2].rstrip(" \t=#") or found[2].strip()) if found else None


def _adoc_fence(line: str, before: str) -> str:
    found = _ADOC_BLOCK.fullmatch(line)
    if not found:
        return before
    if before:
        return "" if found[1] == before else before
    return found[1]


_TEXTILE_HEADING = re.compile(r"h([1-6])[^ \t.]{0,80}\.[ \t]+(\S.*)")


def _textile_heading(line: str) -> tuple[int, str] | None:
    found = _TEXTILE_HEADING.fullmatch(line)
    return (int(found[1]), found[2].strip()) if found else None


def _textile_fence(line: str, before: str) -> str:
    if "<pre" in line or "</pre>" in line:
        return "pre" if line.rfind("<pre") > line.rfind("</pre>") else ""
    return before


_MARKDOWN = _Dialect(_markdown_heading, _markdown_fence, "=-~^")
_RST = _Dialect(_no_heading, lambda line, before: "", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", any_order=True)
_DIALECTS = {
    **dict.fromkeys((".md", ".markdown", ".mdx", ".qmd", ".rmd"), _MARKDOWN),
    ".rst": _RST,
    ".org": _Dialect(_org_heading, _org_fence),
    **dict.fromkeys((".adoc", ".asciidoc"), _Dialect(_adoc_heading, _adoc_fence)),
    ".textile": _Dialect(_textile_heading, _textile_fence),
}
SUFFIXES = frozenset({*_DIALECTS, ".tex"})


def outline(text: str, begin: int = 0, suffix: str = ".md") -> Outline:
    """Return the title and the parts of a text from `begin` on, in the markup that a suffix stands for."""
    if suffix == ".tex":
        return _latex(text, begin)
    return _outline(text, begin, _DIALECTS[suffix])


_LATEX_HEADING = re.compile(
    r"\\(title|part|chapter|section|subsection|subsubsection|paragraph|subparagraph)\*?(?:\[[^][\n]{0,1000}\])?\{"
)
_LATEX_LEVELS = ("title", "part", "chapter", "section", "subsection", "subsubsection", "paragraph", "subparagraph")
_LATEX_CODE = re.compile(r"\\begin\{(verbatim|Verbatim|lstlisting|minted|comment)\}")
# A comment, a label and its name, a command, and what groups.
_LATEX_MARKS = re.compile(
    r"(?<!\\)%.*|\\(?:label|footnote|thanks)\{[^{}]*\}|\\\\|\\[a-zA-Z]+\*?[ ]?|[{}]|(?<=\\)(?=[%&$#_])"
)


def _latex(text: str, begin: int) -> Outline:
    found = Outline(begin)
    title = ""
    end = begin
    code = _latex_code(text, begin)
    starts = [start for start, _ in code]
    for each in _LATEX_HEADING.finditer(text, begin):
        number = bisect_right(starts, each.start()) - 1
        before = text[max(each.start() - LONGEST_NAME, begin) : each.start()].rpartition("\n")[2]
        is_code = number >= 0 and each.start() < code[number][1]
        if is_code or each.start() < end or re.search(r"(?<!\\)%", before):
            continue
        end = _closing_brace(text, each.end())
        name = _latex_text(text[each.end() : end - 1])
        if each[1] == "title":
            title = title or cut(name, LONGEST_NAME)
        elif name:
            found.heading(each.start(), end, _LATEX_LEVELS.index(each[1]), name)
    found.title = title or found.title
    return found


def _latex_code(text: str, at: int) -> list[tuple[int, int]]:
    """Return where code and comments begin and end."""
    spans = []
    while (begin := _LATEX_CODE.search(text, at)) is not None:
        end = text.find(f"\\end{{{begin[1]}}}", begin.end())
        at = len(text) if end < 0 else end
        spans.append((begin.start(), at))
    return spans


def _latex_text(name: str) -> str:
    marked = _LATEX_MARKS.sub(lambda mark: " " if mark[0] == "\\\\" else "", name)
    return " ".join(marked.replace("\\", "").replace("~", " ").split())


def _closing_brace(text: str, at: int) -> int:
    """Return the position after the brace that closes one before `at`, or after the longest name."""
    depth = 1
    until = min(at + LONGEST_NAME, len(text))
    while at < until and depth:
        if text[at] == "\\":
            at += 1
        elif text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
        at += 1
    return at


_MOST_HEADER_LINES = 20
_DELIMITERS = ",;\t|"


def rows_below_header(text: str) -> tuple[Part, ...]:
    """Return the parts of a table as text, such as of CSV: its first row, and the rows with the names of columns."""
    header = ""
    for number, line in enumerate(_lines(text, 0)):
        header += line.text + "\n"
        if header.count('"') % 2 == 0 and header.strip():
            break
        if number == _MOST_HEADER_LINES:
            return (Part(0),)
    delimiter = max(_DELIMITERS, key=header.count)
    cells = [cell.strip(' \t\n"') for cell in header.split(delimiter)]
    if not is_header(cells):
        return (Part(0),)
    return (Part(0), Part(line.end, header=cut(header.strip(), LONGEST_NAME)))


def with_lead(parts: tuple[Part, ...], text: str, lead: str) -> tuple[Part, ...]:
    """Return parts of which the first that holds text has `lead` put before it."""
    begin = parts[0].start
    first = begin + len(text[begin:]) - len(text[begin:].lstrip())
    count = bisect_right([part.start for part in parts], first)
    return tuple(part._replace(header=lead) if number < count else part for number, part in enumerate(parts))
