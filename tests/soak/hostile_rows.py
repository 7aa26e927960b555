"""Catalogs whose rows lie: names that lead elsewhere, counts, shapes and settings that are not true."""

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

from soak.hostile_values import mutated_json, paths, value

_TABLES = ("setting", "user_setting", "segment", "tombstone", "document", "content", "field")


def any_cell(rng: random.Random, catalog: sqlite3.Connection, victim: Path) -> str:
    """Put any value anywhere."""
    table = rng.choice(_TABLES)
    column = rng.choice([row[1] for row in catalog.execute(f"PRAGMA table_info({table})")])
    return _set(catalog, rng, table, column, value(rng, victim))


def any_json(rng: random.Random, catalog: sqlite3.Connection, victim: Path) -> str:
    """Change one value in what is stored as JSON."""
    table, column = rng.choice([("segment", "files")] * 3 + [("setting", "value")] * 2 + [("content", "metadata")])
    rows = catalog.execute(f"SELECT {column} FROM {table} ORDER BY {column}").fetchall()
    if table == "setting" and rng.random() < 0.7:
        rows = catalog.execute("SELECT value FROM setting WHERE name = 'derived'").fetchall() or rows
    old = rng.choice(rows)[0]
    new = mutated_json(rng, old, victim)
    catalog.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (new, old))
    return f"{table}.{column} = {new[:300]}"


def segment_names(rng: random.Random, catalog: sqlite3.Connection, victim: Path) -> str:
    """Call a segment, or the ANN data, by another name; or add a segment that is to be deleted."""
    name: Any = rng.choice([*paths(victim), 7, b"..", "link"])
    way = rng.choice(["dead", "dead", "rename", "derived"])
    if way == "dead":
        row = (name, 10**6, 10**6, *rng.choice([(0, 0), (1, 1), (1, 0)]), 0, rng.choice(["{}", '{"../notes.npy": {}}']))
        catalog.execute("INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    elif way == "rename":
        old = rng.choice(catalog.execute("SELECT name FROM segment ORDER BY first").fetchall())[0]
        catalog.execute("UPDATE OR REPLACE segment SET name = ? WHERE name = ?", (name, old))
        catalog.execute("UPDATE OR REPLACE tombstone SET segment = ? WHERE segment = ?", (name, old))
    else:
        stored = json.dumps([str(name), {}])
        catalog.execute("INSERT OR REPLACE INTO setting VALUES ('derived', ?)", (stored,))
    return f"{way} segment {name!r}"


def counts(rng: random.Random, catalog: sqlite3.Connection, victim: Path) -> str:
    """Lie about a segment, or in the settings that count."""
    big = rng.choice([0, 1, -1, 3, 10**6, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)])
    if rng.random() < 0.4:
        name = rng.choice(["dim", "next_number", "generation", "nbits", "dtype", "kind"])
        new = json.dumps(rng.choice([big, -big, 8, 0.5, "x", None, [], {"a": 1}, True, "float64", "ivf", "flat", 3]))
        catalog.execute("UPDATE setting SET value = ? WHERE name = ?", (new, name))
        return f"setting {name} = {new}"
    return _set(catalog, rng, "segment", rng.choice(["first", "last", "documents", "removed", "tokens"]), big)


def tombstones(rng: random.Random, catalog: sqlite3.Connection, victim: Path) -> str:
    """Remove documents that are not there, or twice, or all."""
    name = rng.choice(catalog.execute("SELECT name FROM segment ORDER BY first").fetchall())[0]
    numbers = rng.choice([[-1], [10**9], ["x"], [2**63 - 1], [None], [0.5], list(range(500))])
    catalog.executemany("INSERT OR IGNORE INTO tombstone VALUES (?, ?)", [(name, number) for number in numbers])
    if rng.random() < 0.5:
        catalog.execute("UPDATE segment SET removed = ? WHERE name = ?", (len(numbers), name))
    return f"tombstones {numbers[:3]} of {name}"


def fields(rng: random.Random, catalog: sqlite3.Connection, victim: Path) -> str:
    """Name columns that are SQL, or not there."""
    column = rng.choice(
        [
            *("number", "id", "rowid", "f99", "", "*", "1", "f0, f1", "f0 --", "(SELECT text FROM content)", '"', "'"),
            *("randomblob(1000000000)", "load_extension('x')", "f0) UNION SELECT number FROM document --", "a\0b"),
        ]
    )
    name = rng.choice(["year", "zz", "YEAR", 'a"b', "", "id", "text", "number", "(", "\0"])
    catalog.execute("INSERT OR REPLACE INTO field VALUES (?, ?, ?)", (name, name, column))
    if rng.random() < 0.3:
        catalog.execute("UPDATE OR REPLACE field SET column = ? WHERE name = 'who'", (column,))
    return f"field {name!r} in column {column!r}"


def retriever_setting(rng: random.Random, catalog: sqlite3.Connection, victim: Path) -> str:
    """Name a model that brings code, and options that let it run."""
    model = rng.choice(
        [str(victim.parent / "index" / "model"), "model", "./model", str(victim), "..", None, 5, ["x"], ""]
    )
    options = rng.choice(
        [
            *({}, {"trust_remote_code": True}, {"model_kwargs": {"trust_remote_code": True}}, [], None, "x"),
            *({"config_kwargs": {"auto_map": {"AutoModel": "evil.Evil"}}}, {"device": 3}, {"recipe": {"a": 1}}),
            *({"token": "x", "cache_folder": str(victim)}, {"max_length_query": 10**9}, {"backend": "onnx"}),
        ]
    )
    if isinstance(options, dict) and rng.random() < 0.5:
        options["trust_remote_code"] = True
    probe = rng.choice([[0.0] * 8, [], None, "x", [1e308] * 8, [[1]], ["x"] * 8])
    stored: Any = {"name": model, "options": options, "fingerprint": probe}
    stored = rng.choice([stored] * 6 + [[], "x", {"name": model}, None])
    catalog.execute("INSERT OR REPLACE INTO user_setting VALUES ('retriever', ?)", (json.dumps(stored),))
    return f"retriever {json.dumps(stored)[:300]}"


def _set(catalog: sqlite3.Connection, rng: random.Random, table: str, column: str, new: Any) -> str:
    key = "rowid" if table in ("segment", "document", "content", "field") else column
    rows = catalog.execute(f"SELECT {key} FROM {table} ORDER BY 1").fetchall()
    if rows:
        catalog.execute(f"UPDATE OR REPLACE {table} SET {column} = ? WHERE {key} = ?", (new, rng.choice(rows)[0]))
    return f"{table}.{column} = {str(new)[:80]!r}"


ATTACKS = (any_cell, any_cell, any_json, any_json, segment_names, segment_names, counts, tombstones, fields)
