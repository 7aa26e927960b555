"""Errors as responses: the status of each kind, and the one form that all of them have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from latelier.errors import (
    CorruptedIndexError,
    DuplicateIdError,
    FilterTimeoutError,
    InvalidArgumentError,
    LatelierError,
    ReadOnlyIndexError,
    StorageError,
    UnknownIdError,
)
from latelier.utils.describing import cut

__all__ = [
    "ForbiddenError",
    "QueueFullError",
    "RequestTimeoutError",
    "StoppingError",
    "TooLargeError",
    "UnauthorizedError",
    "UnknownIndexError",
    "add_error_handlers",
    "error_body",
]

_LONGEST_MESSAGE = 2000
_MOST_PROBLEMS = 5


class _ServerError(LatelierError):
    status: int


class UnauthorizedError(_ServerError):
    """The request has no valid token."""

    status = 401


class ForbiddenError(_ServerError):
    """Nobody may do this here."""

    status = 403


class UnknownIndexError(_ServerError):
    """The server has no such index."""

    status = 404


class TooLargeError(_ServerError):
    """The request holds more than the server's limits allow."""

    status = 413


class QueueFullError(_ServerError):
    """As many calls wait as may."""

    status = 429


class RequestTimeoutError(_ServerError):
    """The answer took too long."""

    status = 503


class StoppingError(_ServerError):
    """The server is stopping."""

    status = 503


# The first class that fits counts.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (UnknownIdError, 404),
    (DuplicateIdError, 409),
    (ReadOnlyIndexError, 403),
    (FilterTimeoutError, 422),
    (InvalidArgumentError, 422),
    (CorruptedIndexError, 500),
    (StorageError, 507),
    (LatelierError, 422),
)


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error in the form of `ErrorResponse`."""
    app.add_exception_handler(LatelierError, _of_library)
    app.add_exception_handler(RequestValidationError, _of_request)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(Exception, _unexpected)


def error_body(kind: str, message: str) -> dict[str, Any]:
    """Return the body of an error."""
    # Messages quote what was received, which may hold lone surrogates.
    shown = cut(message, _LONGEST_MESSAGE).encode(errors="replace").decode()
    return {"error": {"type": kind, "message": shown}}


async def _of_library(request: Request, error: Exception) -> JSONResponse:
    status = getattr(error, "status", None) or next(status for kind, status in _STATUS if isinstance(error, kind))
    headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}, 503: {"retry-after": "1"}}.get(status)
    return JSONResponse(error_body(type(error).__name__, str(error)), status, headers)


async def _of_request(request: Request, error: Any) -> JSONResponse:
    return JSONResponse(error_body("InvalidRequest", _problems(error.errors())), 422)


async def _of_http(request: Request, error: Any) -> JSONResponse:
    return JSONResponse(error_body("InvalidRequest", str(error.detail)), error.status_code, error.headers)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    message = "the server failed; its log says why. This is a bug: please report it."
    return JSONResponse(error_body("InternalError", message), 500)


def _problems(errors: Sequence[Any]) -> str:
    """Return the first problems of a body in one line, without what was received, which may be long.

    Where several types are accepted, pydantic names each of them in the place, and a problem for each: the names of
    types are left out, and of several problems of one place the first is kept.
    """
    found: dict[str, str] = {}
    for problem in errors:
        place = ".".join(str(part) for part in problem["loc"] if isinstance(part, int) or part.isidentifier())
        found.setdefault(place, problem["msg"].removeprefix("Value error, "))
    lines = [f"{place}: {message}" for place, message in list(found.items())[:_MOST_PROBLEMS]]
    if len(found) > _MOST_PROBLEMS:
        lines.append(f"and {len(found) - _MOST_PROBLEMS} more")
    return "; ".join(lines) + "."
