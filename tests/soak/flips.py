"""Flips: one file of an index is damaged, mostly by a bit; that is found or harmless, and writing does not hide it."""

import contextlib
import random
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from kill_rounds import grow_early

from latelier import indexes
from latelier.errors import LatelierError
from soak.cases import Part, Wrong, say
from soak.damage import damage
from soak.flip_sources import DIM, KINDS, LOGGED, STATES, answers, differing, make, of_ids

_FRESH = "fresh"


def case(source: Path, scratch: Path, seed: int) -> str:
    """Damage a copy of an index; look at it without writing; write to it and look again."""
    grow_early()
    rng, folder = random.Random(seed), scratch / "index"
    name = rng.choice([*KINDS, *LOGGED])
    # Without the side files of other processes that are reading the source; a log is left where it holds something.
    side_files = ["*-shm"] if name in LOGGED else ["*-shm", "*-wal"]
    shutil.copytree(source / name, folder, ignore=shutil.ignore_patterns(*side_files))
    say(f"{name}, {damage(rng, folder)}")
    good = [_good(source / name)]
    if name in LOGGED:  # a damaged log ends at the damage: SQLite takes what is before it, and nothing after
        good += [_good(source / f"{name}.{state}") for state in range(STATES - 1)]
    found = _look(folder, good)
    _write(folder, good)
    return "refused" if found else "accepted"


@lru_cache
def _good(folder: Path) -> dict[str, Any]:
    with indexes.open(folder, read_only=True) as index:
        return answers(index)


def _look(folder: Path, good: list[dict[str, Any]]) -> bool:
    try:
        with indexes.open(folder, read_only=True) as index:
            report, found = _verify(index), answers(index)
            _compare(report, found, good, "")
            _check_survivors(index, report, good, "")
    except LatelierError:
        return True
    return report is None or not report.is_whole or any(isinstance(answer, LatelierError) for answer in found.values())


def _write(folder: Path, good: list[dict[str, Any]]) -> None:
    try:
        with indexes.open(folder) as index:
            _add(index)
            with contextlib.suppress(LatelierError):
                index.compact()
        with indexes.open(folder) as index:
            report, found = _verify(index), answers(index, approximate=False)
            _compare(report, found, good, " after add and compact")
            _check_survivors(index, report, good, " after add and compact")
    except LatelierError:
        return


def _add(index: indexes.Index) -> None:
    try:
        index.add(_FRESH, np.ones((1, DIM)))
        added = True
    except LatelierError:
        added = False
    if (_FRESH in index) != added:
        raise Wrong("add returned, but the document is not there" if added else "add raised after it had committed")


def _verify(index: indexes.Index) -> indexes.VerifyReport | None:
    try:
        return index.verify()
    except LatelierError:
        return None


def _compare(report: indexes.VerifyReport | None, found: dict[str, Any], good: list[dict[str, Any]], when: str) -> None:
    if report is not None and report.is_whole:
        wrong = min((differing(found, state, ignore=_FRESH if when else None) for state in good), key=len)
        if wrong:
            raise Wrong(f"verify says whole{when}, but other answers: {', '.join(wrong)}")


def _check_survivors(
    index: indexes.Index, report: indexes.VerifyReport | None, good: list[dict[str, Any]], when: str
) -> None:
    """Ask about the documents that a damage of segments has left whole."""
    if report is None or report.is_whole or any(damage.file.startswith("catalog.sqlite") for damage in report.damages):
        return
    if len(good) > 1:
        return  # which commit it is that is damaged is not known
    lost = set(report.ids)
    ids = [id for id in good[0]["ids"] if id not in lost]
    found = answers(index, ids)
    for name, answer in found.items():
        if isinstance(answer, LatelierError):
            raise Wrong(f"{name} of documents that are not damaged{when}: {answer}")
    wrong = differing(found, of_ids(good[0], ids))
    if wrong:
        raise Wrong(f"other answers about documents that verify calls whole{when}: {', '.join(wrong)}")


FLIPS = Part("flips", 6000, make, case)
