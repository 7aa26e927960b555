"""`serve`: run the application with uvicorn, until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from latelier.indexes.base import PathLike
from latelier.retrieve import Retriever
from latelier.serve.app import create_app
from latelier.serve.limits import Limits
from latelier.serve.security import ACCESS_LOG, Access, is_loopback
from latelier.serve.transport import listen
from latelier.utils.misc import exits_on_signals, needs_extra

with needs_extra("Serving", "serve"):
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

# A stopping server gives its requests so much more than they may take, so that each gets its own answer.
_STOP_MARGIN = 10


# Addresses that stand for all of a machine, and one of it that can be opened.
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def serve(
    retrievers: Mapping[str, Retriever],
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    access: Access | None = None,
    limits: Limits | None = None,
    on_start: Callable[[str], None] | None = None,
    log: bool = True,
    link_prefix: str = "",
    files: Mapping[str, str | os.PathLike[str]] | None = None,
    new_indexes: PathLike | None = None,
    root_path: str = "",
    mean_scores: bool = False,
) -> None:
    """Serve some indexes over HTTP, until the process gets SIGINT or SIGTERM and every accepted request is answered.

    A second SIGINT ends the process at once, and closes nothing; what has been committed is kept.

    Parameters
    ----------
    retrievers
        Retrievers by the name that their index gets in addresses.
    host
        Address to bind to. Any but a loopback address needs a read token.
    port
        Port to bind to; 0 chooses a free one.
    access
        Who may read and write; by default every program on this machine.
    limits
        How much a request may hold, and how much may wait; default: ``Limits()``.
    on_start
        Called with the server's URL when it takes requests; None: nothing is.
    log
        Write a line of JSON per request to standard error, with neither texts nor tokens.
    link_prefix, files, new_indexes, root_path, mean_scores
        As in `create_app`.

    Raises
    ------
    InvalidArgumentError
        If the host is not a loopback address and there is no read token, the port is not free, or there is a write
        token although no index takes changes.
    KeyboardInterrupt
        After SIGINT.
    SystemExit
        After SIGTERM, with the status 143, so that what the caller has opened is closed; unless the program handles
        SIGTERM itself.

    Examples
    --------
    >>> serve({}, port=0)
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: received no retriever; expected at least one.
    """
    access = access or Access()
    limits = limits or Limits()
    access.check_host(host)
    loopback_only = is_loopback(host)
    app = create_app(
        retrievers,
        access=access,
        limits=limits,
        loopback_only=loopback_only,
        link_prefix=link_prefix,
        files=files,
        new_indexes=new_indexes,
        root_path=root_path,
        mean_scores=mean_scores,
    )
    listening = listen(host, port)
    if log:
        _log_to_stderr()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=limits.seconds + _STOP_MARGIN,
        http=_protocol(limits.seconds),
    )
    name = _ANYWHERE.get(host, host)
    if ":" in name:
        name = f"[{name}]"
    with exits_on_signals():
        _Server(config, f"http://{name}:{listening.getsockname()[1]}", on_start).run(sockets=[listening])


def _protocol(seconds: int) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a time limit for the head of a request, from its first byte or the connection."""

    class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        _end: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._end is not None:
                self._end.cancel()

        def _await_head(self) -> None:
            """Close the connection in time, unless a request has come; then uvicorn limits the time until the next."""
            is_waiting = self.cycle is None or self.cycle.response_complete
            if is_waiting and self._end is None:
                self._end = asyncio.get_running_loop().call_later(seconds, self.transport.close)
            elif not is_waiting and self._end is not None:
                self._end.cancel()
                self._end = None

    return Protocol


class _Server(uvicorn.Server):
    """A server that says when it takes requests, and does not outlive a second SIGINT."""

    def __init__(self, config: uvicorn.Config, url: str, on_start: Callable[[str], None] | None) -> None:
        super().__init__(config)
        self._url = url
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and call `on_start`."""
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is loaded now stays until the end, so later collections need not look at it
        if self.started and self._on_start is not None:
            self._on_start(self._url)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; on a second SIGINT, end the process, as Python would wait for the threads that answer requests."""
        if self.should_exit and sig == signal.SIGINT:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        super().handle_exit(sig, frame)


def _log_to_stderr() -> None:
    if not ACCESS_LOG.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter('{"time": "%(asctime)s", "request": %(message)s}'))
        ACCESS_LOG.addHandler(handler)
        ACCESS_LOG.propagate = False
    ACCESS_LOG.setLevel(logging.INFO)
