"""Reading the text files of a collection, plain or gzipped, and reporting all of their faulty lines at once.

Real collections have faulty lines, and a reader that stops at the first one makes repairing them slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from latelier.errors import InvalidArgumentError, StorageError
from latelier.utils.checks import check_choice
from latelier.utils.files import open_binary, text_lines
from latelier.utils.misc import warn_caller

__all__ = ["OnProblem", "Problems", "is_header", "numbered_lines"]

OnProblem = Literal["error", "warn"]
_LISTED = 10


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number (from 1) and the text of every line that is not blank.

    ``.gz`` is decompressed, and a byte order mark dropped.

    Parameters
    ----------
    path
        The file.

    Yields
    ------
    tuple
        ``(line number, text)``.

    Raises
    ------
    InvalidArgumentError
        If the file cannot be read, or is not UTF-8.
    """
    try:
        lines = text_lines(open_binary(path), str(path), compressed=path.suffix == ".gz")
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line.rstrip("\r\n")
    except StorageError as error:
        raise InvalidArgumentError(str(error)) from error


def is_header(relevance: str) -> bool:
    """Whether the first line of qrels in BEIR's format is a header, given its third column.

    Examples
    --------
    >>> is_header("score"), is_header("1.0"), is_header("")
    (True, False, False)
    """
    try:
        float(relevance)
    except ValueError:
        return bool(relevance.strip())
    return False


class Problems:
    """The faulty lines found so far; `settle` raises one error or issues one warning about them.

    Parameters
    ----------
    on_problem
        ``"error"`` raises, ``"warn"`` issues a warning.

    Raises
    ------
    InvalidArgumentError
        If ``on_problem`` is something else.

    Examples
    --------
    >>> problems = Problems("error")
    >>> problems.add("corpus.jsonl", 3, "the text is empty")
    >>> problems.settle("my-folder")
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: my-folder has 1 problem:
      corpus.jsonl:3: the text is empty
    Repair the files, or skip these lines: on_problem="warn", or --on-problem warn.
    """

    def __init__(self, on_problem: OnProblem) -> None:
        check_choice("on_problem", on_problem, get_args(OnProblem))
        self.on_problem = on_problem
        self.total = 0
        self._first: list[str] = []

    def add(self, file: str, line: int, what: str) -> None:
        """Record one faulty line."""
        self.total += 1
        if len(self._first) < _LISTED:
            self._first.append(f"  {file}:{line}: {what}")

    def settle(self, source: str) -> None:
        """Raise or warn if any line was recorded; the message begins with ``source``."""
        if not self.total:
            return
        hidden = self.total - len(self._first)
        places = "\n".join([*self._first, *([f"  and {hidden:,} more"] if hidden else [])])
        found = f"{source} has {self.total:,} problem{'s' if self.total > 1 else ''}"
        if self.on_problem == "warn":
            warn_caller(f"{found}; these lines are skipped:\n{places}")
            return
        raise InvalidArgumentError(
            f'{found}:\n{places}\nRepair the files, or skip these lines: on_problem="warn", or --on-problem warn.'
        )
