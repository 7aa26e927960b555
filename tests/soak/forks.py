"""Forks: processes that fork with an index open, at any moment; nothing hangs, nothing is lost."""

from pathlib import Path

from fork_rounds import KINDS, QUERY, fork_round

from soak.cases import Part, Wrong


def prepare(source: Path) -> None:
    """Compile the kernels, so that no child has to: on a busy machine that takes longer than a child may."""
    for number, kind in enumerate(KINDS.values()):
        with kind(source / str(number)) as index:
            index.add("a", QUERY)
            index.search(QUERY)


def case(source: Path, scratch: Path, seed: int) -> str:
    outcome = fork_round(list(KINDS)[seed % len(KINDS)], scratch / "index", seed)
    if outcome.failures:
        raise Wrong("; ".join(outcome.failures))
    return "refused" if outcome.child == "refused" else "accepted"


FORKS = Part("forks", 1000, prepare, case, seconds=90.0)
