"""Print exceptions as one message on standard error, without a traceback, and set the exit status."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import typer

from latelier.cli.output import printable
from latelier.errors import LatelierError
from latelier.utils.checks import cut

__all__ = ["INTERRUPTED", "exit_now", "messages", "prepare_streams"]

INTERRUPTED = 130  # as in shells: 128 + SIGINT
_LONGEST = 4000
# Advice of the library's messages that is for Python, and what it is on the command line.
_ADVICE = {
    "Give it more, or None for no limit": "Give it more, or leave --max-memory out",
    "filter_timeout=60, or None for no limit": "--filter-timeout 60, or 0 for no limit",
    "ids() lists the ids of the index (1 is not '1')": "latelier search shows the ids of what it finds",
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
        error.message = printable(error.message, lines=True)  # it quotes arguments as they were typed
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BaseException as error:
        if debug or getattr(error, "errno", None) == errno.EPIPE or not isinstance(error, Exception):
            raise  # on EPIPE, a closed pipe, typer exits without a message
        typer.echo(cut(printable(_message(error), lines=True), _LONGEST), err=True)
        raise typer.Exit(1) from error


def exit_now(status: int) -> NoReturn:
    """End the process without waiting for its threads.

    Parameters
    ----------
    status
        The exit status.
    """
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
        return f"Error: {_for_the_command_line(str(error))}"
    if isinstance(error, MemoryError):
        return "Error: there is not enough memory."
    if isinstance(error, OSError):
        return f"Error: {error}."
    return (
        f"Error: {type(error).__name__}: {error}\n"
        "This is a bug: please report it, with the traceback that 'latelier --debug ...' shows."
    )


def _for_the_command_line(message: str) -> str:
    for advice, here in _ADVICE.items():
        message = message.replace(advice, here)
    return message


def _show_warning(message: Any, *args: Any, **kwargs: Any) -> None:
    typer.echo(f"Warning: {cut(printable(str(message), lines=True), _LONGEST)}", err=True)
