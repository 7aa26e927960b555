"""What commands print: results, JSON, progress, and exceptions as messages.

Documents, ids, metadata and file names may come from untrusted sources. Control characters in them can move the cursor,
rename the window or clear the screen; bidirectional overrides can make a line look different. Both are printed escaped.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from latelier.errors import Advice, LatelierError
from latelier.retrieve.images import place
from latelier.utils.checks import cut, escape_json, is_unicode, printable

if TYPE_CHECKING:
    from latelier.retrieve import Explanation, Result

# Width of a line if the output is not a terminal: long enough for a sentence, short enough to read.
_FILE_WIDTH = 200
_LONGEST_ID = 100


def print_json(value: Any) -> None:
    """Print one JSON value on standard output, with control characters escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    plain = encoding.lower().replace("-", "") not in ("utf8", "utf8sig")
    text = json.dumps(value, ensure_ascii=plain, indent=2)
    if not is_unicode(text):  # the name of a file that is not UTF-8
        text = json.dumps(value, indent=2)
    typer.echo(escape_json(text))


def result_lines(results: Iterable[Result], explanations: Mapping[Any, Explanation] | None = None) -> list[str]:
    """Return a table of results; what matched is below the line of each that is explained."""
    results = list(results)
    ids = [cut(printable(str(result.id)), _LONGEST_ID) for result in results]
    left = max(map(len, ids), default=0)
    lines = []
    for rank, (id_, result) in enumerate(zip(ids, results, strict=True), start=1):
        head = f"{rank:3}  {result.score:6.3f}  "
        room = max(_width() - len(head) - left - 2, 20)
        # Cut before the text is split: it may have megabytes. split() turns any white space into single spaces.
        shown = result.text or ""
        explanation = (explanations or {}).get(result.id)
        if explanation is not None and explanation.text == shown:
            start, _ = explanation.snippet(room)
            shown = ("... " if start else "") + shown[start:]
        words = " ".join(f"{place(result.metadata)} {shown[: 20 * room]}".split())
        text = textwrap.shorten(printable(words), room, placeholder=" ...")
        lines.append(f"{head}{bold(f'{id_:{left}}')}  {text}".rstrip())
        if explanation is not None:
            lines += _explanation_lines(explanation)
    return lines


def results_json(results: Iterable[Result], explanations: Mapping[Any, Explanation]) -> list[dict[str, Any]]:
    """Return results as JSON values, with the matched words of those that have an explanation."""
    values = []
    for rank, result in enumerate(results, start=1):
        value = {"rank": rank, **result._asdict()}
        if result.start is None:  # not a passage
            del value["start"], value["end"]
        if result.id in explanations:
            value["words"] = [match._asdict() for match in explanations[result.id].words()]
        values.append(value)
    return values


def bold(text: str) -> str:
    """Return the text in bold, or unchanged if standard output is not a terminal or NO_COLOR is set."""
    plain = "NO_COLOR" in os.environ or not is_terminal(sys.stdout)
    if plain:
        return text
    return typer.style(text, bold=True)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; it is None if the parent process closed it."""
    return stream is not None and stream.isatty()


def quiet_loading() -> None:
    """Turn off the progress bars of transformers, which appear even for a small model, without importing it."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers reads it when it is imported
    if "transformers" in sys.modules:
        sys.modules["transformers"].utils.logging.disable_progress_bar()


def _explanation_lines(explanation: Explanation) -> list[str]:
    """Return the word pairs of an explanation with their contributions to the score, as an indented paragraph."""
    words = (match for match in explanation.words() if match.word not in explanation.special)
    matches = [printable(f"{match.word} ~ {match.matched} {match.contribution:.2f}") for match in words]
    return textwrap.wrap(", ".join(matches), max(_width() - 1, 40), initial_indent=" " * 13, subsequent_indent=" " * 13)


def _width() -> int:
    if is_terminal(sys.stdout):
        return shutil.get_terminal_size().columns
    return _FILE_WIDTH


INTERRUPTED = 130  # as in shells: 128 + SIGINT
_LONGEST = 4000
# What to do about an error, on the command line.
_ADVICE: dict[Advice, str] = {
    "copy-settings": "Give an empty index; or --no-settings, if the documents of both fit together.",
    "export-encoder": "latelier index makes one, with the extra 'onnx'; or use --backend torch.",
    "filter-timeout": "Simplify it, or give it more time: --filter-timeout 60, or 0 for no limit.",
    "give-model": "Give the model: --model.",
    "known-ids": "latelier search shows the ids of what it finds.",
    "make-index": "Create one with latelier index SOURCE --index FOLDER.",
    "name-fields": "Name others with --id, --text, --title and --metadata.",
    "name-index": "Give it another name: NAME=INDEX.",
    "open-qdrant": "Give it as qdrant:FOLDER, if you trust it, since it holds pickles.",
    "open-writable": "Leave the write token out, or leave --read-only out.",
    "qdrant-key": "Set the environment variable QDRANT_API_KEY to a key that may read and write the collection.",
    "raise-memory": "Give it more, or leave --max-memory out.",
    "read-token": "Give one with --read-token (and --write-token, if they may write), or leave --host out to serve "
    "this machine only.",
    "same-space": "Or give --same-space for a model that was made for the vectors of that one.",
    "skip-faulty": "Repair the files, or skip these lines: --on-problem warn.",
    "skip-needs-ids": "--id names their field.",
    "skip-stored": "Run it again, which leaves those that are stored as they are.",
    "update": "latelier index replaces documents.",
    "update-or-skip": "latelier index replaces documents that have changed.",
}
# Newer versions of typer vendor click: its UsageError is reached through typer.
_UsageError: Any = typer.BadParameter.__base__


@contextmanager
def messages(debug: bool) -> Iterator[None]:
    """Print each exception as a message on standard error, or with `debug` as a traceback, and set the exit status."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except _UsageError as error:
        error.message = printable(error.message + _near_choice(error), lines=True)  # it quotes arguments as typed
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BaseException as error:
        if debug or getattr(error, "errno", None) == errno.EPIPE or not isinstance(error, Exception):
            raise  # on EPIPE, a closed pipe, typer exits without a message
        typer.echo(cut(printable(_message(error), lines=True), _LONGEST), err=True)
        raise typer.Exit(1) from error


def _near_choice(error: Any) -> str:
    """Return a hint if what was typed is nearly one of the choices of an option."""
    if "is not one of" not in error.message:
        return ""
    typed, *choices = re.findall(r"'([^']*)'", error.message) or [""]
    near = get_close_matches(typed, choices, 1)
    if near:
        return f" Did you mean {near[0]!r}?"
    return ""


def exit_now(status: int) -> NoReturn:
    """End the process without waiting for its threads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()
    os._exit(status)


def prepare_streams() -> None:
    """Escape characters that the locale cannot encode, and print each warning on one line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning


def _message(error: Exception) -> str:
    if isinstance(error, LatelierError):
        return f"Error: {error.worded(_ADVICE)}"
    if isinstance(error, MemoryError):
        return "Error: there is not enough memory."
    if isinstance(error, OSError):
        return f"Error: {error}."
    return (
        f"Error: {type(error).__name__}: {error}\n"
        "This is a bug: please report it, with the traceback that 'latelier --debug ...' shows."
    )


def _show_warning(message: Any, *args: Any, **kwargs: Any) -> None:
    typer.echo(f"Warning: {cut(printable(str(message), lines=True), _LONGEST)}", err=True)
