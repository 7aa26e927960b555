"""Rows of Parquet files as records, read in batches, with values that JSON can hold."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latelier.errors import InvalidArgumentError, MissingExtraError, StorageError
from latelier.utils.checks import cut
from latelier.utils.files import open_binary

__all__ = ["json_value", "parquet_rows"]

# Rows converted to Python objects at once; a row group is read page by page.
_ROWS = 1024


def parquet_rows(path: str | Path, columns: list[str] | None = None) -> tuple[list[str], Iterator[dict[str, Any]]]:
    """Return the names of a file's columns, and an iterator over its rows.

    Parameters
    ----------
    path
        The file.
    columns
        Columns to read, if not all; names that the file does not have are left out.

    Raises
    ------
    InvalidArgumentError
        If there is no such file, or it is not a Parquet file.
    MissingExtraError
        If pyarrow is not installed.
    StorageError
        While reading, if the file is damaged.

    Examples
    --------
    >>> import pyarrow, pyarrow.parquet
    >>> table = pyarrow.table({"id": [1, 2], "text": ["one", "two"]})
    >>> pyarrow.parquet.write_table(table, "numbers.parquet")
    >>> names, rows = parquet_rows("numbers.parquet")
    >>> names, list(rows)
    (['id', 'text'], [{'id': 1, 'text': 'one'}, {'id': 2, 'text': 'two'}])
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("Reading Parquet files", "parquet") from error
    file = open_binary(path)
    try:
        opened = parquet.ParquetFile(file)
        names = list(opened.schema_arrow.names)
    except (pyarrow.ArrowException, OSError) as error:
        file.close()
        raise InvalidArgumentError(f"{path} is not a Parquet file: {_reason(error)}.") from error

    def rows() -> Iterator[dict[str, Any]]:
        wanted = None if columns is None else [name for name in names if name in columns]
        with file:
            try:
                for batch in opened.iter_batches(batch_size=_ROWS, columns=wanted):
                    yield from _records(batch)
            except (pyarrow.ArrowException, OSError, ValueError) as error:  # ValueError: a time that Python cannot hold
                raise StorageError(f"cannot read {path}: {_reason(error)}.") from error

    return names, rows()


def json_value(value: Any) -> Any:
    """Return a value of a table as JSON has it: times as ISO 8601, decimals as numbers, NaN as None.

    Bytes are decoded as UTF-8.

    Raises
    ------
    InvalidArgumentError
        If bytes are not UTF-8 text.

    Examples
    --------
    >>> price = decimal.Decimal("1.50")
    >>> json_value({"on": datetime.date(2024, 5, 1), "price": price})
    {'on': '2024-05-01', 'price': 1.5}
    >>> json_value([float("nan"), b"text"])
    [None, 'text']
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, dict):
        return {str(key): json_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(each) for each in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else json_value(float(value))
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError("it holds bytes that are not UTF-8 text.") from error
    return str(value)  # a UUID, an interval


def _reason(error: Exception) -> str:
    """Return the message of pyarrow, which may end with a full stop or a line end."""
    return cut(str(error).strip().rstrip("."), 200)


def _records(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record batch as Python objects."""
    import pyarrow

    # datetime has microseconds, so times in nanoseconds are rounded down.
    columns = []
    for column in batch.columns:
        kind = column.type
        if pyarrow.types.is_timestamp(kind) and kind.unit == "ns":
            column = column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
        columns.append(column.to_pylist())
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))
