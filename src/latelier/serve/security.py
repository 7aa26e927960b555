"""Who may use a server: tokens, origins, loopback addresses, the size of bodies, headers of answers, the access log."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from latelier.errors import InvalidArgumentError
from latelier.serve.errors import ForbiddenError, UnauthorizedError, error_body
from latelier.serve.limits import Limits, TooLargeError
from latelier.serve.queues import Metrics, begin_request
from latelier.serve.transport import check_token, sends_token
from latelier.utils.misc import needs_extra

with needs_extra("Serving", "serve"):
    from fastapi import Depends, Request, Security
    from fastapi.security import HTTPBearer
    from starlette.datastructures import Headers

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.ASCII)
# Browsers leave out the port that a scheme has by default.
_PORTS = {"http": "80", "https": "443"}


@dataclass(frozen=True)
class Access:
    """Who may read and who may write.

    Without tokens, everybody who reaches the server may do both. With a read token, reading needs it, or the write
    token. Writing needs the write token; with a read token alone, nobody writes.

    Parameters
    ----------
    read_token, write_token
        Secrets of at least 16 characters, sent as ``Authorization: Bearer TOKEN``; default: none.
    origins
        Origins whose web pages may use the server, such as ``"https://example.org"``, or ``"*"`` for all. A slash at
        the end and the scheme's own port are left out, as browsers do.

    Raises
    ------
    InvalidArgumentError
        If a token is too short or holds other characters than visible ASCII, both are equal, or an origin is not
        ``SCHEME://HOST`` or ``SCHEME://HOST:PORT``.

    Examples
    --------
    >>> access = Access(read_token="a secret of readers".replace(" ", "-"))
    >>> access.allows("Bearer a-secret-of-readers", "read")
    True
    >>> header = "Bearer a-secret-of-readers"
    >>> access.allows(header, "write"), access.allows(None, "read")
    (False, False)
    """

    read_token: str | None = field(default=None, repr=False)
    write_token: str | None = field(default=None, repr=False)
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("read", "write"):
            check_token(f"{name} token", getattr(self, f"{name}_token"))
        if self.read_token is not None and self.read_token == self.write_token:
            raise InvalidArgumentError("the read token and the write token are equal; leave the read token out.")
        object.__setattr__(self, "origins", tuple(map(_as_origin, self.origins)))

    def allows(self, authorization: str | None, action: Literal["read", "write"]) -> bool:
        """Whether a request with this ``Authorization`` header may do this."""
        if self.read_token is None and (action == "read" or self.write_token is None):
            return True
        if action == "write":
            tokens = [self.write_token]
        else:
            tokens = [self.read_token, self.write_token]
        return sends_token(authorization, [token for token in tokens if token is not None])

    def check_host(self, host: str) -> None:
        """Raise `InvalidArgumentError` for an address that other machines can reach, unless reading needs a token."""
        if is_loopback(host) or self.read_token is not None:
            return
        raise InvalidArgumentError(
            f"received host={host!r}, which other machines can reach, without a read token.", advice="read-token"
        )

    def check_changes(self, possible: bool) -> None:
        """Raise `InvalidArgumentError` for a write token if changes of some index are not `possible`."""
        if self.write_token is not None and not possible:
            raise InvalidArgumentError(
                "received a write token, but every index is open for reading only, so nobody can write.",
                advice="open-writable",
            )


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _as_origin(origin: str) -> str:
    """Return an origin as browsers spell it."""
    found = _ORIGIN.fullmatch(origin.lower().removesuffix("/"))
    if origin == "*":
        return origin
    if found is None:
        raise InvalidArgumentError(
            f"received {origin!r} as an origin; expected SCHEME://HOST or SCHEME://HOST:PORT without a path, such as "
            "https://example.org, in ASCII."
        )
    scheme, host, port = found.groups()
    if port in (None, _PORTS.get(scheme)):
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{port}"


# The scheme of the OpenAPI document; the header itself is compared by `Access`.
_BEARER = HTTPBearer(auto_error=False, description="The read token or the write token, if the server has any.")
_Header = Annotated[Any, Security(_BEARER)]


def _check(request: Request, action: Literal["read", "write"]) -> None:
    access: Access = request.app.state.access
    if access.allows(request.headers.get("authorization"), action):
        return
    if action == "write" and access.write_token is None:
        raise ForbiddenError("this server takes no changes: it was started without a write token.")
    sent = request.headers.get("authorization")
    if not sent:
        problem = "none was sent"
    elif not sent.lower().startswith("bearer "):
        problem = "another kind of authorization was sent"
    elif action == "write" and access.allows(sent, "read"):
        problem = "the one that was sent may only read"
    else:
        problem = "the one that was sent is another"
    raise UnauthorizedError(
        f"this needs the {action} token, and {problem}; send it in the header: Authorization: Bearer TOKEN"
    )


async def _reading(request: Request, _: _Header) -> None:
    _check(request, "read")


async def _writing(request: Request, _: _Header) -> None:
    _check(request, "write")


Reading = Depends(_reading)
Writing = Depends(_writing)


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
    """Answers 413 to a large body and 408 to a slow one; one of a request that may not even read is not received."""

    def __init__(self, app: Application, limits: Limits, access: Access) -> None:
        self._app = app
        self._limits = limits
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seconds = self._limits.seconds
        body: bytes | None = b""
        begin_request(seconds)
        headers = Headers(scope=scope)
        if self._access.allows(headers.get("authorization"), "read"):
            try:
                body = await asyncio.wait_for(self._receive(scope, receive), seconds)
            except TooLargeError as error:
                await _reject(send, 413, "TooLargeError", str(error))
                return
            except asyncio.TimeoutError:
                message = f"the body did not arrive within {seconds} seconds; send less at once, or faster."
                await _reject(send, 408, "RequestTimeoutError", message)
                return
            if body is None:
                return
        elif headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            send = _closing(send)
        whole = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Any:
            return next(whole, None) or await receive()

        await self._app(scope, replay, send)

    async def _receive(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body, or None if the client has gone."""
        most = self._limits.body_bytes
        body = bytearray()
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        is_too_large = not declared.isdigit() or int(declared) > most
        # Most clients read no answer before they have sent all of a body, and lose it if the connection is closed
        # meanwhile: the rest is received and thrown away. One that asks first waits for the answer.
        is_over = is_too_large and b"expect" in headers
        while not is_over:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            if not is_too_large:
                body += message.get("body", b"")
                is_too_large = len(body) > most
            is_over = not message.get("more_body")
        if is_too_large:
            raise TooLargeError(f"the body is larger than {most:,} bytes; send less at once.")
        return bytes(body)


