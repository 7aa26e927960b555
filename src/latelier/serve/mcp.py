"""Indexes as tools of agents: the tools, and how they are served."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from latelier.errors import Advice, InvalidArgumentError, LatelierError
from latelier.indexes.options import Mode
from latelier.reading.images import refuse_named
from latelier.retrieve import Excerpt, Result, Retriever
from latelier.serve.limits import Limits
from latelier.serve.problems import told
from latelier.serve.transport import check_token, listen, sends_token
from latelier.utils.checks import did_you_mean, short
from latelier.utils.misc import exits_on_signals, needs_extra

with needs_extra("The Model Context Protocol", "mcp"):
    import uvicorn
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.mcpserver.tools import Tool
    from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
    from mcp_types import ToolAnnotations
    from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError, model_validator
    from starlette.datastructures import Headers
    from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


_INSTRUCTIONS = (
    "Searches collections of documents by meaning. Call list_indexes first: it names the collections and the fields "
    "that filters can use. search returns the best documents with the passages that matched; if all of them are weak, "
    "nothing matches well, and they are only the nearest; get returns whole texts; "
    "why_not says why a document was not found."
)
# What an agent can do about an error.
_ADVICE: dict[Advice, str] = {
    "filter-timeout": "Simplify it.",
    "known-ids": "search returns the ids of what it finds (1 is not '1').",
    "skip-stored": "Leave out those that are to stay as they are stored.",
    "update": "update replaces documents.",
    "update-or-skip": "update replaces documents; leave out those that are to stay as they are stored.",
}
# Characters of a document's text in the results of a search; `get` returns all of it.
_SHOWN = 1500
_MOST_HITS = 50


def create_mcp_server(
    retrievers: Mapping[str, Retriever], *, writable: bool = False, limits: Limits | None = None
) -> MCPServer[Any]:
    """Return a server of tools over some indexes.

    Parameters
    ----------
    retrievers
        Retrievers by the name that agents use.
    writable
        Offer tools that add, replace and remove documents.
    limits
        How much a call may hold, as for `create_app`; default: ``Limits()``.

    Returns
    -------
    mcp.server.mcpserver.MCPServer
        The server; ``run("stdio")`` or ``run("streamable-http")`` runs it.

    Raises
    ------
    InvalidArgumentError
        If there is no retriever.

    Examples
    --------
    >>> import asyncio
    >>> from mcp import Client
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add([("a", "Bananas are healthy."), ("b", "The moon is far.")])
    >>> async def main() -> str:
    ...     async with Client(create_mcp_server({"fruit": retriever})) as client:
    ...         wanted = {"query": "apples", "k": 1}
    ...         found = await client.call_tool("search", wanted)
    ...         return found.structured_content["result"][0]["id"]
    >>> asyncio.run(main())
    'a'
    """
    if not retrievers:
        raise InvalidArgumentError("received no retriever; expected at least one.")
    tools = _Tools(retrievers, limits or Limits())
    offered = []
    reading: tuple[Callable[..., Any], ...] = (
        tools.list_indexes,
        tools.search,
        tools.get,
        tools.explain,
        tools.why_not,
    )
    writing: tuple[Callable[..., Any], ...] = ()
    if writable:
        writing = (tools.add, tools.update, tools.remove)
    for tool in (*reading, *writing):
        changes = tool in writing
        hints = ToolAnnotations(
            read_only_hint=not changes,
            destructive_hint=changes and tool != tools.add,
            idempotent_hint=tool != tools.add,
            open_world_hint=False,
        )
        offered.append(strict_tool(_reporting(tool), hints))
    # At its default level, INFO, which it sets for the whole process, loaders of models log what they do.
    return _Server(
        "latelier", version=version("latelier"), instructions=_INSTRUCTIONS, tools=offered, log_level="WARNING"
    )


class _Server(MCPServer[Any]):
    """A server whose errors say what was received, what is accepted and what was probably meant."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool by name."""
        known = [tool.name for tool in await self.list_tools()]
        if name not in known:
            meant = did_you_mean(name, known)
            raise ToolError(f"received the tool {short(name)}; there are: {', '.join(known)}.{meant}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(f"{name}: {told(error.__cause__.errors(include_url=False))}") from error.__cause__
            raise


def serve_stdio(server: MCPServer[Any]) -> None:
    """Serve tools over standard input and output; after SIGINT a thread still waits for input."""
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


def serve_mcp(server: MCPServer[Any], *, port: int, token: str | None = None) -> None:
    """Serve tools at ``http://127.0.0.1:PORT/mcp`` until a signal; clients have to send the token, if there is one."""
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
    """Return an application that answers 401 to requests without the token."""

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


Id = StrictStr | StrictInt
IndexName = Annotated[str | None, Field(description="Name of the index; may be left out if there is one.")]
Filter = Annotated[
    str | None, Field(description="SQL condition on the fields of the index, such as: year >= 2020 AND lang = 'en'")
]


class StrictModel(BaseModel):
    """Fields; others are refused with the names of those that exist."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_known_names(cls, given: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        if isinstance(given, dict):
            unknown = [name for name in given if name not in known]
        else:
            unknown = []
        if unknown:
            if known:
                accepted = "no other names than " + ", ".join(map(repr, known))
            else:
                accepted = "no arguments"
            raise ValueError(f"received {', '.join(map(repr, unknown))}; expected {accepted}")
        return given


class IndexInfo(BaseModel):
    """A collection of documents."""

    name: str
    documents: int
    fields: list[str]
    model: str | None
    document_model: str | None = None


class Mark(BaseModel):
    """A word of a text that matched, by its characters, and what it added to the score."""

    start: int
    end: int
    contribution: float


class ExcerptPart(BaseModel):
    """The part of a document's text that matched, in one line; its characters in the text, and words that matched."""

    text: str
    begin: int
    start: int
    end: int
    marks: list[Mark]
    title: str
    place: str


class Document(BaseModel):
    """A stored document."""

    id: Id
    text: str | None
    metadata: dict[str, Any]


class NewDocument(StrictModel):
    """A document to store."""

    id: Id
    text: str
    metadata: dict[str, Any] = Field(default_factory=dict, description="Values by field, which filters can name.")


class FoundDocument(Document):
    """A document that was found; ``excerpt`` is the part that matched.

    ``weak``: it matches less than what answers a question does.
    """

    score: float
    mean_score: float | None
    weak: bool | None
    excerpt: ExcerptPart
    is_cut: bool


class _Tools:
    """The tools; each method's signature and docstring are what agents see."""

    def __init__(self, retrievers: Mapping[str, Retriever], limits: Limits) -> None:
        self._retrievers = dict(retrievers)
        self._limits = limits
        self._writing = threading.Lock()

    def list_indexes(self) -> list[IndexInfo]:
        """List the collections: their names, sizes, and the fields that filters can name."""
        return [
            IndexInfo(
                name=name,
                documents=len(each),
                fields=each.index.fields,
                model=each.model_name,
                document_model=each.document_model_name,
            )
            for name, each in self._retrievers.items()
        ]

    def search(
        self,
        query: Annotated[str, Field(description="A question or a description of what is looked for.")],
        index: IndexName = None,
        k: Annotated[int, Field(ge=1, le=_MOST_HITS, description="Maximum number of documents.")] = 5,
        offset: Annotated[
            int, Field(ge=0, description="Leave out so many of the best documents, which were seen before.")
        ] = 0,
        filter: Filter = None,
        mode: Annotated[
            Mode | None,
            Field(
                description="What is compared: meaning (vectors), words (keywords), both (hybrid), or the meaning of "
                "the documents that have words of the query (rerank). Without it, both where texts are stored."
            ),
        ] = None,
        min_mean_score: Annotated[
            float | None, Field(description="The least mean_score of a document; without it, none is computed.")
        ] = None,
    ) -> list[FoundDocument]:
        """Find the documents that match a query best, with the passages that matched."""
        retriever = self._retriever(index)
        self._limits.check(texts=[query], k=k + offset)
        results = retriever.search(query, k + offset, filter=filter, mode=mode, min_mean_score=min_mean_score)
        del results[:offset]
        return [_found(result, results.excerpt(result)) for result in results]

    def get(
        self,
        ids: Annotated[
            list[Id], Field(min_length=1, max_length=_MOST_HITS, description="Ids as search returned them.")
        ],
        index: IndexName = None,
    ) -> list[Document]:
        """Return the whole texts and the metadata of documents."""
        self._limits.check(batch=len(ids))
        records = self._retriever(index).documents.get(ids)
        return [Document(id=record.id, text=record.text, metadata=record.metadata) for record in records]

    def explain(self, query: str, id: Id, index: IndexName = None) -> str:
        """Show which words of the query matched which words of a document, and what each added to its score."""
        self._limits.check(texts=[query])
        return repr(self._retriever(index).explain(query, id))

    def why_not(self, query: str, id: Id, index: IndexName = None, k: int = 5, filter: Filter = None) -> str:
        """Say why a search does not return a document, and what would make it do so."""
        self._limits.check(texts=[query], k=k)
        return str(self._retriever(index).why_not(query, id, k, filter=filter))

    def add(self, documents: list[NewDocument], index: IndexName = None) -> str:
        """Add documents; an id that is in the index already is an error, and then nothing is added."""
        return self._write(index, "add", [dict(document) for document in documents])

    def update(self, documents: list[NewDocument], index: IndexName = None) -> str:
        """Replace documents, and insert those that are new."""
        return self._write(index, "update", [dict(document) for document in documents])

    def remove(self, ids: Annotated[list[Id], Field(min_length=1)], index: IndexName = None) -> str:
        """Remove documents; an unknown id is an error, and then nothing is removed."""
        return self._write(index, "remove", ids)

    def _retriever(self, name: str | None) -> Retriever:
        if name is None and len(self._retrievers) == 1:
            return next(iter(self._retrievers.values()))
        if name not in self._retrievers:
            raise InvalidArgumentError(f"received index={name!r}; there are: {', '.join(map(repr, self._retrievers))}.")
        return self._retrievers[name]

    def _write(self, index: str | None, method: str, argument: list[Any]) -> str:
        retriever = self._retriever(index)
        documents = argument if method != "remove" else []
        self._limits.check(batch=len(argument), texts=[document["text"] for document in documents])
        for document in documents:
            refuse_named(document["metadata"])
        with self._writing:
            getattr(retriever, method)(argument)
        return f"done; the index has {len(retriever):,} documents now"


def _found(result: Result, excerpt: Excerpt) -> FoundDocument:
    return FoundDocument(
        id=result.id,
        score=result.score,
        mean_score=result.mean_score,
        weak=result.weak,
        text=None if result.text is None else result.text[:_SHOWN],
        is_cut=len(result.text or "") > _SHOWN,
        metadata=result.metadata,
        excerpt=ExcerptPart(**excerpt.as_json()),
    )


T = TypeVar("T", bound="Callable[..., Any]")


def _reporting(tool: T) -> T:
    """Return a tool whose errors reach the agent with their message, which says what to do."""

    @functools.wraps(tool)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return tool(*arguments, **options)
        except LatelierError as error:
            raise ToolError(error.worded(_ADVICE)) from error

    call.__signature__ = inspect.signature(tool, eval_str=True)  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def strict_tool(function: Callable[..., Any], annotations: ToolAnnotations) -> Tool:
    """Return the tool that calls a function, with a schema that allows no other arguments than its own."""
    tool = Tool.from_function(function, annotations=annotations)
    lenient = tool.fn_metadata.arg_model
    strict: type[ArgModelBase] = type(lenient.__name__, (StrictModel, lenient), {"__module__": __name__})
    tool.fn_metadata.arg_model = strict
    tool.parameters = strict.model_json_schema(by_alias=True)
    return tool
