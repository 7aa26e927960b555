"""A small index on disk, and what a broken disk or an attacker may do to its files."""

import sqlite3
import zlib

from index_helpers import matrices

from latelier import indexes

KINDS = [indexes.Flat, indexes.IVF]
IDS = ["a", "b", "c", "d"]


def make(folder, kind=indexes.Flat, **options):
    with kind(folder, **options) as index:
        index.add(IDS, matrices([3, 3, 3, 3]), texts=IDS, metadata=[{"n": i, "who": f"w{i}"} for i in range(4)])
        index.add(["x"], matrices([1], seed=1), texts=["ex"], metadata=[{"n": 9}])
    return folder


def file_of(folder, id, name):
    for ids in (folder / "segments").glob("*/ids.npy"):
        if f'"{id}"'.encode() in ids.read_bytes():
            return ids.parent / name
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


def row_checksum(table, values):
    """Return the checksum of a row, as an attacker computes it: the CRC-32 of its table, and types and values."""
    kinds = {str: "s", int: "i", float: "f", type(None): "n"}
    return zlib.crc32((table + "".join(f"\x1f{kinds.get(type(value), 'x')}{value}" for value in values)).encode())


def forge(folder, table, key=None, **values):
    connection = sqlite3.connect(folder / "catalog.sqlite")
    with connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        where = f"WHERE {columns[0]} = ?" if key is not None else ""
        found = connection.execute(f"SELECT * FROM {table} {where}", [key] * (key is not None)).fetchone()
        row = dict(zip(columns, found, strict=True))
        key = row[columns[0]]
        row.update(values)
        row["checksum"] = row_checksum(table, [row[name] for name in columns if name != "checksum"])
        assignments = ", ".join(f"{name} = ?" for name in columns)
        connection.execute(f"UPDATE {table} SET {assignments} WHERE {columns[0]} = ?", (*row.values(), key))
    connection.close()
