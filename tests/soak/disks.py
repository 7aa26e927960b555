"""Disks: writes that meet the end of the disk, or system calls that fail, anywhere."""

import errno
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from index_helpers import in_child
from kill_rounds import KINDS, apply, carry_out, grow_early, plan, stored

from latelier import indexes
from latelier.errors import LatelierError
from soak.cases import Part, Wrong

WRITES = 6


def prepare(source: Path) -> None:
    """Need nothing."""


def case(source: Path, scratch: Path, seed: int) -> Counter[str]:
    grow_early()
    rng, counts = random.Random(seed), Counter[str]()
    folder, state = scratch / "index", {}
    with list(KINDS.values())[seed % len(KINDS)](folder) as index:
        for _ in range(3):
            operation = plan(rng, state)
            carry_out(index, *operation)
            state = apply(state, *operation)
    operations, limit = [plan(rng, state) for _ in range(WRITES)], rng.randrange(1, 1 << 19)
    done, outcomes = in_child(lambda: _write(folder, operations, limit, seed if seed % 3 == 2 else None))
    counts.update(outcomes)
    with indexes.open(folder) as index:
        found = stored(index)
        if not index.verify().is_whole:
            raise Wrong(f"damaged by a limit of {limit} bytes: {index.verify()}")
        # A commit that raised an error may have taken effect: of such documents only their wholeness is known.
        for number in done:
            state = apply(state, *operations[number])
        unsure = {id for number, operation in enumerate(operations) if number not in done for id in operation[1]}
        differing = {id for id in state.keys() | found.keys() if state.get(id) != found.get(id)} - unsure
        if differing:
            raise Wrong(f"other documents than were committed, with a limit of {limit} bytes: {sorted(differing)}")
        index.update("after", np.ones((1, 8)))
        index.compact()
        if not index.verify().is_whole or "after" not in index:
            raise Wrong("a write after the disk had room again is not there")
    return counts


def _fail_calls(folder: Path, seed: int) -> None:
    rng = random.Random(seed)

    def failing(real: Callable) -> Callable:
        def call(*arguments: object, **options: object) -> object:
            if (isinstance(arguments[0], int) or str(arguments[0]).startswith(str(folder))) and rng.random() < 0.1:
                raise OSError(rng.choice([errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EACCES]), "injected")
            return real(*arguments, **options)

        return call

    for name in ("open", "fsync", "mkdir", "rename", "stat", "lstat", "scandir", "listdir"):
        setattr(os, name, failing(getattr(os, name)))


def _write(folder: Path, operations: list, limit: int, seed: int | None) -> tuple[list[int], dict[str, int]]:
    import resource
    import signal

    if seed is None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    else:
        _fail_calls(folder, seed)
    done, counts = [], Counter(refused=0, accepted=0)
    try:
        index = indexes.open(folder)
    except LatelierError:
        return done, {"refused": len(operations), "accepted": 0}
    for number, operation in enumerate(operations):
        try:
            carry_out(index, *operation)
            done.append(number)
            counts["accepted"] += 1
        except LatelierError:
            counts["refused"] += 1
    os.sync()
    return done, dict(counts)


DISKS = Part("disks", 200, prepare, case)
