"""Text and Markdown files as one document each, and folders of them.

The id is the path of a file, its title the first heading of a Markdown text.
"""

from __future__ import annotations

import datetime
import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from latelier.errors import InvalidArgumentError, LatelierError, StorageError
from latelier.indexes.catalog.values import is_unicode
from latelier.retrieve.documents import InputDocument
from latelier.utils.checks import cut, describe, short
from latelier.utils.files import read_text
from latelier.utils.misc import warn_caller

__all__ = ["DocumentFolder", "markdown_title", "whole_file"]

_MARKDOWN = (".md", ".markdown")
_SUFFIXES = (".txt", *_MARKDOWN)
_MOST_NAMED = 10  # skipped files in a warning
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*")
# Code, items of a list, quotes, tables and HTML: dashes below are no underline.
_NO_PARAGRAPH = re.compile(r"    |\t| {0,3}(?:[-*+][ \t]|\d+[.)][ \t]|[>|<])")
_FOLDERS = re.compile(r"(?:^|(?<=/))(?:\*\*/)+")
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
    title = markdown_title(text) if suffixes in _MARKDOWN else ""
    return InputDocument(name, text, metadata | ({"title": title} if title else {}), title)


def markdown_title(text: str) -> str:
    r"""Return the first heading of a Markdown text, of ``#`` or underlined; empty if there is none.

    Code blocks and YAML front matter are skipped. A paragraph of several lines is no title, even if it is underlined.

    Examples
    --------
    >>> markdown_title("Notes\n```sh\n# a comment\n```\n## On pears ##\n")
    'On pears'
    >>> markdown_title("---\n# a comment\ntags: fruit\n---\nOn figs\n=======\n")
    'On figs'
    """
    fence = ""
    block: list[str] = []  # the lines since the last blank one
    for line in _without_front_matter(text.splitlines()):
        opened = _FENCE.match(line)
        if opened and not fence:
            fence = opened[1]
        elif opened and opened[1].startswith(fence):
            fence = ""
        elif not fence and (heading := _HEADING.fullmatch(line)) and heading[1]:
            return heading[1]
        elif not fence and len(block) == 1 and _UNDERLINE.fullmatch(line) and _is_paragraph(block[0]):
            return block[0].strip()
        block = [*block[:1], line] if line.strip() and not fence and not opened else []
    return ""


def _without_front_matter(lines: list[str]) -> list[str]:
    """Return the lines after YAML between ``---`` and ``---`` or ``...`` at the beginning; all, if there is none."""
    if not lines or lines[0].rstrip() != "---":
        return lines
    end = next((i for i, line in enumerate(lines) if i and line.rstrip() in ("---", "...")), -1)
    return lines[end + 1 :]


def _is_paragraph(line: str) -> bool:
    return any(map(str.isalnum, line)) and not _NO_PARAGRAPH.match(line)


