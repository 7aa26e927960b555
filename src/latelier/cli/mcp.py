"""``latelier mcp``: indexes as tools of agents."""

from __future__ import annotations

from typing import Annotated

import typer

from latelier.cli.options import DeviceOption, ServedModelOption

__all__ = ["mcp"]

_VARIABLE = "LATELIER_MCP_TOKEN"


def mcp(
    context: typer.Context,
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]INDEX", help="Folders of indexes, or qdrant:...; by default with their own names."
        ),
    ],
    *,
    writable: Annotated[bool, typer.Option("--writable", help="Offer tools that change the indexes.")] = False,
    http: Annotated[
        bool, typer.Option("--http", help="Streamable HTTP on this machine rather than standard input and output.")
    ] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port, with --http.")] = 8000,
    token: Annotated[str | None, typer.Option(envvar=_VARIABLE, help="Secret that clients send, with --http.")] = None,
    model: ServedModelOption = None,
    device: DeviceOption = None,
) -> None:
    """Serve indexes to agents, over the Model Context Protocol.

    \b
    Example:
      latelier mcp ./my-index
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from contextlib import ExitStack

    from latelier.cli.failures import INTERRUPTED, exit_now
    from latelier.cli.named_indexes import named_locations, open_named
    from latelier.cli.output import quiet_loading
    from latelier.cli.secret import given_secret
    from latelier.cli.unused_options import refuse_unused
    from latelier.errors import MissingExtraError

    try:
        from latelier.serve.listening import listen
        from latelier.serve.mcp import create_mcp_server
        from latelier.serve.mcp_http import serve_mcp
        from latelier.serve.mcp_stdio import serve_stdio
        from latelier.serve.tokens import check_token
    except ImportError as error:
        raise MissingExtraError("The Model Context Protocol", "mcp") from error
    if http:
        token = given_secret(token, _VARIABLE)
        check_token("token", token)
        listen("127.0.0.1", port).close()  # a port in use is an error before models are loaded
    else:
        refuse_unused(context, ("token", "port"), "has no effect without --http")
    locations = named_locations(folders)
    quiet_loading()
    try:
        with ExitStack() as stack:
            retrievers = open_named(locations, stack, read_only=not writable, model=model, device=device)
            server = create_mcp_server(retrievers, writable=writable)
            if http:
                serve_mcp(server, port=port, token=token)
            else:
                serve_stdio(server)
    except KeyboardInterrupt:
        if not http:
            exit_now(INTERRUPTED)  # Python would wait for the thread that reads standard input
        raise
