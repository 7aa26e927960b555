"""Filters: expressions from a grammar, joined to a condition on the tenant, never find documents of anybody else."""

import random
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
from filter_fuzzer import ROWS, random_filter

from latelier import indexes
from latelier.errors import LatelierError
from soak.cases import Part, Wrong, say

_TENANTS = ("t0", "t1", "t2")
# A filter may take 10 seconds of time; of the processor's, which a busy machine shares out, no more than that.
_SECONDS = 11.0


def prepare(source: Path) -> None:
    with indexes.Flat(source / "index") as index:
        vectors = [np.eye(4)[: number % 4 + 1] for number in range(len(ROWS))]
        texts = [f"text {number}" if number % 5 else None for number in range(len(ROWS))]
        index.add([f"{row['tenant']} {number}" for number, row in enumerate(ROWS)], vectors, texts, ROWS)
        index.remove([id for id in index.ids() if int(str(id).split()[1]) % 7 == 3])


def case(source: Path, scratch: Path, seed: int) -> str:
    rng = random.Random(seed)
    expression, parameters = random_filter(rng)
    tenant, index = rng.choice(_TENANTS), _index(source)
    condition = f"tenant = '{tenant}'"
    filter = [condition, expression] if seed % 2 else f"{condition} AND ({expression})"
    say(f"{filter!r} {parameters!r}"[:800])
    started = time.process_time()
    try:
        # "1) OR (1" is refused by itself, and in a list, but not once it stands between parentheses.
        index.search(np.eye(4), k=1, filter=expression, parameters=parameters)
        found = index.search(np.eye(4), k=len(ROWS), filter=filter, parameters=parameters)
    except LatelierError:
        return "refused"
    finally:
        took = time.process_time() - started
        if took > _SECONDS:
            raise Wrong(f"took {took:.1f} seconds")
    others = {hit.id for row in found for hit in row} - {id for id in _living(source) if id.startswith(tenant)}
    if others:
        raise Wrong(f"found what is removed or somebody else's: {sorted(others)[:5]}")
    return "accepted"


@lru_cache
def _index(source: Path) -> indexes.Index:
    return indexes.open(source / "index", read_only=True)


@lru_cache
def _living(source: Path) -> tuple[str, ...]:
    return tuple(map(str, _index(source).ids()))


FILTERS = Part("filters", 10_000, prepare, case)
