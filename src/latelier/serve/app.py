"""`create_app`: the web application over some retrievers, without the server that runs it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from html import escape
from importlib.metadata import version
from itertools import compress
from pathlib import Path
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.indexes.base import PathLike
from latelier.retrieve import Retriever
from latelier.serve.errors import StoppingError, UnreadableError, add_error_handlers
from latelier.serve.limits import Limits, check_name
from latelier.serve.originals import Originals
from latelier.serve.queues import IndexMaker, Metrics, Service
from latelier.serve.routes import clients, router
from latelier.serve.security import (
    Access,
    BelowPath,
    BodyLimit,
    HeadLikeGet,
    LoopbackHost,
    Observed,
    Reading,
    SafeHeaders,
)
from latelier.utils.checks import short
from latelier.utils.misc import needs_extra

with needs_extra("Serving", "serve"):
    from fastapi import FastAPI, Response
    from fastapi.responses import HTMLResponse
    from fastapi.staticfiles import StaticFiles
    from starlette.middleware.cors import CORSMiddleware

_PAGE = Path(__file__).parent / "page"


def create_app(
    retrievers: Mapping[str, Retriever],
    *,
    access: Access | None = None,
    limits: Limits | None = None,
    loopback_only: bool = True,
    link_prefix: str = "",
    files: Mapping[str, str | os.PathLike[str]] | None = None,
    new_indexes: PathLike | None = None,
    root_path: str = "",
    mean_scores: bool = False,
) -> FastAPI:
    """Return the application that searches and fills some indexes.

    Parameters
    ----------
    retrievers
        Retrievers by the name that their index gets in addresses. They stay open when the application stops.
    access
        Who may read and write; by default everybody who reaches the server.
    limits
        How much a request may hold, and how much may wait; default: ``Limits()``.
    loopback_only
        Reject requests that were sent to another name than this machine's own, as web pages elsewhere could make a
        browser do. Set it to False for an application that other machines reach.
    link_prefix
        On the page, the titles of documents with a `path` in their metadata lead to this address followed by the path:
        one of http or https, or a relative path.
    files
        By the name of an index, the folder that its documents were read from: who may read the index may then open the
        file that a document's `path` in its metadata names in this folder. Default: none.
    new_indexes
        The folder in which clients that may write can make indexes, and delete those in it; None: they can make none.
    root_path
        The path below which a proxy serves the application, such as ``"/search"``, whether the proxy takes it off the
        addresses of requests or leaves it.
    mean_scores
        Rerank with the mean similarity of the query's tokens, between 0 and 1, as the score, unless a request says
        otherwise: clients of other services have thresholds for such scores. False: with their sum.

    Returns
    -------
    fastapi.FastAPI
        The application, for uvicorn or any other ASGI server.

    Raises
    ------
    InvalidArgumentError
        If there is no retriever, a name is not of up to 100 letters, digits, ``.``, ``_`` and ``-``, the prefix of
        links is no such address, the root path is no path, what `files` names is no index or no folder, or there is a
        write token although no index takes changes.

    Examples
    --------
    >>> from fastapi.testclient import TestClient
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add([("a", "Bananas are healthy."), ("b", "The moon is far.")])
    >>> app = create_app({"fruit": retriever})
    >>> with TestClient(app, base_url="http://localhost") as client:
    ...     body = {"query": "apples", "k": 1}
    ...     answer = client.post("/v1/indexes/fruit/search", json=body).json()
    >>> answer["results"][0][0]["text"]
    'Bananas are healthy.'
    """
    check_names(retrievers)
    _check_link_prefix(link_prefix)
    root_path = _checked_root(root_path)
    originals = Originals.of(files or {}, retrievers)
    access = access or Access()
    limits = limits or Limits()
    metrics = Metrics()
    # Not every kind of index can be read-only.
    access.check_changes(any(not each.index.read_only for each in retrievers.values()))
    services = {name: Service(name, retriever, limits, metrics) for name, retriever in retrievers.items()}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for service in services.values():
                await stack.enter_async_context(service)
            app.state.maker = IndexMaker(services, stack, limits, metrics, new_indexes)
            for service in services.values():
                await service.warm_up()
            app.state.ready = True
            yield
            app.state.ready = False

    app = FastAPI(
        title="Latelier",
        version=version("latelier"),
        summary="Late-interaction retrieval.",
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.services = services
    app.state.access = access
    app.state.limits = limits
    app.state.originals = originals
    app.state.mean_scores = mean_scores
    app.state.ready = False
    add_error_handlers(app)
    app.include_router(router)
    app.include_router(clients)
    _add_health(app, metrics)
    _add_page(app, link_prefix)
    # The last one added is the first to see a request.
    app.add_middleware(HeadLikeGet)
    app.add_middleware(BodyLimit, limits=limits, access=access)
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["authorization", "content-type"],
        )
    if loopback_only:
        app.add_middleware(LoopbackHost)
    app.add_middleware(SafeHeaders)
    app.add_middleware(Observed, metrics=metrics)
    if root_path:
        app.add_middleware(BelowPath, root=root_path)
    return app


def check_names(names: Iterable[str]) -> None:
    """Check the names that indexes get in addresses."""
    names = list(names)
    if not names:
        raise InvalidArgumentError("received no retriever; expected at least one.")
    for name in names:
        check_name(name)


# An address of http or https, or a path on this server or below the page, which names no scheme and no other host.
_LINK_PREFIX = re.compile(r"(?:https?://[^\s\\/?#]|(?!//)[^\s\\:/?#]*(?:[/?#]|\Z))[^\s\\]*", re.IGNORECASE)


def _check_link_prefix(link_prefix: str) -> None:
    if not _LINK_PREFIX.fullmatch(link_prefix) or not link_prefix.isprintable():
        raise InvalidArgumentError(
            f"received link_prefix={short(link_prefix)}; expected an address that begins with http:// or https://, or "
            "a relative path."
        )


_ROOT = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")


def _checked_root(root_path: str) -> str:
    """Return a root path without the slash at its end."""
    root = root_path.rstrip("/")
    if root and not _ROOT.fullmatch(root):
        raise InvalidArgumentError(
            f"received root_path={short(root_path)}; expected a path such as '/search', of letters, digits, '.', '_', "
            "'~' and '-'."
        )
    return root


def _add_health(app: FastAPI, metrics: Metrics) -> None:
    @app.get("/health/live")
    async def live() -> dict[str, str]:
        """Answer while the process runs."""
        return {"status": "live"}

    @app.get("/health/ready")
    async def ready() -> dict[str, Any]:
        """Answer 200 while the server takes requests and can read an index; those that it cannot are listed apart."""
        if not app.state.ready:
            raise StoppingError("the server is starting or stopping.")
        services = app.state.services
        readable = await asyncio.gather(*(service.is_readable() for service in services.values()))
        indexes = list(compress(services, readable))
        unreadable = [name for name in services if name not in indexes]
        if not indexes:
            raise UnreadableError(f"the server cannot read: {', '.join(map(repr, unreadable))}.")
        return {"status": "ready", "indexes": indexes} | ({"unreadable": unreadable} if unreadable else {})

    @app.get("/metrics", dependencies=[Reading], response_class=Response)
    async def show_metrics() -> Response:
        """Return counters and histograms in the text form of Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI, link_prefix: str) -> None:
    source = (_PAGE / "index.html").read_text(encoding="utf-8")
    shown = source.replace("<html ", f'<html data-link-prefix="{escape(link_prefix)}" ', 1)

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(shown)

    app.mount("/page", StaticFiles(directory=_PAGE), name="page")
