"""Print exceptions as one message on standard error, without a traceback, and set the exit status."""

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

_INTERRUPTED = 130  # as in shells: 128 + SIGINT
_LONGEST = 4000
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
        error.message = printable(error.message, lines=True)  # it quotes arguments as they were typed
        raise
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except BaseException as error:
        if debug or getattr(error, "errno", None) == errno.EPIPE or not isinstance(error, Exception):
            raise  # on EPIPE, a closed pipe, typer exits without a message
        typer.echo(cut(printable(_message(error), lines=True), _LONGEST), err=True)
        raise typer.Exit(1) from error


def prepare_streams() -> None:
    """Escape characters that the locale cannot encode, and print each warning on one line."""
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
        "This is a bug: please report it, with the traceback that 'latelier --debug ...' shows."
    )


def _show_warning(message: Any, *args: Any, **kwargs: Any) -> None:
    typer.echo(f"Warning: {cut(printable(str(message), lines=True), _LONGEST)}", err=True)
