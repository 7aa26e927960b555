"""A text or Markdown file as one document: its name is the id, its first heading the title."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

from latelier.errors import InvalidArgumentError, StorageError
from latelier.indexes.catalog.values import is_unicode
from latelier.retrieve.documents import InputDocument
from latelier.utils.reading import read_text

__all__ = ["MARKDOWN", "markdown_title", "whole_file"]

MARKDOWN = (".md", ".markdown")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*")


def whole_file(path: Path, folder: Path | None = None) -> InputDocument:
    r"""Return the document that a file is.

    Its metadata are ``path``; ``modified``, the UTC time of the last change as ISO 8601, so that filters can compare
    it; and for Markdown with a heading ``title``.

    Parameters
    ----------
    path
        The file.
    folder
        The id is the path relative to this folder, with ``/`` between its parts; None: the file's own folder.

    Raises
    ------
    InvalidArgumentError
        If there is no such file, or it is not UTF-8, empty, or too long.
    StorageError
        If it cannot be read.

    Examples
    --------
    >>> path = Path("paris.md")
    >>> _ = path.write_text("# Paris\n\nThe capital of France.")
    >>> document = whole_file(path)
    >>> document.id, document.title, sorted(document.metadata)
    ('paris.md', 'Paris', ['modified', 'path', 'title'])
    """
    name = path.relative_to(folder or path.parent).as_posix()
    if not is_unicode(name):
        raise InvalidArgumentError(f"the name of {str(path)!r} is not valid Unicode, so it cannot be an id; rename it.")
    text = read_text(path)
    if not text.strip():
        raise InvalidArgumentError(f"{path} is empty: nothing to index.")
    try:
        changed = datetime.datetime.fromtimestamp(int(path.stat().st_mtime), datetime.timezone.utc)
    except (OSError, ValueError, OverflowError) as error:
        raise StorageError(f"cannot read {path}: {error}.") from error
    metadata: dict[str, Any] = {"path": name, "modified": changed.strftime("%Y-%m-%dT%H:%M:%SZ")}
    suffixes = Path(path.name.removesuffix(".gz")).suffix.lower()
    title = markdown_title(text) if suffixes in MARKDOWN else ""
    return InputDocument(name, text, metadata | ({"title": title} if title else {}), title)


def markdown_title(text: str) -> str:
    r"""Return the first heading of a Markdown text that is outside of a code block; empty if there is none.

    Examples
    --------
    >>> markdown_title("Notes\n```sh\n# a comment\n```\n## On pears ##\n")
    'On pears'
    """
    fence = ""
    for line in text.splitlines():
        opened = _FENCE.match(line)
        if opened and not fence:
            fence = opened[1]
        elif opened and opened[1].startswith(fence):
            fence = ""
        elif not fence and (heading := _HEADING.fullmatch(line)) and heading[1]:
            return heading[1]
    return ""
