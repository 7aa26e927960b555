"""The commands serve and mcp."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from latelier.cli.index import changes_of, keep_current
from latelier.cli.locations import QdrantLocation, named_locations, open_named
from latelier.cli.options import (
    DeviceOption,
    QueryBackendOption,
    SameSpaceOption,
    ServedModelOption,
    TrustOption,
    given_secret,
    refuse_unused,
)
from latelier.cli.output import INTERRUPTED, exit_now
from latelier.errors import InvalidArgumentError
from latelier.reading.folders import read_documents
from latelier.utils.files import CATALOG

if TYPE_CHECKING:
    from latelier.retrieve import Retriever

FoldersArgument: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=]INDEX", help="Folders of indexes, or qdrant:...; by default with their own names."),
]

_READ = "LATELIER_READ_TOKEN"
_WRITE = "LATELIER_WRITE_TOKEN"
_DEMO = "python"  # the name of the demo's index


def serve(
    folders: FoldersArgument = None,
    *,
    demo: Annotated[bool, typer.Option("--demo", help="Serve the documentation of Python as well.")] = False,
    host: Annotated[str, typer.Option(help="Address; others than loopback need a read token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 is any free one.")] = 8080,
    read_only: Annotated[bool, typer.Option("--read-only", help="Take no changes.")] = False,
    read_token: Annotated[str | None, typer.Option(envvar=_READ, help="Secret that readers send.")] = None,
    write_token: Annotated[str | None, typer.Option(envvar=_WRITE, help="Secret that writers send.")] = None,
    origin: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Origin whose web pages may use the server; repeatable.")
    ] = None,
    model: ServedModelOption = None,
    same_space: SameSpaceOption = False,
    trust_remote_code: TrustOption = False,
    backend: QueryBackendOption = "auto",
    max_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory budget of each index, such as 512MB or 1GB; default: no limit."),
    ] = None,
    device: DeviceOption = None,
    log: Annotated[bool, typer.Option("--log/--no-log", help="Write a line per request to standard error.")] = True,
    link_prefix: Annotated[
        str, typer.Option(metavar="URL", help="On the page, titles lead to URL and the document's metadata path.")
    ] = "",
    serve_files: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FOLDER",
            help="Let readers open the files that documents come from: those in FOLDER, by the document's path; "
            "repeatable, with the name of each index.",
        ),
    ] = None,
    new_indexes: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Clients may make and delete indexes in this folder; those in it are served as well."
        ),
    ] = None,
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="Path below which a proxy serves the page and REST, such as /search.")
    ] = "",
    mean_scores: Annotated[
        bool, typer.Option("--mean-scores", help="Rerank with scores between 0 and 1: the mean of the query's tokens.")
    ] = False,
) -> None:
    """Serve indexes over HTTP: a search page, and REST under /v1.

    \b
    Example:
      latelier serve ./my-index
      latelier serve --demo
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.serve import Access, serve
    from latelier.serve.app import check_names
    from latelier.serve.transport import listen

    access = Access(given_secret(read_token, _READ), given_secret(write_token, _WRITE), tuple(origin or ()))
    access.check_host(host)
    locations = _served_locations(folders or (), new_indexes, demo=demo, read_only=read_only)
    check_names([*locations, _DEMO] if demo else locations)
    files = _folders_of_files(serve_files or (), [*locations, _DEMO] if demo else list(locations))
    access.check_changes(bool(locations) and not read_only)  # the demo's index takes none
    listen(host, port).close()  # a port in use is an error before models are loaded
    with ExitStack() as stack:
        retrievers = open_named(
            locations,
            stack,
            read_only=read_only,
            max_memory=max_memory,
            model=model,
            same_space=same_space,
            device=device,
            backend=backend,
            trust_remote_code=trust_remote_code,
        )
        if demo:
            from latelier.demo import Session

            retrievers[_DEMO] = stack.enter_context(Session(device, show_progress=True)).retriever
        options: dict[str, Any] = {"host": host, "port": port, "access": access, "log": log, "link_prefix": link_prefix}
        options |= {"files": files, "new_indexes": new_indexes, "root_path": root_path, "mean_scores": mean_scores}
        serve(retrievers, on_start=_announce, **options)


