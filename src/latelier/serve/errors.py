"""Errors as responses: the status of each kind, and the one form that all of them have."""

from __future__ import annotations

import errno
import json
import logging
import sqlite3
import sys
from pathlib import Path
from typing import Any, NamedTuple

from latelier.errors import (
    Advice,
    CorruptedIndexError,
    DuplicateIdError,
    LatelierError,
    ReadOnlyIndexError,
    StorageError,
    UnknownIdError,
)
from latelier.serve.limits import TooLargeError
from latelier.serve.problems import MOST_ERRORS, told
from latelier.utils.checks import cut, short
from latelier.utils.misc import needs_extra

with needs_extra("Serving", "serve"):
    from fastapi import FastAPI, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, JSONResponse
    from pydantic import BaseModel, ValidationError
    from starlette.exceptions import HTTPException

_LOG = logging.getLogger("latelier.serve")
_LONGEST_MESSAGE = 2000
_NOT_FOUND = Path(__file__).parent / "page" / "404.html"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class _ServerError(LatelierError):
    status = 503


class UnauthorizedError(_ServerError):
    """The request has no valid token."""

    status = 401


class ForbiddenError(_ServerError):
    """Nobody may do this here."""

    status = 403


class UnknownIndexError(_ServerError):
    """The server has no such index."""

    status = 404


class ExistingIndexError(_ServerError):
    """There is an index of this name, or another file."""

    status = 409


class NoPictureError(_ServerError):
    """A document has no picture that can be shown."""

    status = 404


class NoFileError(_ServerError):
    """A document has no file that is served."""

    status = 404


class FailedError(_ServerError):
    """Something else than an `Exception` ended the work on a request."""

    status = 500


class QueueFullError(_ServerError):
    """As many calls wait as may."""

    status = 429


class RequestTimeoutError(_ServerError):
    """The answer took too long."""


class StoppingError(_ServerError):
    """The server is stopping."""


class UnreadableError(_ServerError):
    """No index can be read."""


# What a client can do about an error.
_ADVICE: dict[Advice, str] = {
    "filter-timeout": "Simplify it.",
    "known-ids": "Search returns the ids of what it finds (1 is not '1').",
    "skip-stored": "Leave out those that are to stay as they are stored.",
    "update": "PUT replaces documents.",
    "update-or-skip": "PUT replaces documents; leave out those that are to stay as they are stored.",
}


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


def storage_problem(error: Exception) -> tuple[int, str]:
    """Return the status and a message without names of folders, which the log gets."""
    if isinstance(error, ReadOnlyIndexError):
        return 403, "this index takes no changes: it is open for reading only, or the server may not write its files."
    _LOG.error("%s", error)
    if isinstance(error, CorruptedIndexError):
        return 500, "this index is damaged; the server's log says where. Who runs the server has to restore it."
    reason = error.__cause__
    if getattr(reason, "errno", None) in _FULL or (isinstance(reason, sqlite3.Error) and "disk is full" in str(reason)):
        return 507, "the server's disk is full; nothing was changed. Who runs the server has to free some space."
    return 503, (
        "the server cannot use the files of this index; its log says why. Try again later, or tell who runs the server."
    )


async def _of_library(request: Request, error: Any) -> JSONResponse:
    status = 422
    message = error.worded(_ADVICE)
    if isinstance(error, (StorageError, CorruptedIndexError)):
        status, message = storage_problem(error)
    elif isinstance(error, (_ServerError, TooLargeError)):
        status = error.status
    elif isinstance(error, (UnknownIdError, DuplicateIdError)):
        if isinstance(error, UnknownIdError):
            status = 404
        else:
            status = 409
    headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}, 503: {"retry-after": "1"}}.get(status)
    return JSONResponse(error_body(type(error).__name__, message), status, headers)


class FaultyBody(NamedTuple):
    """Stands for a body that could not be read, or is not what an address takes."""

    message: str
    status: int = 422


def checked_body(model: type[BaseModel], body: bytes) -> BaseModel | FaultyBody:
    """Return a body of JSON as a model, or what is wrong with it."""
    try:
        return model.model_validate(json.loads(body))
    except ValidationError as error:
        problems = error.errors(include_url=False)
        if problems[0]["loc"] == () and problems[0]["type"].endswith("_type"):
            return FaultyBody(f"{told(problems).removesuffix('.')} with {', '.join(model.model_fields)}, as the body.")
        return FaultyBody(told([{**each, "loc": ("body", *each["loc"])} for each in problems[:MOST_ERRORS]]))
    except (ValueError, RecursionError) as error:
        return FaultyBody(_json_problem(error), 422 if isinstance(error, json.JSONDecodeError) else 400)


async def _of_request(request: Request, error: Any) -> JSONResponse:
    if isinstance(error.body, FaultyBody):
        return JSONResponse(error_body("InvalidRequest", error.body.message), error.body.status)
    if isinstance(error.body, bytes):  # it is parsed if the header says that it is JSON
        sent = request.headers.get("content-type")
        if sent is None:
            given = "no Content-Type"
        else:
            given = f"Content-Type: {cut(sent, 100)}"
        message = f"received {given}; send Content-Type: application/json, and a body of JSON."
        return JSONResponse(error_body("InvalidRequest", message), 415)
    return JSONResponse(error_body("InvalidRequest", told(error.errors())), 422)


async def _of_http(request: Request, error: Any) -> Response:
    root = request.scope.get("root_path", "")
    path = request.url.path.removeprefix(root)
    is_for_people = "text/html" in request.headers.get("accept", "") and not path.startswith("/v1/")
    if error.status_code == 404 and is_for_people:
        page = _NOT_FOUND.read_text(encoding="utf-8")
        return HTMLResponse(page.replace('="/', f'="{root}/'), 404)
    message = str(error.detail)
    if message == "Not Found":
        message = f"there is nothing at {short(path)}; openapi.json describes the addresses."
    elif message == "Method Not Allowed":
        accepted = (error.headers or {}).get("Allow", "other methods")
        message = f"received {request.method} for {short(path)}, which takes {accepted}."
    return JSONResponse(error_body("InvalidRequest", message), error.status_code, error.headers)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    message = "the server failed; its log says why. This is a bug: please report it."
    return JSONResponse(error_body("InternalError", message), 500)


def _json_problem(error: ValueError | RecursionError) -> str:
    """Return why a body is no JSON that can be read, and where."""
    if isinstance(error, json.JSONDecodeError):
        return f"the body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}."
    if isinstance(error, UnicodeDecodeError):
        return f"the body is no text in UTF-8: {error.reason} at byte {error.start}."
    if isinstance(error, RecursionError):
        return "the body has too many lists and objects in one another; flatten it."
    # Of int(), which limits the digits.
    return f"the body has an integer of more than {sys.get_int_max_str_digits():,} digits; send it as a text."
