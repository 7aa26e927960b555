"""What the command line says when something goes wrong: one message and an exit status, no traceback."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from latelier.cli.output import printable
from latelier.errors import LatelierError
from latelier.utils.describing import cut

__all__ = ["messages", "prepare_streams"]

_INTERRUPTED = 130  # as shells number the signal of Ctrl-C
_LONGEST = 4000
# typer brings click under a name of its own since 0.2x; the class is the same in both.
_UsageError: Any = typer.BadParameter.__base__


@contextmanager
def messages(debug: bool) -> Iterator[None]:
    """Turn every exception into a message on standard error and an exit status; with `debug` into its traceback."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except _UsageError as error:
        error.message = printable(error.message, lines=True)  # which names arguments as they were typed
        raise
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except BaseException as error:
        if debug or getattr(error, "errno", None) == errno.EPIPE or not isinstance(error, Exception):
            raise  # typer ends quietly where nobody reads the output any more
        typer.echo(cut(printable(_message(error), lines=True), _LONGEST), err=True)
        raise typer.Exit(1) from error


def prepare_streams() -> None:
    """Let output that the locale cannot hold be written out, and warnings be one line each."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = _show_warning


def _message(error: Exception) -> str:
    if isinstance(error, LatelierError):
        return f"Error: {error}"
    if isinstance(error, MemoryError):
        return "Error: there is not enough memory."
    if isinstance(error, OSError):
        return f"Error: {error}."
    return (
        f"Error: {type(error).__name__}: {error}\n"
        "That should not happen. 'latelier --debug ...' shows where it did; please report it."
    )


def _show_warning(message: Any, *args: Any, **kwargs: Any) -> None:
    typer.echo(f"Warning: {cut(printable(str(message), lines=True), _LONGEST)}", err=True)
