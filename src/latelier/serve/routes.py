"""The addresses under ``/v1``: what each does with a checked request, and its response."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
from base64 import b64encode
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import Annotated, Any, cast

import numpy as np
import safetensors.numpy

from latelier.errors import (
    CorruptedIndexError,
    EmbeddingsError,
    InvalidArgumentError,
    LatelierError,
    MissingExtraError,
    StorageError,
)
from latelier.indexes import FieldValues, Id, Record
from latelier.reading.images import refuse_named
from latelier.retrieve import Result, Retriever
from latelier.retrieve.drawing import LONGEST_SIDE, page_jpeg
from latelier.retrieve.explaining import explain_documents
from latelier.retrieve.results import explained_excerpt
from latelier.serve import schemas
from latelier.serve.browsing import browse, newest, questions
from latelier.serve.errors import NoPictureError, UnknownIndexError, checked_body, storage_problem
from latelier.serve.limits import Limits, TooLargeError
from latelier.serve.originals import Originals, file_response
from latelier.serve.queues import IndexMaker, Service
from latelier.serve.searches import Search
from latelier.serve.security import Reading, Writing
from latelier.utils.batching import lengths_to_offsets
from latelier.utils.checks import short
from latelier.utils.files import parse_json
from latelier.utils.misc import needs_extra
from latelier.utils.values import dump_json

with needs_extra("Serving", "serve"):
    from fastapi import APIRouter, Depends, Path, Query, Request, Response
    from fastapi.routing import APIRoute
    from pydantic_core import to_json
    from starlette.convertors import PathConvertor, register_url_convertor

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorResponse}
    for status in (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503, 507)
}


class _AnyId(PathConvertor):
    """Like starlette's ``path``, also for ids that hold line ends."""

    regex = "(?s:.*)"


class _BodyInThread(APIRoute):
    """Reads and checks a body in a thread, so that a large one does not delay other requests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        field: Any = self.body_field
        if field is None:
            return handle
        model: Any = field.field_info.annotation

        class _Checked(Request):
            async def json(self) -> Any:
                """Return the model, which FastAPI takes as it is, or the fault, which it refuses after the access."""
                return await asyncio.to_thread(checked_body, model, await self.body())

        async def checked(request: Request) -> Response:
            return await handle(_Checked(request.scope, request.receive))

        return checked


register_url_convertor("any_id", _AnyId())
router = APIRouter(prefix="/v1", responses=_ERRORS, route_class=_BodyInThread)
# Where clients of other rerank services expect it.
clients = APIRouter(responses=_ERRORS, route_class=_BodyInThread, include_in_schema=False)


# A coroutine, as FastAPI would call it in another thread otherwise, which takes longer than the look-up.
async def _index(request: Request, index: Annotated[str, Path(description="Name of the index.")]) -> Service:
    return _service(request, index)


Index = Annotated[Service, Depends(_index)]


@router.get("/indexes", dependencies=[Reading])
async def list_indexes(request: Request) -> list[schemas.IndexResponse]:
    """List the indexes of the server; one that cannot be read has an error, and no number of documents."""
    originals = _originals(request)
    return await asyncio.gather(*(_listed(service, originals) for service in request.app.state.services.values()))


@router.post("/indexes", status_code=201, dependencies=[Writing])
async def make_index(request: Request, body: schemas.NewIndexRequest) -> schemas.IndexResponse:
    """Make an empty index, if the server has a folder for new ones."""
    maker: IndexMaker = request.app.state.maker
    service = await maker.make(body.name, _service(request, body.model))
    return await service.ask(_describe(service, _originals(request)))


@router.get("/indexes/{index}", dependencies=[Reading])
async def get_index(request: Request, service: Index) -> schemas.IndexResponse:
    """Describe an index, with its size, its last change, its newest documents, and questions to begin with."""
    return await service.look(_describe(service, _originals(request), is_whole=True))


@router.delete("/indexes/{index}", dependencies=[Writing])
async def delete_index(request: Request, service: Index) -> schemas.DeletedIndex:
    """Delete an index with all its documents, if it is in the server's folder for new ones."""
    maker: IndexMaker = request.app.state.maker
    documents = await maker.delete(service)
    return schemas.DeletedIndex(name=service.name, documents=documents)


