"""Kills: writers killed at any moment, ten in a row on one index; what was committed is whole."""

from collections import Counter
from pathlib import Path

from kill_rounds import KINDS, grow_early, kill_rounds

from soak.cases import Part

ROUNDS = 10


def prepare(source: Path) -> None:
    """Nothing: each case begins with an empty folder."""


def case(source: Path, scratch: Path, seed: int) -> Counter[str]:
    grow_early()
    kind = list(KINDS.values())[seed % len(KINDS)]
    kind(scratch / "index").close()
    kill_rounds(scratch / "index", seed, ROUNDS)
    return Counter(accepted=ROUNDS)


KILLS = Part("kills", 100, prepare, case)
