"""Kills: writers killed at any moment, ten in a row on one index; what was committed is whole."""

from collections import Counter
from pathlib import Path

from kill_rounds import KINDS, grow_early, kill_rounds

from latelier.indexes.ivf.index import compile_kernels
from soak.cases import Part

ROUNDS = 10


def prepare(source: Path) -> None:
    """Compile what children would be killed while loading."""
    compile_kernels()


def case(source: Path, scratch: Path, seed: int) -> Counter[str]:
    grow_early()
    compile_kernels()  # loads them, for the children
    kind = list(KINDS.values())[seed % len(KINDS)]
    kind(scratch / "index").close()
    kill_rounds(scratch / "index", seed, ROUNDS)
    return Counter(accepted=ROUNDS)


KILLS = Part("kills", 100, prepare, case)
