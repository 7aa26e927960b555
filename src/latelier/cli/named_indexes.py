"""Several indexes on one command line, each with a name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latelier.errors import InvalidArgumentError

if TYPE_CHECKING:
    from latelier.retrieve import Retriever

__all__ = ["open_named"]


def open_named(arguments: Iterable[str], stack: ExitStack, **options: Any) -> dict[str, Retriever]:
    """Open indexes.

    Parameters
    ----------
    arguments
        Each ``DIR``, whose name is that of the folder, or ``NAME=DIR``.
    stack
        Closes them.
    **options
        Those of `latelier.retrieve.Retriever.open`.

    Returns
    -------
    dict
        Retrievers by name.

    Raises
    ------
    InvalidArgumentError
        If two have the same name.
    """
    from latelier.retrieve import Retriever

    retrievers: dict[str, Retriever] = {}
    for argument in arguments:
        name, folder = _named(argument)
        if name in retrievers:
            raise InvalidArgumentError(f"received two indexes named {name!r}; name one of them: NAME={folder}")
        opened = Retriever.open(folder, **options)
        retrievers[name] = stack.enter_context(opened)
    return retrievers


def _named(argument: str) -> tuple[str, str]:
    """Return the name and the folder of an argument, ``DIR`` or ``NAME=DIR``."""
    name, equals, folder = argument.partition("=")
    if equals and folder and "/" not in name and not Path(argument).exists():
        return name, folder
    return Path(argument).resolve().name, argument
