"""Secrets of servers, from the command line or the environment."""

from __future__ import annotations

import os

__all__ = ["given_secret"]


def given_secret(option: str | None, variable: str) -> str | None:
    """Return a secret as the user gives it, which may be empty.

    Typer takes an empty variable for a missing one. It is empty if the command that makes the secret has failed, and a
    server without a secret is not what was asked for.

    Parameters
    ----------
    option
        The value of the option; None if it is neither on the command line nor in the environment.
    variable
        Name of its environment variable.

    Examples
    --------
    >>> import os
    >>> os.environ["FRUIT_TOKEN"] = ""
    >>> given_secret(None, "FRUIT_TOKEN"), given_secret(None, "NO_SUCH_TOKEN")
    ('', None)
    """
    return os.environ.get(variable) if option is None else option
