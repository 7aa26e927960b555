"""What the servers for REST and for agents share: tokens and the socket."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Iterable

from latelier.errors import InvalidArgumentError

# Shorter tokens can be guessed.
_SHORTEST = 16


def check_token(name: str, token: str | None) -> None:
    """Check a token that is to be required."""
    if token is not None and not (len(token) >= _SHORTEST and all("!" <= character <= "~" for character in token)):
        raise InvalidArgumentError(
            f"the {name} has {len(token)} characters; expected at least {_SHORTEST}, all of them visible ASCII "
            "characters: python -c 'import secrets; print(secrets.token_urlsafe())' makes one."
        )


def sends_token(authorization: str | None, tokens: Iterable[str]) -> bool:
    """Whether an ``Authorization`` header has one of some tokens; the time does not tell how much of one is right."""
    scheme, _, sent = (authorization or "").partition(" ")
    same = [hmac.compare_digest(sent.encode(), token.encode()) for token in tokens]
    return scheme.lower() == "bearer" and any(same)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 chooses a free one."""
    if ":" in host:
        family = socket.AF_INET6
    else:
        family = socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
        # asyncio turns Nagle's algorithm off only for sockets that name their protocol, which these do not. With it,
        # each answer waits 40 ms for an acknowledgement between its head and its body. Accepted sockets inherit this.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, OverflowError) as error:
        raise InvalidArgumentError(
            f"cannot listen on {host}, port {port}: {error}. Choose another address or port; port 0 is any free one."
        ) from error
