"""`serve_stdio`: the tools for agents over standard input and output (extra ``mcp``)."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

__all__ = ["serve_stdio"]


def serve_stdio(server: MCPServer[Any]) -> None:
    """Serve tools over standard input and output, until standard input is closed.

    Parameters
    ----------
    server
        What `latelier.serve.mcp.create_mcp_server` returned.

    Raises
    ------
    KeyboardInterrupt
        After SIGINT, while threads of the server are still running: one waits for standard input.
    """
    served: Future[None] = Future()

    def run() -> None:
        try:
            server.run("stdio")
            served.set_result(None)
        except BaseException as error:  # noqa: BLE001 (the caller raises it)
            served.set_exception(error)

    # In the main thread, asyncio would take SIGINT and then wait for the thread that reads standard input.
    threading.Thread(target=run, daemon=True).start()
    while not served.done():
        wait([served], timeout=1)  # without a time limit, Windows does not interrupt it
    served.result()