@router.get("/indexes/{index}/fields", dependencies=[Reading])
async def get_fields(service: Index, field: str | None = None, prefix: str = "") -> list[FieldValues]:
    """Return what the documents have in each field that filters can name: up to 20 values with counts, and limits.

    With `field`, of that field only; with `prefix`, only values that begin with it. Of an index in Qdrant, only names.
    """
    return await service.ask(lambda retriever: retriever.index.field_values(field=field, prefix=prefix))


@router.post("/indexes/{index}/browse", dependencies=[Reading])
async def browse_index(service: Index, body: schemas.BrowseRequest) -> schemas.BrowseResponse:
    """Say what the documents that a filter selects have in each field, and which kinds, folders and files there are."""
    return await service.ask(lambda retriever: browse(retriever, body))


@router.get("/indexes/{index}/ids", dependencies=[Reading])
async def get_ids(service: Index, contains: str = "", limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> list[str]:
    """Return ids that contain a text, whatever its case, in the order of insertion."""

    def find(retriever: Retriever) -> list[str]:
        ids = map(str, retriever.documents.ids())
        return list(itertools.islice((id for id in ids if contains.lower() in id.lower()), limit))

    return await service.ask(find)


@router.post("/indexes/{index}/search", dependencies=[Reading], response_model=schemas.SearchResponse)
async def search(request: Request, service: Index, body: schemas.SearchRequest) -> Response:
    """Find the best documents for one query or several."""
    limits = _limits(request)
    if isinstance(body.query, str):
        queries: list[Any] = [body.query]
    else:
        queries = list(body.query or ())
    queries = queries or await asyncio.to_thread(_matrices, body.vectors or [])
    texts = [query for query in queries if isinstance(query, str)]
    k = body.k + body.offset
    limits.check(batch=len(queries), texts=texts, k=k, depth=body.depth)
    if not queries:
        return search_response([], {}, body.include)
    found = await service.search(Search(queries, k, body.options()))
    for results in found.results:
        del results[: body.offset]
    if "excerpt" not in body.include:
        return search_response(found.results, found.milliseconds, body.include)
    limits.check(k=len(queries) * body.k)

    def excerpts(retriever: Retriever) -> list[list[dict[str, Any]]]:
        return [[results.excerpt(result).as_json() for result in results] for results in found.results]

    return search_response(found.results, found.milliseconds, body.include, await service.ask(excerpts))


@router.post("/indexes/{index}/documents", status_code=201, dependencies=[Writing])
async def add_documents(request: Request, service: Index, body: schemas.DocumentsRequest) -> schemas.ChangeResponse:
    """Add documents, all or none; the answer means that they are committed."""
    documents = _documents(request, body)

    def add(retriever: Retriever) -> schemas.ChangeResponse:
        without = [document for document in documents if "id" not in document]
        if without:
            last = max((id for id in retriever.documents.ids() if isinstance(id, int)), default=-1)
            for number, document in enumerate(without, last + 1):
                document["id"] = number
        return _change(retriever, retriever.add, documents)

    return await service.write(add)


@router.put("/indexes/{index}/documents", dependencies=[Writing])
async def update_documents(request: Request, service: Index, body: schemas.DocumentsRequest) -> schemas.ChangeResponse:
    """Replace documents, and insert those that are new."""
    documents = _documents(request, body)
    return await service.write(lambda retriever: _change(retriever, retriever.update, documents))


@router.get("/indexes/{index}/documents", dependencies=[Reading], response_model=schemas.DocumentsPage)
async def list_documents(
    request: Request,
    service: Index,
    after: Annotated[str | None, Query(description="What the last answer had as `after`.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List the documents of an index in the order of insertion, some at a time."""
    _limits(request).check(batch=limit)

    def read(retriever: Retriever) -> Response:
        with retriever.index.snapshot():
            stored = retriever.documents
            ids = stored.ids()
            begin = _place_after(ids, after)
            records = stored.get(ids[begin : begin + limit])
        following = None
        if begin + limit < len(ids):
            following = dump_json(ids[begin + limit - 1])
        return _json({"documents": list(map(_as_json, records)), "after": following})

    return await service.ask(read)


def _place_after(ids: Sequence[Id], after: str | None) -> int:
    """Return the place of the first id after the one that a cursor is the JSON of."""
    if after is None:
        return 0
    try:
        known = parse_json(after)
        if isinstance(known, bool) or not isinstance(known, (str, int)):
            raise InvalidArgumentError("it is no id.")
        return 1 + ids.index(known)
    except (LatelierError, ValueError) as error:
        raise InvalidArgumentError(
            f"received after={short(after)}, after which no document stands; give the `after` of an answer, or begin "
            "again without it, as that document may have been removed."
        ) from error


@router.post("/indexes/{index}/documents/delete", dependencies=[Writing])
async def delete_documents(request: Request, service: Index, body: schemas.IdsRequest) -> schemas.ChangeResponse:
    """Remove documents, all or none."""
    _limits(request).check(batch=len(body.ids))
    ids = list(dict.fromkeys(body.ids))
    return await service.write(lambda retriever: _change(retriever, retriever.remove, ids))


@router.post("/indexes/{index}/documents/get", dependencies=[Reading], response_model=list[schemas.RecordResponse])
async def get_documents(request: Request, service: Index, body: schemas.IdsRequest) -> Response:
    """Return the texts and metadata of documents."""
    _limits(request).check(batch=len(body.ids))
    records = await service.ask(lambda retriever: retriever.documents.get(body.ids))
    return _json(list(map(_as_json, records)))


@router.get("/indexes/{index}/documents/{id:any_id}", dependencies=[Reading], response_model=schemas.RecordResponse)
async def get_document(service: Index, id: str) -> Response:
    """Return a document. An address has no integers: if no document has this string as its id, the integer is meant."""
    (record,) = await service.ask(lambda own: own.documents.get(_spelled(own, id)))
    return _json(_as_json(record))


@router.get("/indexes/{index}/files/{id:any_id}", dependencies=[Reading], responses={200: {"content": {"*/*": {}}}})
async def get_file(request: Request, service: Index, id: str) -> Response:
    """Return the file that a document comes from, as it is now; 404 unless the server was started with its folder."""

    def find(retriever: Retriever) -> Any:
        (record,) = retriever.documents.get(_spelled(retriever, id))
        return _originals(request).find(service.name, record.metadata)

    return file_response(await service.ask(find))


_LARGEST_PICTURE = 2000  # pixels a side


@router.get(
    "/indexes/{index}/pictures/{id:any_id}", dependencies=[Reading], responses={200: {"content": {"image/jpeg": {}}}}
)
async def get_picture(
    request: Request,
    service: Index,
    id: str,
    size: Annotated[int, Query(ge=16, le=_LARGEST_PICTURE)] = LONGEST_SIDE,
    page: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """Return the picture that a document was encoded from, if its file is the same, as a JPEG of `size` pixels.

    With `page`, that page of the PDF that the document comes from, where the server serves files.
    """

    def reduced(retriever: Retriever) -> bytes:
        (record,) = retriever.documents.get(_spelled(retriever, id))
        source: Any = record.metadata
        if page is not None:
            source = _originals(request).find(service.name, record.metadata)
        try:
            return page_jpeg(source, size, page)
        except MissingExtraError:
            raise
        except LatelierError as error:  # its message has paths, of which a client shall not learn whether they exist
            raise NoPictureError(
                f"document {short(id)} has no picture, or its file is not there any more, or has changed."
            ) from error

    return Response(await service.ask(reduced), media_type="image/jpeg")


@router.delete("/indexes/{index}/documents/{id:any_id}", dependencies=[Writing])
async def delete_document(service: Index, id: str) -> schemas.ChangeResponse:
    """Remove a document; see above for integers."""
    return await service.write(lambda retriever: _change(retriever, retriever.remove, [_spelled(retriever, id)]))


@router.post("/indexes/{index}/explain", dependencies=[Reading])
async def explain(request: Request, service: Index, body: schemas.ExplainRequest) -> list[schemas.ExplainResponse]:
    """Return the terms of documents' scores. An id given as a string that no document has is the integer."""
    _limits(request).check(texts=[body.query], k=len(body.ids))

    def explain_all(retriever: Retriever) -> list[schemas.ExplainResponse]:
        ids = [_spelled(retriever, id) for id in body.ids]
        query = retriever.read_query(body.query, is_whole=body.whole_query)
        source = retriever.source(with_model=True)
        explanations = explain_documents(retriever.query_model, source.index, query, ids, starts=body.starts)
        excerpts = [None if each.page else explained_excerpt(source, each).as_json() for each in explanations]
        pairs = zip(explanations, excerpts, strict=True)
        return [schemas.ExplainResponse.of(*pair, similarities=body.similarities) for pair in pairs]

    return await service.ask(explain_all)


@router.post("/indexes/{index}/why-not", dependencies=[Reading])
async def why_not(request: Request, service: Index, body: schemas.WhyNotRequest) -> schemas.WhyNotResponse:
    """Say why a search does not find a document, and which changes would find it."""
    _limits(request).check(texts=[body.query], k=body.k, depth=body.depth)

    def examine(retriever: Retriever) -> schemas.WhyNotResponse:
        report = retriever.why_not(body.query, _spelled(retriever, body.id), body.k, **body.options())
        causes = list(report.causes)
        changes = list(report.changes)
        return schemas.WhyNotResponse(is_found=report.is_found, causes=causes, changes=changes, report=str(report))

    return await service.ask(examine)


@router.post("/rerank", dependencies=[Reading])
@clients.post("/rerank", dependencies=[Reading])
@clients.post("/v2/rerank", dependencies=[Reading])
async def rerank(request: Request, body: schemas.RerankRequest) -> schemas.RerankResponse:
    """Order documents that need not be in an index; the form is that of the common rerank interfaces.

    A `model` that is no index of this server stands for the first one: clients send names of other services' models.
    The answer says which one it was.
    """
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    _limits(request).check(batch=len(texts), texts=[body.query, *texts])
    known = request.app.state.services
    service = _service(request, body.model if body.model in known else None)
    await service.ask(body.check_tokens)
    is_mean = request.app.state.mean_scores if body.mean_scores is None else body.mean_scores
    ranked = await service.rerank(body.query, texts, body.top_n, is_mean=is_mean)
    results = [schemas.RankedDocument(index=int(hit.id), relevance_score=hit.score) for hit in ranked]
    for result in results if body.return_documents else ():
        result.document = schemas.DocumentText(text=texts[result.index])
    unread = await service.ask(lambda own: own.query_model.unread(texts, "document"))
    cut = [i for i, tokens in enumerate(unread) if tokens]
    return schemas.RerankResponse(model=service.name, results=results, cut=cut)


# Numbers as JSON: about 20 bytes each.
_MOST_NUMBERS = 8_000_000


@router.post(
    "/encode",
    dependencies=[Reading],
    response_model=schemas.EncodeResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
async def encode(request: Request, body: schemas.EncodeRequest) -> Response:
    """Return the token vectors of texts, as the model of an index makes them for queries or for documents.

    With the header ``Accept: application/octet-stream``, the answer is a safetensors file of two arrays: ``vectors``,
    all tokens of all texts one after the other, and ``offsets``, where each text begins and the last one ends.
    """
    _limits(request).check(batch=len(body.texts), texts=body.texts)
    service = _service(request, body.model)
    matrices = await service.encode(body.texts, is_query=body.input_type == "query")
    is_packed = request.headers.get("accept") == "application/octet-stream"
    return await asyncio.to_thread(_encoded, service.name, body, matrices, is_packed=is_packed)


def _encoded(name: str, body: schemas.EncodeRequest, matrices: list[np.ndarray], *, is_packed: bool) -> Response:
    dims = matrices[0].shape[1]
    if body.dims is not None and body.dims > dims:
        raise InvalidArgumentError(f"received dims={body.dims:,}; the model makes vectors of {dims:,} dimensions.")
    vectors = np.concatenate(matrices)
    if body.dims is not None and body.dims < dims:
        vectors = vectors[:, : body.dims]
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    vectors = np.ascontiguousarray(vectors, dtype=np.dtype(body.dtype).newbyteorder("<"))
    offsets = lengths_to_offsets([len(matrix) for matrix in matrices])
    if is_packed:
        content = safetensors.numpy.save({"vectors": vectors, "offsets": offsets})
        return Response(content, media_type="application/octet-stream")
    if body.format == "json" and vectors.size > _MOST_NUMBERS:
        raise TooLargeError(
            f"the answer has {vectors.size:,} numbers, of {_MOST_NUMBERS:,} at most as JSON; send fewer texts, or ask "
            "for format base64, or with the header Accept: application/octet-stream."
        )
    rows = [vectors[start:end] for start, end in itertools.pairwise(offsets)]
    embeddings = [b64encode(row.data).decode() if body.format == "base64" else row.tolist() for row in rows]
    return _json({"model": name, "dims": vectors.shape[1], "dtype": body.dtype, "embeddings": embeddings})


def _limits(request: Request) -> Limits:
    limits: Limits = request.app.state.limits
    return limits


def _originals(request: Request) -> Originals:
    originals: Originals = request.app.state.originals
    return originals


def _service(request: Request, name: str | None) -> Service:
    """Return the service of an index, by default of the first one."""
    services: dict[str, Service] = request.app.state.services
    name = name or next(iter(services), "")
    if name not in services:
        raise UnknownIndexError(f"there is no index {name!r}; there are: {', '.join(map(repr, services))}.")
    return services[name]


def _matrices(vectors: list[list[list[float]]]) -> list[np.ndarray]:
    for position, rows in enumerate(vectors):
        lengths = sorted({len(row) for row in rows})
        if len(lengths) > 1:
            raise EmbeddingsError(
                f"vectors[{position}] has rows of {lengths[0]} and {lengths[-1]} numbers; expected one dim."
            )
    return [np.array(rows, dtype="float32") for rows in vectors]


def _documents(request: Request, body: schemas.DocumentsRequest) -> list[dict[str, Any]]:
    # The title is stored before the text.
    texts = [f"{document.title or ''} {document.text}".lstrip() for document in body.documents]
    _limits(request).check(batch=len(texts), texts=texts)
    documents = []
    for document in body.documents:
        metadata = document.all_metadata
        refuse_named(metadata)
        # Unlike model_dump, this also takes metadata that is nested too deeply, which the index refuses with a message.
        fields = {"id": document.id, "text": document.text, "title": document.title, "metadata": metadata}
        documents.append({name: value for name, value in fields.items() if value is not None})
    return documents


def _as_json(record: Record) -> dict[str, Any]:
    return {"id": record.id, "text": record.text, "metadata": record.metadata}


def _change(retriever: Retriever, change: Any, argument: Any) -> schemas.ChangeResponse:
    change(argument)
    ids = [each["id"] if isinstance(each, dict) else each for each in argument]
    return schemas.ChangeResponse(changed=len(argument), documents=len(retriever), ids=ids)


def _spelled(retriever: Retriever, id: Id) -> Id:
    """Return the integer that a string spells, if no document has the string as its id but one has the integer."""
    documents = retriever.documents
    is_integer = isinstance(id, str) and re.fullmatch("-?[0-9]{1,19}", id) and id not in documents
    if is_integer and int(id) in documents:
        return int(id)
    return id


async def _listed(service: Service, originals: Originals) -> schemas.IndexResponse:
    try:
        return await service.look(_describe(service, originals))
    except (StorageError, CorruptedIndexError) as error:
        kind = type(service.retriever.index).__name__
        (_, message) = storage_problem(error)
        return schemas.IndexResponse(
            name=service.name, kind=kind, documents=None, dim=None, model=None, fields=[], error=message
        )


def _describe(
    service: Service, originals: Originals, *, is_whole: bool = False
) -> Callable[[Retriever], schemas.IndexResponse]:
    def describe(retriever: Retriever) -> schemas.IndexResponse:
        index = retriever.index
        serves_files = service.name in originals.folders
        details: dict[str, Any] = {"serves_files": serves_files}
        details["serves_pages"] = serves_files and find_spec("PIL") is not None
        if is_whole:
            details |= {"examples": questions(retriever), "newest": newest(retriever)}
        folder: Any = getattr(index, "path", None)  # not every kind has one
        if is_whole and folder:
            # Readers touch the other files of SQLite, and make an empty log.
            states = [entry.stat() for entry in folder.iterdir() if not entry.name.endswith("-shm")]
            changed = datetime.fromtimestamp(max(each.st_mtime for each in states if each.st_size), timezone.utc)
            details |= {
                "bytes": cast("Any", index).statistics().bytes,
                "modified": changed.isoformat(timespec="seconds"),
            }
        return schemas.IndexResponse(
            name=service.name,
            kind=type(index).__name__,
            documents=len(retriever),
            dim=index.dim,
            model=retriever.model_name,
            document_model=retriever.document_model_name,
            fields=index.fields,
            has_words=index.has_words,
            query_length=retriever.query_model.limits("query")[1],
            longest_query=retriever.query_model.queries.longest_query,
            **details,
        )

    return describe


def search_response(
    results: Sequence[Sequence[Result]],
    milliseconds: Mapping[str, float],
    include: Sequence[str],
    excerpts: Sequence[Sequence[Mapping[str, Any]]] | None = None,
) -> Response:
    """Return a `schemas.SearchResponse` as JSON; models of all results would take longer than writing it."""
    left_out = dict.fromkeys({"text", "metadata"} - set(include))
    rows = [[result._asdict() | left_out for result in found] for found in results]
    for position, row in ((i, row) for i, found in enumerate(rows) for row in found):
        if not math.isfinite(row["score"]):
            raise EmbeddingsError(
                f"query {position} and document {short(row['id'])} have the score {row['score']}, as their vectors are "
                "too long for float32; scale them, for instance to length 1."
            )
    for found, own in zip(rows, excerpts or (), strict=excerpts is not None):
        for row, excerpt in zip(found, own, strict=True):
            row["excerpt"] = excerpt
    timing = ", ".join(f"{stage};dur={time}" for stage, time in milliseconds.items())
    unread = [getattr(found, "unread", 0) for found in results]
    mode = getattr(results[0], "mode", None) if results else None
    body = {"mode": mode, "results": rows, "unread": unread, "milliseconds": milliseconds}
    return _json(body, {"server-timing": timing})


def _json(value: object, headers: dict[str, str] | None = None) -> Response:
    """Return a response of JSON, which has no numbers that are not finite: they become null."""
    return Response(to_json(value, inf_nan_mode="null"), media_type="application/json", headers=headers)
