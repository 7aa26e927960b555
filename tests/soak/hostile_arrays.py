"""Indexes whose arrays lie, with checksums that are right: a stranger computes those too."""

import io
import json
import random
import sqlite3
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from latelier.indexes.store.checks import COLUMNS, row_checksum
from latelier.indexes.store.rows import document_checksum

_INTEGERS = (0, 1, -1, 2, 7, 2**7, 2**15, 2**20, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63))


def arrays(rng: random.Random, catalog: sqlite3.Connection, victim: Path) -> str:
    """Change numbers, the shape or the type of one array, and what the catalog says of its file."""
    rows = catalog.execute("SELECT name, files FROM segment ORDER BY first").fetchall()
    derived = catalog.execute("SELECT value FROM setting WHERE name = 'derived'").fetchone()
    of_derived = derived is not None and rng.random() < 0.6
    name, files = json.loads(derived[0]) if of_derived else rng.choice(rows)
    files = files if of_derived else json.loads(files)
    file = rng.choice(sorted(files))
    path = victim.parent / "index" / "segments" / name / file
    array = np.load(path)
    way = rng.choice([_numbers, _numbers, _numbers, _order, _shape, _kind])
    changed = way(rng, array)
    files[file] = _write(path, changed)
    if of_derived:
        catalog.execute("UPDATE setting SET value = ? WHERE name = 'derived'", (json.dumps([name, files]),))
    else:
        catalog.execute("UPDATE segment SET files = ? WHERE name = ?", (json.dumps(files), name))
    kind = "derived" if of_derived else "segment"
    return f"{kind} {file}: {way.__name__} {array.dtype}{array.shape} to {changed.dtype}{changed.shape}"


def seal(catalog: sqlite3.Connection) -> None:
    """Give every row the checksum of what it holds now."""
    catalog.create_function("sealed", -1, lambda table, *values: row_checksum(table, values))
    catalog.create_function("sealed_document", -1, lambda *pairs: document_checksum(pairs[::2], pairs[1::2]))
    for table, columns in COLUMNS.items():
        catalog.execute(f"UPDATE {table} SET checksum = sealed('{table}', {', '.join(columns)})")
    names = [row[1] for row in catalog.execute("PRAGMA table_info(document)") if row[1] != "checksum"]
    pairs = ", ".join(f"'{name}', {name}" for name in names)
    catalog.execute(f"UPDATE document SET checksum = sealed_document({pairs})")
    id = "(SELECT id FROM document WHERE document.number = content.number)"
    catalog.execute(f"UPDATE content SET checksum = sealed('content', number, {id}, metadata, text)")


def _numbers(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """Put extreme numbers into some places, or into all."""
    changed = array.copy()
    flat = changed.reshape(-1)
    if not flat.size:
        return changed
    some: Any = rng.choice([slice(None), rng.randrange(flat.size), slice(rng.randrange(flat.size), None), -1, 0])
    if changed.dtype.kind == "f":
        flat[some] = rng.choice([np.nan, np.inf, -np.inf, 0.0, 3e4])
    elif rng.random() < 0.3:
        flat[some] += np.array(rng.choice(_INTEGERS)).astype(changed.dtype)
    else:
        flat[some] = np.array(rng.choice(_INTEGERS)).astype(changed.dtype)
    return changed


def _order(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """Turn an order round, or mix it."""
    axis = rng.randrange(array.ndim) if array.ndim else 0
    if not array.size:
        return array
    return np.flip(array, axis) if rng.random() < 0.5 else np.random.default_rng(rng.randrange(99)).permuted(array)


def _shape(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """Leave rows out, add some, or turn the axes."""
    return rng.choice(
        [array[:0], array[:-1], array[:1], np.concatenate([array, array]), array.T, array[None], array.reshape(-1)]
    )


def _kind(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """Keep the bytes as numbers of another type."""
    return array.reshape(-1).view("uint8").view(rng.choice(["uint8", "int8", "bool"])) if array.size else array


def _write(path: Path, array: np.ndarray) -> dict[str, Any]:
    """Write a file as a writer would, and return what the catalog says of it."""
    array = np.ascontiguousarray(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    content = header.getvalue() + array.tobytes()
    path.write_bytes(content)
    shape = list(array.shape)
    return {"bytes": len(content), "crc32": zlib.crc32(content), "dtype": array.dtype.str, "shape": shape}