class LoopbackHost:
    """Answers 400 to another ``Host`` than this machine, as DNS rebinding makes browsers send."""

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
                message = f"this server is reached as localhost, not as {hosts[0]!r}; it serves its own machine only."
                await _reject(send, 400, "InvalidRequest", message)
                return
        await self._app(scope, receive, send)


class BelowPath:
    """Serves an application below a path, whether the proxy before it takes the path off addresses or leaves it."""

    def __init__(self, app: Application, root: str) -> None:
        self._app = app
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            path = scope["path"]
            if path != self._root and not path.startswith(f"{self._root}/"):
                path = self._root + path
            scope = {**scope, "path": path, "root_path": self._root}
        await self._app(scope, receive, send)


class HeadLikeGet:
    """Answers HEAD as it answers GET; the server leaves the body out."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, receive, send)


class SafeHeaders:
    """Adds the headers that keep a browser from running or loading anything that is not the page's own."""

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
    """Counts requests and logs a line of JSON about each, with neither texts nor tokens, to ``latelier.access``."""

    def __init__(self, app: Application, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        size = 0
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
            if scope["method"] in _METHODS:
                method = scope["method"]
            else:
                method = "other"
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
    if address:
        return is_loopback(address)
    return is_loopback(name.lower().removesuffix("."))


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
