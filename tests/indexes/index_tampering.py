"""A small index on disk, and what a broken disk or an attacker may do to its files."""

import sqlite3

from index_helpers import matrices

from latelier import indexes
from latelier.indexes.store.checks import COLUMNS, row_checksum

KINDS = [indexes.Flat, indexes.IVF]


IDS = ["a", "b", "c", "d"]


def make(folder, kind=indexes.Flat, **options):
    with kind(folder, **options) as index:
        index.add(IDS, matrices([3, 3, 3, 3]), texts=IDS, metadata=[{"n": i, "who": f"w{i}"} for i in range(4)])
        index.add(["x"], matrices([1], seed=1), texts=["ex"], metadata=[{"n": 9}])
    return folder


def file_of(folder, id, name):
    for segment in (folder / "segments").iterdir():
        if f'"{id}"'.encode() in (segment / "ids.npy").read_bytes():
            return segment / name
    raise LookupError(id)


def flip(path, position, bit=6):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def change(folder, statement, *parameters):
    connection = sqlite3.connect(folder / "catalog.sqlite")
    with connection:
        rows = connection.execute(statement, parameters).fetchall()
    connection.close()
    return rows


def forge(folder, table, **values):
    """Change values of the first row of a table, and its checksum as an attacker would."""
    connection = sqlite3.connect(folder / "catalog.sqlite")
    with connection:
        columns = COLUMNS[table]
        row = dict(zip(columns, connection.execute(f"SELECT * FROM {table}").fetchone(), strict=False))
        key = row[columns[0]]
        row.update(values)
        assignments = ", ".join(f"{name} = ?" for name in (*columns, "checksum"))
        checked = [*row.values(), row_checksum(table, list(row.values()))]
        connection.execute(f"UPDATE {table} SET {assignments} WHERE {columns[0]} = ?", (*checked, key))
    connection.close()
