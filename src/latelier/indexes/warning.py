"""`warn_of_damage`: the warning of calls that have nevertheless succeeded."""

from __future__ import annotations

from latelier.errors import IndexDamageWarning
from latelier.utils.misc import warn_caller

__all__ = ["warn_of_damage"]


def warn_of_damage(problem: str) -> None:
    """Warn of damage found by a call that has nevertheless succeeded; the message says how to repair it."""
    warn_caller(
        f"{problem} verify() lists the damaged files and the ids of their documents: update() or remove() them, or "
        "restore the files from a backup.",
        IndexDamageWarning,
    )
