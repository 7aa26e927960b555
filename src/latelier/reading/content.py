"""What a reader of a format returns: a text as Markdown, what it says about itself, and what was left unread."""

from __future__ import annotations

import codecs
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.reading.records import Part
from latelier.utils.files import LONGEST_LINE

MOST_BYTES = 1 << 28  # of a file, and of what is taken of an archive
LONGEST_NAME = 1000  # of a title, a heading or a definition, which is put before each passage below it


class Content(NamedTuple):
    """A text as Markdown; its `parts` if it has other ones than headings, `own` the part of the id within the file.

    `unread`: what the file holds besides, such as "2 comments".
    """

    text: str
    title: str = ""
    metadata: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    parts: tuple[Part, ...] = ()
    own: str = ""
    unread: tuple[str, ...] = ()


def counted(found: Iterable[str]) -> tuple[str, ...]:
    """Return kinds of things, each in the singular, with their numbers: "1 chart", "2 comments"."""
    numbers = Counter(found)
    return tuple(f"{number:,} {kind}{'s' * (number != 1)}" for kind, number in sorted(numbers.items()))


def in_pages(texts: Sequence[str]) -> Content:
    """Return the texts of pages as one, of which each page is a part."""
    starts = itertools.accumulate((len(text) + 2 for text in texts[:-1]), initial=0)
    parts = tuple(Part(start, page=page, is_apart=True) for page, start in enumerate(starts, start=1))
    return Content("\n\n".join(texts), parts=parts)


def decoded(data: bytes, encoding: str | None = None) -> str:
    """Return a text in UTF-8 or UTF-16 with its mark, in the encoding that is given, in UTF-8, or else in cp1252."""
    if data.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    elif data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        text = data.decode(encoding or "utf-8")
    except (UnicodeDecodeError, LookupError) as error:
        if encoding is not None or b"\0" in data:
            raise InvalidArgumentError(
                f"it is no text in {(encoding or 'utf-8').upper().removesuffix('-SIG')}."
            ) from error
        text = data.decode("cp1252", errors="replace")
    check_length(text)
    return text


def check_length(text: str) -> None:
    """Raise `InvalidArgumentError` for a text that is too long to be one document."""
    if len(text) > LONGEST_LINE:
        raise InvalidArgumentError(f"it is longer than {LONGEST_LINE:,} characters; split it.")


# Codecs that are no encodings of texts, or take time of the second power.
_NO_CHARSETS = frozenset({"idna", "punycode", "raw_unicode_escape", "undefined", "unicode_escape"})


def charset(name: str | None) -> str | None:
    """Return the encoding that a file says to have, if there is such a one."""
    try:
        known = codecs.lookup(name or "").name.replace("-", "_")
    except (LookupError, ValueError):  # ValueError: a null character
        return None
    return None if known in _NO_CHARSETS else known


_NUMBER = re.compile(r"[-+\d.,:/%\s]*")
_LONGEST_HEADER = 500  # characters of the names of columns


def is_header(row: Sequence[str]) -> bool:
    """Whether cells can be the names of columns: several short ones, each once, and most of them no numbers."""
    filled = [cell for cell in row if cell.strip()]
    named = [cell for cell in filled if not _NUMBER.fullmatch(cell)]
    is_short = sum(map(len, filled)) <= _LONGEST_HEADER
    return len(filled) > 1 and len({*filled}) == len(filled) and 2 * len(named) > len(filled) and is_short


def as_table(rows: Sequence[Sequence[str]], *, has_header: bool | None = None) -> str:
    """Return rows as a table of Markdown; `has_header`: whether the first one names the columns, None: if it can."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if has_header is None:
        has_header = is_header(rows[0])
    if has_header and len(rows) > 1:
        lines.insert(1, "| --- " * len(rows[0]) + "|")
    return "\n".join(lines)
