"""Hostile catalogs: index folders from a stranger, opened, searched and written to; nothing outside them changes."""

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from kill_rounds import grow_early

from latelier import indexes
from latelier.errors import LatelierError
from latelier.retrieve import Retriever
from soak import hostile_arrays, hostile_folders, hostile_rows, hostile_schema
from soak.cases import Part, Wrong, say
from soak.flip_sources import DIM, FILTER, KINDS, QUERIES, fill, repeat_names

_SOURCES = ("flat-float32", "ivf-8", "ann-4")


def prepare(source: Path) -> None:
    """Make an index of each kind, and the files of somebody else."""
    repeat_names()
    grow_early()
    for name in _SOURCES:
        kind, options = KINDS[name]
        fill(kind(source / name, **options)).close()
    victim = source / "victim"
    (victim / "photos").mkdir(parents=True)
    for name in ("photos/a.jpg", "letter.txt"):
        (victim / name).write_text("somebody else's")
    (victim / "empty").touch()
    np.save(victim / "notes.npy", np.arange(12.0))
    shutil.copytree(source / "flat-float32", victim / "index")


def case(source: Path, scratch: Path, seed: int) -> str:
    """Change an index in one hostile way, and use it in every way."""
    grow_early()
    rng = random.Random(seed)
    name, folder, victim = rng.choice(_SOURCES), scratch / "index", scratch / "victim"
    shutil.copytree(source / name, folder)
    shutil.copytree(source / "victim", victim)
    with_model, said = _attack(rng, folder, victim)
    say(f"{name}: {said}")
    before, outside = _state(victim), sorted(scratch.iterdir())
    here = Path.cwd()
    os.chdir(victim)  # what is relative to it would be found
    try:
        refused = _use(folder, with_model=with_model)
    finally:
        os.chdir(here)
    if sorted(scratch.iterdir()) != outside or _state(victim) != before:
        raise Wrong(f"changed outside of the index: {sorted(set(_state(victim).items()) ^ set(before.items()))[:3]}")
    return "refused" if refused else "accepted"


def _attack(rng: random.Random, folder: Path, victim: Path) -> tuple[bool, str]:
    if rng.random() < 0.2 and os.name == "posix":
        return False, rng.choice(hostile_folders.ATTACKS)(rng, folder, victim)
    with_model = rng.random() < 0.08
    attacks = rng.choices([hostile_rows.ATTACKS, [hostile_arrays.arrays], hostile_schema.ATTACKS], [4, 3, 2])[0]
    attack: Callable[..., str] = rng.choice(attacks)
    if with_model:
        hostile_folders.evil_model(folder, victim)
        attack = hostile_rows.retriever_setting
    if attack is hostile_rows.segment_names and os.name == "posix":
        (folder / "segments" / "link").symlink_to(victim)
    connection = sqlite3.connect(folder / "catalog.sqlite", isolation_level=None)
    try:
        said = attack(rng, connection, victim)
        if attack is hostile_arrays.arrays or rng.random() < 0.8:
            hostile_arrays.seal(connection)
        return with_model, said
    except sqlite3.Error as error:  # SQLite itself does not hold such a row
        return with_model, f"{attack.__name__}: {error}"
    finally:
        connection.close()


def _use(folder: Path, *, with_model: bool) -> int:
    """Do what users do; return how often that was refused. Errors that are not the library's reach the caller."""
    refused = 0

    def attempt(do: Callable[[], Any]) -> Any:
        nonlocal refused
        try:
            return do()
        except LatelierError:
            refused += 1
            return None

    for read_only in (True, False):
        index = attempt(partial(indexes.open, folder, read_only=read_only))
        if index is None:
            continue
        with index:
            for step in _reads(index):
                attempt(step)
            for step in () if read_only else _writes(index):
                attempt(step)
    if with_model:
        attempt(lambda: Retriever.open(folder, device="cpu", read_only=True))
        attempt(lambda: Retriever.open(folder, device="cpu"))
    return refused


def _reads(index: indexes.Index) -> list[Callable[[], Any]]:
    return [
        index.verify,
        lambda: repr(index),
        lambda: (len(index), index.dim, dict(index.settings), "d1" in index),
        lambda: index.get(index.ids()),
        lambda: index.get_embeddings(index.ids()),
        lambda: index.get_embeddings("d1"),
        lambda: index.search(QUERIES),
        lambda: index.search(QUERIES, filter=FILTER),
        lambda: index.search(QUERIES, k=1000, filter="json_extract(metadata, '$.year') > 2100"),
        lambda: index.check(queries=2),
    ]


def _writes(index: indexes.Index) -> list[Callable[[], Any]]:
    vectors = np.ones((2, DIM))
    return [
        lambda: index.add("new", vectors, "text", {"year": 1, "new": 2}),
        lambda: index.update(["d1", "d2"], [vectors, vectors]),
        lambda: index.remove("d4"),
        lambda: index.settings.update(tool=1),
        index.compact,
        lambda: index.search(QUERIES),
        index.verify,
        index.compact,
    ]


def _state(folder: Path) -> dict[str, Any]:
    """Return what a folder holds: names, times of change, bytes."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        key = str(path.relative_to(folder))
        found[key] = (path.stat().st_mtime_ns, path.read_bytes()) if path.is_file() else "folder"
    return found


PART = Part("catalogs", 3000, prepare, case, seconds=20.0)
