"""Catalogs whose schema is another one: triggers, views, virtual tables, other versions."""

import random
import sqlite3
from pathlib import Path

_ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT {} FROM c"
_COLUMNS = {
    "document": "x AS number, x AS id",
    "content": "x AS number, '{}' AS metadata, '' AS text",
    "tombstone": "'a' AS segment, x AS number",
    "segment": "x AS name, x AS first, x AS last, 1 AS documents, 0 AS removed, 1 AS tokens, '{}' AS files",
    "field": "'a' || x AS name, 'a' AS spelling, 'f' || x AS \"column\"",
    "setting": "'a' || x AS name, '1' AS value",
}


def trigger(rng: random.Random, catalog: sqlite3.Connection, victim: Path) -> str:
    """Do something else, or something endless, whenever something is written."""
    table = rng.choice(["document", "content", "segment", "setting", "tombstone", "user_setting"])
    event = rng.choice(["INSERT", "UPDATE", "DELETE"])
    action = rng.choice(
        [
            *(f"DELETE FROM {name}" for name in ("document", "content", "segment", "setting")),
            *(
                "UPDATE segment SET name = '../../victim'",
                "SELECT randomblob(2000000000)",
                "SELECT RAISE(ROLLBACK, 'x')",
            ),
            f"INSERT INTO tombstone {_ENDLESS.format('x, x')}",
        ]
    )
    catalog.execute(f"CREATE TRIGGER t AFTER {event} ON {table} BEGIN {action}; END")
    return f"trigger {event} {table}: {action}"


def view(rng: random.Random, catalog: sqlite3.Connection, victim: Path) -> str:
    """Put a view, maybe an endless one, in the place of a table."""
    table = rng.choice(list(_COLUMNS))
    catalog.execute(f"ALTER TABLE {table} RENAME TO real_{table}")
    body = rng.choice(
        [_ENDLESS.format(_COLUMNS[table]), f"SELECT * FROM real_{table}", "SELECT 1", f"SELECT * FROM {table}"]
    )
    catalog.execute(f"CREATE VIEW {table} AS {body}")
    return f"view {table} AS {body}"


def table(rng: random.Random, catalog: sqlite3.Connection, victim: Path) -> str:
    """Drop a table, or put another one in its place or beside it."""
    name = rng.choice(list(_COLUMNS))
    way = rng.choice(["drop", "columns", "virtual", "json_each", "generated", "index", "check", "text"])
    if way in ("drop", "columns", "virtual"):
        catalog.execute(f"DROP TABLE {name}")
    statement = {
        "drop": "SELECT 1",
        "columns": f"CREATE TABLE {name} (a, b, c)",
        "virtual": f"CREATE VIRTUAL TABLE {name} USING {rng.choice(['fts5(number, id)', 'rtree(number, a, b)'])}",
        "json_each": "CREATE TABLE json_each (value, key)",
        "generated": "ALTER TABLE document ADD COLUMN f77 AS (zeroblob(1000000000))",
        "index": "CREATE INDEX i ON document (hex(zeroblob(number * 1000)))",
        "check": "CREATE TABLE other (a CHECK (length(hex(zeroblob(a))) > 0))",
        "text": "PRAGMA writable_schema = ON",
    }[way]
    catalog.execute(statement)
    if way == "text":
        sql = rng.choice(["", "CREATE TABLE", "CREATE TABLE document (number)", None, "x" * 10_000])
        catalog.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, name))
    return f"{way} {name}: {statement}"


def pragma(rng: random.Random, catalog: sqlite3.Connection, victim: Path) -> str:
    """Claim another version, or leave SQLite in another mode."""
    number = rng.choice([0, 1, 2, 3, 99, -1, 2**31 - 1, -(2**31)])
    statement = rng.choice([f"user_version = {number}", f"application_id = {number}", "journal_mode = DELETE"])
    catalog.execute(f"PRAGMA {statement}")
    return f"PRAGMA {statement}"


ATTACKS = (trigger, view, table, pragma)
