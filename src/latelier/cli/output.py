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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from latelier.errors import Advice, LatelierError
from latelier.retrieve.results import NOTHING_MATCHES
from latelier.utils.checks import cut, escape_json, is_unicode, printable

if TYPE_CHECKING:
    from latelier.retrieve import Excerpt, Result, Results, WordMatch

# Width of a line if the output is not a terminal: long enough for a sentence, short enough to read.
_FILE_WIDTH = 200
_LONGEST_ID = 100
_INDENT = 13  # of what stands below a result
_MOST_LINES = 3  # of an excerpt
_MOST_WEAK = 3  # results that are shown where all are weak
# Around a marked word, while lines are wrapped: printable text has neither.
_BOLD = "\x02"
_PLAIN = "\x03"
_NO_MARKS = {ord(_BOLD): None, ord(_PLAIN): None}
_BETWEEN = re.compile(f"{_BOLD}([^{_PLAIN}]*){_PLAIN}?")


def print_json(value: Any) -> None:
    """Print one JSON value on standard output, with control characters escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    plain = encoding.lower().replace("-", "") not in ("utf8", "utf8sig")
    text = json.dumps(value, ensure_ascii=plain, indent=2)
    if not is_unicode(text):  # the name of a file that is not UTF-8
        text = json.dumps(value, indent=2)
    typer.echo(escape_json(text))


def result_lines(results: Results, *, explain: bool = False, most: int = _MOST_LINES) -> list[str]:
    """Return a line for each result, and below it the excerpt that matched, and if wanted the words that did."""
    lines = []
    weak = []
    is_weak = bool(results) and all(result.weak for result in results)
    if is_weak:
        lines.append(f"{NOTHING_MATCHES}; the nearest:")
    for rank, result in enumerate(results, start=1):
        id = cut(printable(str(result.id)), _LONGEST_ID)
        if result.weak and (not is_weak or rank > _MOST_WEAK):
            weak.append(id)
            continue
        lines += _result_lines(rank, result, results.excerpt(result), explain=explain, most=most)
    if weak:
        named = cut(", ".join(weak), _width() - _INDENT)
        lines.append(f"{len(weak)} more match{'es' if len(weak) == 1 else ''} weakly: {named}")
    return lines


def _result_lines(rank: int, result: Result, excerpt: Excerpt, *, explain: bool, most: int) -> list[str]:
    """Return rank, score, id, title and place in one line, the excerpt below it, and if wanted the words."""
    id = printable(str(result.id))
    parts = [bold(cut(id, _LONGEST_ID))]
    if excerpt.title and excerpt.title not in id:
        parts.append(cut(printable(excerpt.title), _LONGEST_ID))
    if excerpt.place:
        parts.append(cut(printable(excerpt.place), _LONGEST_ID))
    lines = [f"{rank:3}  {result.score:6.3f}  {', '.join(parts)}", *_excerpt_lines(excerpt, most)]
    if explain and excerpt.words:
        lines += _word_lines(excerpt.words)
    return lines


def _excerpt_lines(excerpt: Excerpt, most: int) -> list[str]:
    """Return an excerpt in indented lines, with the words that matched in bold."""
    # Marked words are wrapped as they are printed: the characters around them have no width, and are in no text.
    shown = excerpt.shown(printable, lambda word: f"{_BOLD}{printable(word)}{_PLAIN}")
    room = max(_width() - _INDENT - 1, 20)
    lines: list[str] = []
    line = ""
    for word in shown.split():
        width = len((line + " " + word).translate(_NO_MARKS))
        if line and width > room:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    lines.append(line)
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1]} ..."]
    return [" " * _INDENT + _BETWEEN.sub(lambda found: bold(found[1]), each) for each in lines if each]


def results_json(results: Results, *, explain: bool) -> list[dict[str, Any]]:
    """Return results as JSON values, with the excerpt that matched, and if wanted the matched words."""
    values = []
    for rank, result in enumerate(results, start=1):
        value = {"rank": rank, **result._asdict()}
        if result.start is None:  # not a passage
            del value["start"], value["end"]
        excerpt = results.excerpt(result)
        value["excerpt"] = excerpt.as_json()
        if explain:
            value["words"] = [match._asdict() for match in excerpt.words]
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


def _word_lines(words: Iterable[WordMatch]) -> list[str]:
    """Return pairs of words with their contributions to the score, as an indented paragraph."""
    matches = [printable(f"{match.word} ~ {match.matched} {match.contribution:.2f}") for match in words]
    indent = " " * _INDENT
    return textwrap.wrap(", ".join(matches), max(_width() - 1, 40), initial_indent=indent, subsequent_indent=indent)


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
    "give-index": "Give the folder of an index; latelier search FOLDER TEXT searches a folder of files.",
    "give-model": "Give the model: --model.",
    "known-ids": "latelier search shows the ids of what it finds.",
    "make-index": "Create one with latelier index SOURCE FOLDER.",
    "name-fields": "Name others with --id, --text, --title and --metadata.",
    "name-index": "Give it another name: NAME=INDEX.",
    "open-qdrant": "Give it as qdrant:FOLDER, if you trust it, since it holds pickles.",
    "open-writable": "Leave the write token out, or leave --read-only out.",
    "qdrant-key": "Set the environment variable QDRANT_API_KEY to a key that may read and write the collection.",
    "raise-memory": "Give it more, or leave --max-memory out.",
    "read-token": "Give one with --read-token (and --write-token, if they may write), or leave --host out to serve "
    "this machine only.",
    "same-space": "Or give --same-space for a model that was made for the vectors of that one.",
    "skip-faulty": "Repair the files, or skip these lines: --on-problem skip.",
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
