"""`serve_mcp`: the tools for agents over streamable HTTP (extra ``mcp``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from latelier.serve.listening import listen
from latelier.serve.termination import exits_on_signals
from latelier.serve.tokens import check_token, sends_token

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["require_token", "serve_mcp"]


def serve_mcp(server: MCPServer[Any], *, port: int, token: str | None = None) -> None:
    """Serve tools on this machine, at ``http://127.0.0.1:PORT/mcp``, until the process is stopped.

    Parameters
    ----------
    server
        What `latelier.serve.mcp.create_mcp_server` returned.
    port
        The port.
    token
        Secret of at least 16 characters that clients have to send as ``Authorization: Bearer TOKEN``; None: none.

    Raises
    ------
    InvalidArgumentError
        If the token is too short or holds other characters than visible ASCII, or the port is not free.
    KeyboardInterrupt
        After SIGINT.
    SystemExit
        After SIGTERM, with the status 143, unless the program handles SIGTERM itself.
    """
    check_token("token", token)
    listening = listen("127.0.0.1", port)
    app = server.streamable_http_app(host="127.0.0.1")
    config = uvicorn.Config(app if token is None else require_token(app, token), log_config=_log_config())
    with exits_on_signals():
        uvicorn.Server(config).run(sockets=[listening])


def _log_config() -> dict[str, Any]:
    """Return uvicorn's configuration of logging with all of it on standard error."""
    handlers = uvicorn.config.LOGGING_CONFIG["handlers"]
    access = handlers["access"] | {"stream": "ext://sys.stderr"}
    return uvicorn.config.LOGGING_CONFIG | {"handlers": handlers | {"access": access}}


def require_token(app: ASGIApp, token: str) -> ASGIApp:
    """Return an application that answers 401 to requests without a token.

    Parameters
    ----------
    app
        Answers requests with the token.
    token
        The token.

    Examples
    --------
    >>> from starlette.responses import PlainTextResponse
    >>> from starlette.testclient import TestClient
    >>> app = require_token(PlainTextResponse("hello"), "a-secret-of-agents")
    >>> header = {"Authorization": "Bearer a-secret-of-agents"}
    >>> client = TestClient(app)
    >>> client.get("/").status_code, client.get("/", headers=header).text
    (401, 'hello')
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or sends_token(Headers(scope=scope).get("authorization"), [token]):
            await app(scope, receive, send)
            return
        refusal = JSONResponse(
            {"error": "this server needs its token, sent in the header: Authorization: Bearer TOKEN"},
            status_code=401,
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refusal(scope, receive, send)

    return checked
