"""What surrounds every request: its size, its headers, its line in the log and its count in the metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import Headers

from latelier.serve.access import Access, is_loopback
from latelier.serve.errors import TooLargeError, error_body
from latelier.serve.limits import Limits
from latelier.serve.metrics import Metrics
from latelier.serve.request_time import begin_request

__all__ = ["ACCESS_LOG", "BodyLimit", "HeadLikeGet", "LoopbackHost", "Observed", "SafeHeaders"]

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

ACCESS_LOG = logging.getLogger("latelier.access")

# Others are counted together, since anybody can make up methods.
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"))
# The status, as proxies count it, of a request that gets no answer, since its client has gone while it sent the body.
_GONE = 499
# Pages show texts of documents: nothing in them may run or load, whatever they contain.
_SAFE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_HOST = re.compile(r"(?:\[([0-9a-f]*:[0-9a-f:.]+)\]|([a-z0-9.-]+))(?::[0-9]{0,5})?", re.ASCII | re.IGNORECASE)
_HEADERS = [(name.encode(), value.encode()) for name, value in _SAFE_HEADERS.items()]


class BodyLimit:
    """Receives the body of a request, and answers 413 if it is too large, and 408 if it does not arrive in time.

    The body of a request that may not even read is not received: the application gets an empty one. Addresses that are
    open to everybody take no body, and the others refuse the request for its token.

    Parameters
    ----------
    app
        The application.
    limits
        Maximum size, and the time that begins here.
    access
        Who may read.
    """

    def __init__(self, app: Application, limits: Limits, access: Access) -> None:
        self._app, self._limits, self._access = app, limits, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seconds, body = self._limits.seconds, b""
        begin_request(seconds)
        headers = Headers(scope=scope)
        if self._access.allows(headers.get("authorization"), "read"):
            try:
                received = await asyncio.wait_for(self._receive(scope, receive), seconds)
            except TooLargeError as error:
                await _reject(send, 413, "TooLargeError", str(error))
                return
            except asyncio.TimeoutError:
                message = f"the body did not arrive within {seconds} seconds; send less at once, or faster."
                await _reject(send, 408, "RequestTimeoutError", message)
                return
            if received is None:
                return
            body = received
        elif headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            send = _closing(send)
        whole = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Any:
            return next(whole, None) or await receive()

        await self._app(scope, replay, send)

    async def _receive(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body, or None if the client has gone."""
        most, body = self._limits.body_bytes, bytearray()
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        is_too_large = not declared.isdigit() or int(declared) > most
        message: Any = {"more_body": True}
        while message.get("more_body") and not is_too_large:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            is_too_large = len(body) > most
        if is_too_large:
            raise TooLargeError(f"the body is larger than {most:,} bytes; send less at once.")
        return bytes(body)


class LoopbackHost:
    """Answers 400 to a request whose ``Host`` is another name than that of this machine.

    A web page anywhere can let a name of its own point to 127.0.0.1, and would then be of the same origin as the server
    (DNS rebinding).

    Parameters
    ----------
    app
        The application.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1:
                await _reject(send, 400, "InvalidRequest", f"received {len(hosts)} headers Host; send one.")
                return
            if not _is_own(hosts[0]):
                message = f"this server is reached as localhost, not as {hosts[0]!r}; --host lets other machines in."
                await _reject(send, 400, "InvalidRequest", message)
                return
        await self._app(scope, receive, send)


class HeadLikeGet:
    """Answers HEAD as it answers GET; the server leaves the body out.

    Parameters
    ----------
    app
        The application.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, receive, send)


class SafeHeaders:
    """Adds the headers that keep a browser from running or loading anything that is not the page's own.

    Parameters
    ----------
    app
        The application.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in _HEADERS if pair[0] not in present)]
            await send(message)

        await self._app(scope, receive, send_with_headers)


class Observed:
    """Counts each request, and writes a line of JSON about it to the log ``latelier.access``.

    The line holds neither texts nor tokens: no query string, no body and no headers.

    Parameters
    ----------
    app
        The application.
    metrics
        Where requests are counted.
    """

    def __init__(self, app: Application, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, size = time.perf_counter(), 0
        status: int | None = None

        async def observe(message: Any) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, observe)
        except BaseException:
            status = status or 500
            raise
        finally:
            status = status or _GONE
            seconds = time.perf_counter() - begin
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.request(method, route, status, seconds)
            if ACCESS_LOG.isEnabledFor(logging.INFO):
                line = {"method": method, "route": route, "status": status, "ms": round(1e3 * seconds, 2)}
                line |= {"bytes": size, "client": (scope.get("client") or ("",))[0]}
                ACCESS_LOG.info(json.dumps(line))


def _is_own(host: str) -> bool:
    """Whether the value of a ``Host`` header is a name of this machine, with a port or without."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    address, name = found.groups()
    # An address of version 6 is in brackets, as its colons would otherwise be those of a port.
    return is_loopback(address) if address else is_loopback(name.lower().removesuffix("."))


def _closing(send: Send) -> Send:
    """Return a `send` whose response closes the connection, on which a body is still on its way."""

    async def send_and_close(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return send_and_close


async def _reject(send: Send, status: int, kind: str, message: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(error_body(kind, message)).encode()})
