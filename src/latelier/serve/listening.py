"""`listen`: bind a server's address before it starts."""

from __future__ import annotations

import socket

from latelier.errors import InvalidArgumentError

__all__ = ["listen"]


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Parameters
    ----------
    host
        Address to bind to.
    port
        Port to bind to; 0 chooses a free one.

    Raises
    ------
    InvalidArgumentError
        If the port is not free, or there is no such address or port.

    Examples
    --------
    >>> with listen("127.0.0.1", 0) as listening:
    ...     listening.getsockname()[0]
    '127.0.0.1'
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
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
