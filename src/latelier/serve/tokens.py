"""Tokens that clients of a server send: which may be chosen, and whether a request has one."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from latelier.errors import InvalidArgumentError

__all__ = ["check_token", "sends_token"]

# Shorter tokens can be guessed.
_SHORTEST = 16


def check_token(name: str, token: str | None) -> None:
    """Check a token that is to be required.

    Parameters
    ----------
    name
        What the message calls it.
    token
        The token, or None.

    Raises
    ------
    InvalidArgumentError
        If it is too short or holds other characters than visible ASCII.

    Examples
    --------
    >>> check_token("read token", "secret")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: the read token has 6 characters; ...
    """
    if token is not None and not (len(token) >= _SHORTEST and all("!" <= character <= "~" for character in token)):
        raise InvalidArgumentError(
            f"the {name} has {len(token)} characters; expected at least {_SHORTEST}, all of them visible ASCII "
            "characters: python -c 'import secrets; print(secrets.token_urlsafe())' makes one."
        )


def sends_token(authorization: str | None, tokens: Iterable[str]) -> bool:
    """Whether a request has one of some tokens.

    Parameters
    ----------
    authorization
        Its ``Authorization`` header; None if it has none.
    tokens
        The tokens. Each is compared, in a time that does not depend on how much of it is right.

    Examples
    --------
    >>> sends_token("Bearer a-secret-of-readers", ["a-secret-of-readers"])
    True
    >>> sends_token("Basic a-secret-of-readers", ["a-secret-of-readers"])
    False
    """
    scheme, _, sent = (authorization or "").partition(" ")
    same = [hmac.compare_digest(sent.encode(), token.encode()) for token in tokens]
    return scheme.lower() == "bearer" and any(same)
