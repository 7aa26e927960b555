"""Rows of the catalog, inserted many in one statement."""

import sqlite3

import pytest

from latelier.indexes.store.checks import column_checksums, row_checksum, spell
from latelier.indexes.store.rows import _insert_columns as insert_columns


@pytest.mark.parametrize("columns", [2, 3, 4, 500, 901])
@pytest.mark.parametrize("count", [0, 1, 224, 225, 226, 450, 451])
def test_all_rows_are_inserted_in_order(columns, count):
    names = [f"c{i}" for i in range(columns)]
    rows = [tuple(range(number, number + columns)) for number in range(count if columns < 100 else count % 5)]
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE wide ({', '.join(names)})")
    insert_columns(connection, "wide", {name: [row[i] for row in rows] for i, name in enumerate(names)})
    assert connection.execute("SELECT * FROM wide ORDER BY rowid").fetchall() == rows


def test_no_statement_has_more_values_than_old_sqlite_takes():
    connection = sqlite3.connect(":memory:")
    connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
    connection.execute("CREATE TABLE narrow (a)")
    insert_columns(connection, "narrow", {"a": range(5000)})
    assert connection.execute("SELECT count(*), sum(a) FROM narrow").fetchone() == (5000, 12497500)


def test_checksums_of_columns_are_those_of_their_rows():
    kinds = [7, "7", None, 1.5, True, "é\ud7ff", "", -(1 << 62)]
    rows = [(number, kinds[number % 8], "{}", kinds[number % 5]) for number in range(40)]
    expected = [row_checksum("content", row) for row in rows]
    assert column_checksums("content", list(map(spell, zip(*rows, strict=True)))) == expected
    assert len(set(expected)) == 40
