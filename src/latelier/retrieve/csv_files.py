"""The rows of a CSV file; a quote that is not closed is an error, and does not hide the rows after it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from latelier.errors import InvalidArgumentError
from latelier.utils.files import LONGEST_LINE

__all__ = ["csv_rows"]


def csv_rows(
    lines: Iterable[str], source: str, *, delimiter: str = ","
) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    r"""Read the header of a CSV file; return the names of its columns, and an iterator over its rows.

    Parameters
    ----------
    lines
        The lines, with their line ends.
    source
        Name of the file in messages.
    delimiter
        The character between cells.

    Returns
    -------
    list of str
        The names of the columns; none for an empty file.
    iterator of (int, dict)
        The number of the line where a row begins, and its cells by the names of their columns. A row may have fewer
        cells than there are columns.

    Raises
    ------
    InvalidArgumentError
        Also while rows are read: if a cell is too long, a row has more cells than there are columns, or a quote is not
        closed.

    Examples
    --------
    >>> lines = ["id,text\n", '1,"two\n', 'lines"\n', "\n", "2,one\n"]
    >>> names, rows = csv_rows(lines, "a.csv")
    >>> names, list(rows)
    (['id', 'text'], [(2, {'id': '1', 'text': 'two\nlines'}), (5, {'id': '2', 'text': 'one'})])
    >>> lines = ["id,text\n", '1,"not closed\n', "2,one\n"]
    >>> list(csv_rows(lines, "a.csv")[1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: a.csv:2: malformed CSV: a quote in the row that begins here is not closed...
    """
    rows = _rows(_RowLines(lines), source, delimiter)
    _, names = next(rows, (1, []))

    def records() -> Iterator[tuple[int, dict[str, str]]]:
        for number, row in rows:
            if len(row) > len(names):
                raise InvalidArgumentError(f"{source}:{number}: more cells than the header has columns.")
            yield number, dict(zip(names, row, strict=False))

    return names, records()


class _RowLines:
    """The lines of a file as an iterator that keeps those of the current row.

    Parameters
    ----------
    lines
        All lines.

    Attributes
    ----------
    row
        The lines of the current row so far.
    count
        Number of lines read.
    has_ended
        Whether there are no more.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.row: list[str] = []
        self.count = 0
        self.has_ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._lines)
        except StopIteration:
            self.has_ended = True
            raise
        self.count += 1
        self.row.append(line)
        return line


def _rows(lines: _RowLines, source: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows that are not blank, each with the number of its first line."""
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        lines.row = []
        first = lines.count + 1
        # The csv module's limit on the length of a cell is global, so it is raised only while a row is read.
        before = csv.field_size_limit(LONGEST_LINE)
        try:
            row = next(reader, None)
            if row:
                _check_quotes(lines, f"{source}:{first}", delimiter)
        except csv.Error as error:
            raise InvalidArgumentError(
                f"{source}:{first}: malformed CSV: {error}; a cell has at most {LONGEST_LINE:,} characters. Is a quote "
                "not closed?"
            ) from error
        finally:
            csv.field_size_limit(before)
        if row is None:
            return
        if row:
            yield first, row


def _check_quotes(lines: _RowLines, where: str, delimiter: str) -> None:
    """Check the quotes of a row of several lines: a cell without its closing quote takes in the rows after it.

    The csv module goes on to the next quote, or to the end of the file, and reports it only if it is strict. Strict on
    all rows, it would also reject stray quotes in rows of one line, which do no harm.
    """
    if len(lines.row) == 1 and not lines.has_ended:
        return
    try:
        list(csv.reader(lines.row, delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise InvalidArgumentError(
            f"{where}: malformed CSV: a quote in the row that begins here is not closed, or stands within a cell "
            f"({error}); close it, and write a quote within a cell twice."
        ) from error
