"""Commands: files of any bytes for ``latelier index``, and now and then the whole command line with odd arguments."""

import random
from functools import lru_cache
from pathlib import Path

from typer.testing import CliRunner, Result

from input_fuzzer import make_case, run_case
from latelier.cli import app
from soak.cases import Part, Wrong, say

# One in so many goes through a model, which costs a hundred times as much.
_WHOLE = 100
_ODD = [
    "",
    " ",
    "\udcff\udcfe",
    "\ud800",
    "\0",
    "\x1b[2J\x1b]0;title\x07",
    "-",
    "--",
    "--json",
    "é" * 999,
    "x" * 99_999,
]
# What makes a terminal do something: none of it may come out of a document or a query.
_CONTROLS = {chr(code) for code in (*range(32), *range(127, 160))} - set("\n\t\r")


def prepare(source: Path) -> None:
    """Make the index that odd queries are put to."""
    (source / "text.jsonl").write_text(
        '{"id": "a\\u001b[2J", "text": "Bananas\\u001b]0;x\\u0007 are healthy.", "year": 2019}\n'
    )
    result = _run("index", source / "text.jsonl", "--index", source / "index", "--device", "cpu")
    assert result.exit_code == 0, result.output


def case(source: Path, scratch: Path, seed: int) -> str:
    """Read one file of odd bytes; now and then index it, or search with odd arguments."""
    rng = random.Random(seed)
    if seed % _WHOLE == 1:
        return _search(rng, source)
    made = make_case(rng)
    say(f"{made.suffix} {made.arguments} {made.content[:200]!r}")
    if seed % _WHOLE == 2:
        path = scratch / f"case{made.suffix}"
        path.write_bytes(made.content[:20_000])
        return _outcome(_run("index", path, "--index", scratch / "index", "--device", "cpu", *made.arguments))
    outcome = run_case(made, scratch)
    if outcome.verdict == "wrong":
        raise Wrong(outcome.detail)
    return outcome.verdict


def _search(rng: random.Random, source: Path) -> str:
    arguments = [source / "index", rng.choice([*_ODD, "fruit"])]
    for option in ("--filter", "--parameter", "-k", "--explain", "--json"):
        if rng.random() < 0.3:
            arguments += (
                [option] if option.startswith(("--e", "--j")) else [option, rng.choice([*_ODD, "year > ?", "3"])]
            )
    say(f"search {arguments[1:]}"[:500])
    return _outcome(_run("search", "--device", "cpu", *arguments))


@lru_cache
def _runner() -> CliRunner:
    return CliRunner()


def _run(*arguments: object) -> Result:
    return _runner().invoke(app, [str(argument) for argument in arguments], prog_name="latelier")


def _outcome(result: Result) -> str:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    controls = _CONTROLS & set(result.stdout)
    if controls:
        raise Wrong(f"wrote control characters to the terminal: {sorted(controls)}")
    return "accepted" if result.exit_code == 0 else "refused"


COMMANDS = Part("commands", 5000, prepare, case)
