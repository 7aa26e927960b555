"""What the commands print: tables for people, JSON for programs, and colour only where a person sees it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import typer

from latelier.cli.printable import escape_json, printable
from latelier.utils.describing import cut

if TYPE_CHECKING:
    from latelier.retrieve import Explanation, Result

__all__ = [
    "bold",
    "explanation_lines",
    "is_terminal",
    "print_json",
    "result_lines",
    "results_json",
    "show_progress",
    "width",
]

# Where output goes to a file, lines have no edge to be cut at; a generous width keeps them readable.
_FILE_WIDTH = 200
_WIDEST_ID = 100


def bold(text: str) -> str:
    """Return the text in bold, or as it is where no person looks on or NO_COLOR is set."""
    plain = "NO_COLOR" in os.environ or not is_terminal(sys.stdout)
    return text if plain else typer.style(text, bold=True)


def show_progress() -> bool:
    """Whether a person watches standard error."""
    return is_terminal(sys.stderr)


def width() -> int:
    """Return how many columns a line may have."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else _FILE_WIDTH


def print_json(value: Any) -> None:
    """Print one JSON value on standard output; what would act on a terminal is escaped, as JSON allows."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    plain = encoding.lower().replace("-", "") not in ("utf8", "utf8sig")
    typer.echo(escape_json(json.dumps(value, ensure_ascii=plain, indent=2)))


def result_lines(results: Iterable[Result], explanations: Mapping[Any, Explanation] | None = None) -> list[str]:
    """Return a table: rank, score, id and the beginning of the text, each followed by its explanation if there is one.

    Parameters
    ----------
    results
        Best first.
    explanations
        Document id to explanation, of some of them.
    """
    results = list(results)
    ids = [cut(printable(str(result.id)), _WIDEST_ID) for result in results]
    left = max(map(len, ids), default=0)
    lines = []
    for rank, (id_, result) in enumerate(zip(ids, results, strict=True), start=1):
        head = f"{rank:3}  {result.score:6.3f}  "
        room = max(width() - len(head) - left - 2, 20)
        # Cut first: a text may be megabytes. Separators of any kind become spaces, and so act on nothing.
        words = " ".join((result.text or "")[: 20 * room].split())
        text = textwrap.shorten(printable(words), room, placeholder=" ...")
        lines.append(f"{head}{bold(f'{id_:{left}}')}  {text}".rstrip())
        if explanations and result.id in explanations:
            lines += explanation_lines(explanations[result.id])
    return lines


def explanation_lines(explanation: Explanation) -> list[str]:
    """Return which word of the document answered which word of the query, in one paragraph."""
    words = (match for match in explanation.words() if match.word not in explanation.special)
    matches = [printable(f"{match.word} ~ {match.matched} {match.contribution:.2f}") for match in words]
    return textwrap.wrap(", ".join(matches), max(width() - 1, 40), initial_indent=" " * 13, subsequent_indent=" " * 13)


def results_json(results: Iterable[Result], explanations: Mapping[Any, Explanation]) -> list[dict[str, Any]]:
    """Return results as JSON values, with the words of those that are explained."""
    values = []
    for rank, result in enumerate(results, start=1):
        value = {"rank": rank, **result._asdict()}
        if result.id in explanations:
            value["words"] = [match._asdict() for match in explanations[result.id].words()]
        values.append(value)
    return values


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person looks on; a stream that was closed by who started the process is None."""
    return stream is not None and stream.isatty()