class DocumentFolder:
    r"""The files of a folder and its sub-folders, each as one document.

    The list of files is made once; the files are read one by one while it is iterated. An id is the path of a file
    relative to the folder, with ``/`` between its parts. Hidden files and folders (``.name``) are left out. Links to
    folders are not followed, and links to files outside of the folder are skipped. What cannot be read (not UTF-8,
    empty, without permission) is skipped too: one such file does not stop the reading of thousands. A warning at the
    end names the skipped files, or says that there are no files to read.

    Parameters
    ----------
    folder
        The folder.
    glob
        Patterns of the files to read, such as ``*.rst``; none: ``.txt``, ``.md`` and ``.markdown``. A pattern with a
        slash is compared with the path relative to the folder, where ``*`` also matches slashes, and ``**/`` folders
        of any depth or none; others with the name.

    Attributes
    ----------
    skipped
        Path and reason of each file that was skipped so far.

    Raises
    ------
    InvalidArgumentError
        If there is no such folder, or a pattern is not a text.
    StorageError
        If the folder cannot be listed.

    Examples
    --------
    >>> notes = Path("notes")
    >>> notes.mkdir()
    >>> _ = (notes / "b.txt").write_text("Pears ripen in September.")
    >>> _ = (notes / "a.md").write_text("# Apples\nThey keep all winter.")
    >>> documents = DocumentFolder(notes)
    >>> len(documents), [document.id for document in documents]
    (2, ['a.md', 'b.txt'])
    >>> documents.skipped
    []
    """

    def __init__(self, folder: Path, glob: Sequence[str] = ()) -> None:
        patterns = [glob] if isinstance(glob, str) else glob
        if not isinstance(patterns, (list, tuple)) or not all(isinstance(each, str) and each for each in patterns):
            raise InvalidArgumentError(f"received {describe(glob)} as glob; expected patterns such as '*.rst'.")
        self.folder, self._glob = folder, tuple(patterns)
        self._patterns = [("/" in each, _compiled(each)) for each in patterns]
        self._found: list[Path] = []
        self.skipped: list[tuple[str, str]] = []
        self._list(folder)
        self._listed = len(self.skipped)
        self._found.sort(key=lambda path: path.relative_to(folder).parts)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[InputDocument]:
        del self.skipped[self._listed :]  # those of an earlier iteration
        for path in self._found:
            try:
                document = whole_file(path, self.folder)
            except LatelierError as error:
                self._skip(path, cut(str(error).removeprefix(f"{path} "), 200))
            else:
                yield document
        if not self._found:
            wanted = ", ".join(map(short, self._glob)) or ".txt, .md and .markdown"
            warn_caller(f"no file of {self.folder} is read: looked for {wanted} in it and its sub-folders.")
        if self.skipped:
            named = "".join(f"\n  {_on_one_line(name)}: {reason}" for name, reason in self.skipped[:_MOST_NAMED])
            more = f"\n  and {len(self.skipped) - _MOST_NAMED:,} more" if len(self.skipped) > _MOST_NAMED else ""
            warn_caller(f"skipped {len(self.skipped):,} files of {self.folder}:{named}{more}")

    def _list(self, folder: Path) -> None:
        """Add the files below a folder; it is the top of the tree, so an error of it is raised, not recorded."""
        try:
            entries = [*os.scandir(folder)]
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise InvalidArgumentError(f"there is no folder {str(folder)!r}.") from error
        except OSError as error:
            raise StorageError(f"cannot list {folder}: {error}.") from error
        waiting = [entries]
        while waiting:
            for entry in waiting.pop():
                path = Path(entry.path)
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    try:
                        waiting.append([*os.scandir(path)])
                    except OSError as error:
                        self._skip(path, str(error))
                elif self._is_wanted(path) or (entry.is_symlink() and path.is_dir()):
                    self._add(path, entry)

    def _add(self, path: Path, entry: os.DirEntry[str]) -> None:
        """Add a regular file, or a link to one within the folder."""
        try:
            target = path.resolve(strict=True) if entry.is_symlink() else path
            kind = path.stat().st_mode
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
            self._skip(path, f"a link that leads nowhere: {error}" if entry.is_symlink() else str(error))
            return
        if entry.is_symlink() and stat.S_ISDIR(kind):
            self._skip(path, "a link to a folder")
        elif entry.is_symlink() and not target.is_relative_to(self.folder.resolve()):
            self._skip(path, "a link to a file outside of the folder")
        elif not stat.S_ISREG(kind):
            self._skip(path, "not a regular file")
        else:
            self._found.append(path)

    def _is_wanted(self, path: Path) -> bool:
        if not self._patterns:
            return path.suffix.lower() in _SUFFIXES
        relative = path.relative_to(self.folder).as_posix()
        return any(pattern.match(relative if has_slash else path.name) for has_slash, pattern in self._patterns)

    def _skip(self, path: Path, reason: str) -> None:
        self.skipped.append((path.relative_to(self.folder).as_posix(), reason))


def _compiled(glob: str) -> re.Pattern[str]:
    """Return the expression of a pattern, in which ``**/`` stands for folders of any depth or none."""
    # No path holds the character that stands for it. The shortest match comes first, since `fnmatch` tries no other one
    # of what is between two asterisks.
    return re.compile(fnmatch.translate(_FOLDERS.sub("\0", glob)).replace("\0", "(?:.*?/)??"))


def _on_one_line(name: str) -> str:
    """Return the name of a file as a warning shows it: a line end in it must not look like another file."""
    return name if name.isprintable() else short(name)
