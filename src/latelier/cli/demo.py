"""``latelier demo``: search the docstrings of Python's standard library."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latelier.cli.options import DeviceOption

if TYPE_CHECKING:
    from latelier.demo.session import Session
    from latelier.retrieve import Explanation, Result


def demo(
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="A question; default: five prepared ones, then yours.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Maximum number of results per question.")] = 3,
    device: DeviceOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Search Python's own documentation by meaning.

    The first run indexes the docstrings of your Python's standard library, which takes minutes on a laptop; later runs
    answer immediately. The index is kept in your cache folder (LATELIER_CACHE names another one). The line below the
    best result shows which word of the question matched which word of the text, and its contribution to the score.

    \b
    Example:
      latelier demo "wait for several threads"
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.cli.output import print_json, quiet_loading, results_json, show_progress
    from latelier.demo.session import QUESTIONS, Session

    quiet_loading()
    with Session(device, on_first_run=_announce, show_progress=show_progress()) as session:
        answers = []
        for question in QUESTIONS if query is None else (query,):
            results, explanations = session.answer(question, k)
            if not json_output:
                _print_answer(question, results, explanations)
            answers.append({"query": question, "results": results_json(results, explanations)})
        if json_output:
            seconds = {phase: round(value, 3) for phase, value in session.seconds.items()}
            facts = {"index": str(session.folder), "documents": len(session), "seconds": seconds}
            print_json({**facts, "answers": answers})
            return
        phases = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in session.seconds.items())
        typer.echo(f"\n{len(session):,} docstrings; {phases}", err=True)
        typer.echo('In a browser, with pip install "latelier[serve]": latelier serve --demo', err=True)
        if query is None:
            _prompt(session, k)


def _announce(count: int, folder: Path) -> None:
    typer.echo(f"First run: indexing {count:,} docstrings into {folder}", err=True)


def _print_answer(question: str, results: list[Result], explanations: dict[Any, Explanation]) -> None:
    """Print a question and its results, each with the first line of its docstring."""
    from latelier.cli.output import bold, printable, result_lines

    # The first line of a text repeats the name.
    summaries = [(result.text or "").partition("\n")[2].partition("\n")[0] for result in results]
    shown = [result._replace(text=text) for result, text in zip(results, summaries, strict=True)]
    typer.echo("\n".join([f"\n{bold(printable(question))}", *result_lines(shown, explanations)]))


def _prompt(session: Session, k: int) -> None:
    """On a terminal, answer the questions that are typed until an empty line."""
    from latelier.cli.output import is_terminal

    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        return
    with suppress(ImportError):
        import readline  # noqa: F401 (gives input() line editing)
    with suppress(EOFError, KeyboardInterrupt):
        while question := input("\nYour question (an empty line ends): ").strip():
            _print_answer(question, *session.answer(question, k))
