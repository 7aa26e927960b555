"""``latelier demo``: search the documentation of Python itself, with nothing to prepare."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="A question; default: five prepared ones, then yours.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many answers to a question.")] = 3,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: the best there is.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Search Python's own documentation by meaning.

    The first run indexes the docstrings of your Python's standard library, which takes minutes on a laptop; later runs
    answer at once. The index is kept in your cache folder (LATELIER_CACHE names another one). Below each best answer:
    which word of the question was answered by which word of the text, and what that added to the score.

    \b
    Example:
      latelier demo "wait for several threads"
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.cli.output import print_json
    from latelier.demo.session import Session

    with Session(device) as session:
        answers = session.answer_all(query, k, quiet=json_output)
        if json_output:
            print_json({**session.facts(), "answers": answers})
            return
        typer.echo(f"\n{session.times()}", err=True)
        if query is None:
            session.prompt(k)
