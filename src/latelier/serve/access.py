"""`Access`: who may send what to a server."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from latelier.errors import InvalidArgumentError
from latelier.serve.errors import ForbiddenError, UnauthorizedError
from latelier.serve.tokens import check_token, sends_token

__all__ = ["Access", "Reading", "Writing", "is_loopback"]


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
        Secrets of at least 16 characters, sent as ``Authorization: Bearer TOKEN``.
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
        """Whether a request may do something.

        Parameters
        ----------
        authorization
            The request's ``Authorization`` header.
        action
            What it does.
        """
        if self.read_token is None and self.write_token is None:
            return True
        if action == "read" and self.read_token is None:
            return True
        tokens = (self.write_token,) if action == "write" else (self.read_token, self.write_token)
        return sends_token(authorization, [token for token in tokens if token is not None])

    def check_host(self, host: str) -> None:
        """Check that a server may be bound to an address.

        Raises
        ------
        InvalidArgumentError
            If other machines can reach the address and reading or writing needs no token.
        """
        if is_loopback(host) or self.read_token is not None:
            return
        raise InvalidArgumentError(
            f"received host={host!r}, which other machines can reach, without a read token; give one with "
            "--read-token (and --write-token, if they may write), or leave the host out to serve this machine only."
        )

    def check_changes(self, possible: bool) -> None:
        """Check that a write token has a use.

        Parameters
        ----------
        possible
            Whether an index of the server takes changes.

        Raises
        ------
        InvalidArgumentError
            If there is a write token and no index takes changes.
        """
        if self.write_token is not None and not possible:
            raise InvalidArgumentError(
                "received a write token, but every index is open for reading only, so nobody can write; leave the "
                "write token out, or open an index for writing (on the command line: without --read-only)."
            )


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach an address.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
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
    return f"{scheme}://{host}" if port in (None, _PORTS.get(scheme)) else f"{scheme}://{host}:{port}"


# The scheme of the OpenAPI document; the header itself is compared by `Access`.
_BEARER = HTTPBearer(auto_error=False, description="The read token or the write token, if the server has any.")
_Header = Annotated[Any, Security(_BEARER)]


def _check(request: Request, action: Literal["read", "write"]) -> None:
    access: Access = request.app.state.access
    if access.allows(request.headers.get("authorization"), action):
        return
    if action == "write" and access.write_token is None:
        raise ForbiddenError("this server takes no changes: it was started without a write token.")
    raise UnauthorizedError(f"this needs the {action} token, sent in the header: Authorization: Bearer TOKEN")


async def _reading(request: Request, _: _Header) -> None:
    _check(request, "read")


async def _writing(request: Request, _: _Header) -> None:
    _check(request, "write")


Reading, Writing = Depends(_reading), Depends(_writing)
