"""A case is a function of a seed; what it may end in, and running one of them."""

import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# What one case may add to the most memory that its process has ever held.
CASE_BYTES = 1 << 30
_OWN = ("latelier", str(Path(__file__).parents[1]))
# What the case that is running has said of itself.
_said: list[str] = []


class Wrong(Exception):
    """The library did what it must not do."""


class Part(NamedTuple):
    """One row of the table: `cases` seeds at full size, each given `seconds`.

    `prepare` makes, once, what all cases read from a folder. `case` gets that folder, an empty one of its own and the
    seed; it returns ``"refused"``, ``"accepted"`` or a `Counter` of both, and raises where something is wrong.
    """

    name: str
    cases: int
    prepare: Callable[[Path], None]
    case: Callable[[Path, Path, int], "str | Counter[str]"]
    seconds: float = 60.0


class Report(NamedTuple):
    """How a case ended; `wrong` is empty where nothing is."""

    seed: int
    counts: Counter[str]
    wrong: str = ""


def run_case(part: Part, source: Path, scratch: Path, seed: int, *, show: bool = False) -> Report:
    scratch.mkdir(parents=True)
    _said.clear()
    held = _most_memory()
    try:
        outcome = part.case(source, scratch, seed)
        counts = outcome if isinstance(outcome, Counter) else Counter([outcome])
        grown = _most_memory() - held
        wrong = f"it took {grown / 2**30:.1f} GiB of memory" if grown > CASE_BYTES else ""
    except Exception as error:  # noqa: BLE001 (whatever reaches the caller raw is a finding)
        counts, wrong = Counter(), str(error) if isinstance(error, Wrong) else raw(error)
        if show:
            traceback.print_exc()
    finally:
        _remove(scratch)
    return Report(seed, Counter() if wrong else counts, "; ".join([wrong, *_said]) if wrong else "")


def say(text: str) -> None:
    """Note what this case tries, for the report of what goes wrong; printed too, should the process die."""
    _said[:] = [text]
    print(f"case: {text}", flush=True)  # noqa: T201


def is_own(text: str) -> bool:
    return any(name in text for name in _OWN)


def raw(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-3:]))
    return f"raw {type(error).__name__}: {' '.join(str(error).split())[:300]} (at {places})"


def _most_memory() -> int:
    if os.name != "posix":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _remove(folder: Path) -> None:
    for path in folder.rglob("*"):  # some cases take permissions away
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