def _served_locations(
    folders: Sequence[str], new_indexes: Path | None, *, demo: bool, read_only: bool
) -> dict[str, Path | QdrantLocation]:
    """Return where the indexes to serve are, by name: those that are given, and those among the new ones."""
    made = _indexes_in(new_indexes) if new_indexes else []
    if not folders and not made and not demo:
        raise InvalidArgumentError("received no index; give the folder of one, or --demo.")
    locations = named_locations([*folders, *map(str, made)])
    if demo and _DEMO in locations:
        raise InvalidArgumentError(
            f"--demo serves the documentation of Python by the name {_DEMO!r}, which another index has; name that one: "
            "NAME=INDEX"
        )
    if read_only and any(isinstance(each, QdrantLocation) for each in locations.values()):
        raise InvalidArgumentError(
            "received --read-only with a collection of Qdrant, which has no such mode; leave it out, and give "
            "--read-token without --write-token: then nobody writes."
        )
    return locations


def _folders_of_files(arguments: Sequence[str], names: Collection[str]) -> dict[str, str]:
    """Return the folders of --serve-files by the name of an index; without a name, it is that of the only one."""
    folders: dict[str, str] = {}
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        if not equals or name not in names:
            if len(names) > 1:
                raise InvalidArgumentError(
                    f"received --serve-files {argument!r} with several indexes; say whose it is: NAME={argument}, "
                    f"where NAME is one of {', '.join(map(repr, names))}."
                )
            (name,) = names
            folder = argument
        if name in folders:
            raise InvalidArgumentError(f"received two folders of files for {name!r}; give one.")
        if not Path(folder).is_dir():
            raise InvalidArgumentError(f"received --serve-files {argument!r}; {folder!r} is no folder.")
        folders[name] = folder
    return folders


def _indexes_in(folder: Path) -> list[Path]:
    """Return the folders of indexes in a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return sorted(path for path in folder.iterdir() if (path / CATALOG).is_file())
    except OSError as error:
        raise InvalidArgumentError(f"cannot use {folder} for new indexes: {error}.") from error


def _announce(url: str) -> None:
    typer.echo(f"Open {url} in a browser; the REST interface is described at {url}/openapi.json. Ctrl-C stops.")


_VARIABLE = "LATELIER_MCP_TOKEN"


def mcp(
    context: typer.Context,
    folders: FoldersArgument,
    *,
    writable: Annotated[bool, typer.Option("--writable", help="Offer tools that change the indexes.")] = False,
    watch: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Keep the index, of which there is one, up to date with it (extra: files)."
        ),
    ] = None,
    http: Annotated[
        bool, typer.Option("--http", help="Streamable HTTP on this machine rather than standard input and output.")
    ] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port, with --http.")] = 8000,
    token: Annotated[str | None, typer.Option(envvar=_VARIABLE, help="Secret that clients send, with --http.")] = None,
    model: ServedModelOption = None,
    same_space: SameSpaceOption = False,
    trust_remote_code: TrustOption = False,
    device: DeviceOption = None,
) -> None:
    """Serve indexes to agents, over the Model Context Protocol.

    \b
    Example:
      latelier mcp ./my-index
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.serve.mcp import create_mcp_server, serve_mcp, serve_stdio
    from latelier.serve.transport import check_token, listen

    if http:
        token = given_secret(token, _VARIABLE)
        check_token("token", token)
        listen("127.0.0.1", port).close()  # a port in use is an error before models are loaded
    else:
        refuse_unused(context, ("token", "port"), "has no effect without --http")
    locations = named_locations(folders or ())
    if watch is not None and len(locations) > 1:
        raise typer.BadParameter("a folder belongs to one index; give one.", param_hint="--watch")
    try:
        with ExitStack() as stack:
            read_only = not writable and watch is None
            retrievers = open_named(
                locations,
                stack,
                read_only=read_only,
                model=model,
                same_space=same_space,
                device=device,
                trust_remote_code=trust_remote_code,
            )
            server = create_mcp_server(retrievers, writable=writable)
            if watch is not None:
                _follow(next(iter(retrievers.values())), watch)
            if http:
                serve_mcp(server, port=port, token=token)
            else:
                serve_stdio(server)
    except KeyboardInterrupt:
        if not http:
            exit_now(INTERRUPTED)  # Python would wait for the thread that reads standard input
        raise


def _follow(retriever: Retriever, folder: str) -> None:
    """Synchronise an index with a folder, now and whenever it changes, while others search."""
    changes = changes_of(folder)

    def run() -> None:
        for _ in chain((None,), changes):
            keep_current(retriever, lambda: read_documents(folder))

    Thread(target=run, daemon=True).start()
