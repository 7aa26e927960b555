"""Encode documents and store them, chunk by chunk: what `Retriever.add` and `Retriever.update` do."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from latelier.arrays import DTYPES
from latelier.embeddings import TokenEmbeddings
from latelier.errors import DuplicateIdError, InvalidArgumentError
from latelier.indexes import Id, Index
from latelier.indexes.catalog.metadata import encode_metadata
from latelier.retrieve.document_chunks import DocumentChunk, OnExisting, document_chunks
from latelier.retrieve.document_settings import DocumentSettings
from latelier.retrieve.documents import InputDocument
from latelier.retrieve.encoding_memory import encoding_sizes
from latelier.retrieve.passage_ids import PassageId, encode_passage_id, passage_prefix
from latelier.retrieve.passages import PassageRange, Passages, cut_texts
from latelier.retrieve.pending_documents import PendingDocuments
from latelier.retrieve.query_model import QueryModel
from latelier.retrieve.row_ids import RowIds
from latelier.retrieve.stored_documents import StoredDocuments
from latelier.utils import check_choice, check_count
from latelier.utils.misc import progress_bar

if TYPE_CHECKING:
    from latelier.retrieve.encoding_workers import EncodingWorkers

__all__ = ["Filling"]

# Passages need room for some words beside special tokens and markers.
_LEAST_ROOM = 8


class _Rows(NamedTuple):
    """What one transaction stores: one row per document, or per passage.

    ``documents`` are the ids of the documents, and ``numbers`` those of them that the user has not given.
    """

    ids: list[Id]
    texts: list[str]
    metadata: list[dict[str, Any]]
    documents: list[Id]
    numbers: list[Id]


class _Document(NamedTuple):
    """What is stored of one document: the ids and texts of its passages, or its own, and its metadata."""

    ids: list[Id]
    texts: list[str]
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Filling:
    """The options of adding documents to an index.

    Parameters
    ----------
    on_existing
        What to do with a document if its id is in the index: raise an error, replace it, or skip the new one.
    batch_size
        Texts of maximum length per batch.
    chunk_size
        Documents, or passages, per transaction. A document with more passages than that is one transaction.
    show_progress
        Whether to show a progress bar.
    passages, pool_factor, precision
        As the user gives them, see `Retriever.add`.
    workers
        Processes that encode, or their number; None: this process does.
    skip_unchanged
        Whether documents that are stored with the same text and metadata are left as they are.
    """

    on_existing: OnExisting
    batch_size: int = 32
    chunk_size: int = 2048
    show_progress: bool = False
    passages: Any = None
    pool_factor: int | None = None
    precision: str | None = None
    workers: EncodingWorkers | int | None = None
    skip_unchanged: bool = False

    def run(self, model: QueryModel, index: Index, documents: Iterable[Any]) -> None:
        """Encode documents and store them.

        Parameters
        ----------
        model
            The model of the index.
        index
            The index.
        documents
            As in `latelier.retrieve.documents.parse_documents`.

        Raises
        ------
        InvalidArgumentError
            If an option is invalid or does not fit the index, or a document is invalid.
        DuplicateIdError
            If an id is given twice, or is in the index already and `on_existing` is ``"raise"``.
        """
        check_count("batch_size", self.batch_size)
        check_count("chunk_size", self.chunk_size)
        check_choice("precision", self.precision, DTYPES, optional=True)
        model.identity.check(index)
        batch_size, chunk_size = encoding_sizes(index, model, self.batch_size, self.chunk_size)
        replace(self, batch_size=batch_size, chunk_size=chunk_size)._run(model, index, documents)

    def _run(self, model: QueryModel, index: Index, documents: Iterable[Any]) -> None:
        """Encode and store documents, after the arguments were checked."""
        settings = DocumentSettings.chosen(
            index, self.passages, self.pool_factor, max_length=lambda: model.document_limits[1]
        )
        stored = PendingDocuments(index, has_passages=settings.passages is not None)
        total = len(documents) if isinstance(documents, Sized) else None
        with progress_bar(shown=self.show_progress, total=total, desc="Indexing", unit=" documents") as progress:
            chunks = document_chunks(
                documents, stored, self.chunk_size, on_existing=self.on_existing, progress=progress
            )
            passages, pool_factor = settings.passages, settings.pool_factor
            transactions = (rows for chunk in chunks for rows in self._rows(chunk, passages, model, stored, progress))
            for rows, embeddings in self._encoded(model, transactions, pool_factor, progress):
                if index.dim is None:
                    model.identity.store_in(index)
                    settings.store_in(index)
                self._store(rows, embeddings, StoredDocuments(index, stored.has_passages))
                stored.end(rows.documents)

    def _store(self, rows: _Rows, embeddings: Any, stored: StoredDocuments) -> None:
        """Store documents in one commit."""
        if self.on_existing == "replace":
            prefixes = list(map(passage_prefix, rows.documents)) if stored.has_passages else []
            stored.index.update(rows.ids, embeddings, rows.texts, rows.metadata, remove_prefixes=prefixes)
            return
        try:
            ids = RowIds(rows.ids, rows.documents, rows.numbers, stored)
            stored.index.add(ids, embeddings, rows.texts, rows.metadata)
        except DuplicateIdError as error:
            again = "Call it again, which skips them."
            if self.on_existing != "skip":
                again = (
                    "Add the documents again with skip_existing=True, or --resume, which skips those that are stored "
                    "and needs an id for each."
                )
            message = f"{error} Another writer has stored documents with these ids since this call checked them."
            raise DuplicateIdError(f"{message} {again}") from error

    def _encoded(
        self, model: QueryModel, transactions: Iterable[_Rows], pool_factor: int, progress: Any
    ) -> Iterator[tuple[_Rows, Any]]:
        """Yield what each transaction stores, with its vectors."""
        if self.workers is None:
            for rows in transactions:
                bar = _DocumentBar(progress, len(rows.documents), len(rows.ids))
                yield rows, self._encode(model, rows.texts, pool_factor, bar)
            return
        from latelier.retrieve.encoding_workers import open_workers  # with Ray's, only if workers are asked for

        options = {"batch_size": self.batch_size, "pool_factor": pool_factor, "precision": self.precision}
        with open_workers(self.workers, model) as workers:
            for rows, embeddings in _encode_ahead(workers, transactions, self.chunk_size, options):
                yield rows, embeddings
                progress.update(len(rows.documents))

    def _rows(
        self,
        chunk: DocumentChunk,
        passages: Passages | None,
        model: QueryModel,
        stored: PendingDocuments,
        progress: Any,
    ) -> Iterator[_Rows]:
        """Yield the rows of a chunk in as many transactions as they need; a document is never in two."""
        rows = _Rows([], [], [], [], [])
        given = [document.id for document in chunk.documents]
        for id, given_id, document in zip(chunk.ids, given, _parts(chunk, passages, model), strict=True):
            if self.skip_unchanged and _is_stored(stored, id, document):
                progress.update(1)
                continue
            if rows.ids and len(rows.ids) + len(document.ids) > self.chunk_size:
                yield rows
                rows = _Rows([], [], [], [], [])
            rows.ids.extend(document.ids)
            rows.texts.extend(document.texts)
            rows.metadata.extend([document.metadata] * len(document.ids))
            rows.documents.append(id)
            if given_id is None:
                rows.numbers.append(id)
            stored.begin([id])
        if rows.ids:
            yield rows

    def _encode(self, model: QueryModel, texts: list[str], pool_factor: int, bar: Any) -> Any:
        """Return the vectors of texts; those of a very long document one part after the other while they are stored."""

        def encode(part: list[str]) -> TokenEmbeddings:
            return model.encode_documents(
                part, batch_size=self.batch_size, pool_factor=pool_factor, precision=self.precision, bar=bar
            )

        size = self.chunk_size
        if len(texts) <= size:
            return encode(texts)
        return (encode(texts[first : first + size]) for first in range(0, len(texts), size))


def _encode_ahead(
    workers: EncodingWorkers, transactions: Iterable[_Rows], size: int, options: dict[str, Any]
) -> Iterator[tuple[_Rows, Any]]:
    """Yield what each transaction stores, with its vectors, while workers encode the next transactions."""
    waiting: deque[_Rows] = deque()

    def chunks() -> Iterator[list[str]]:
        for rows in transactions:
            waiting.append(rows)
            yield from (rows.texts[first : first + size] for first in range(0, len(rows.texts), size))

    with closing(workers.encode(chunks(), **options)) as encoded:
        for vectors in encoded:
            rows = waiting.popleft()
            remaining = -(-len(rows.texts) // size) - 1  # chunks of a very long document, read while it is stored
            yield rows, chain([vectors], islice(encoded, remaining)) if remaining else vectors


class _DocumentBar:
    """A progress bar of documents, updated by the number of rows that are done.

    Parameters
    ----------
    bar
        The bar.
    documents, rows
        Number of documents, and of the rows that they are stored in.
    """

    def __init__(self, bar: Any, documents: int, rows: int) -> None:
        self._bar, self._documents, self._rows = bar, documents, rows
        self._done = self._shown = 0

    def update(self, count: int = 1) -> None:
        """Count rows that are done."""
        self._done += count
        documents = self._done * self._documents // max(self._rows, 1)
        self._bar.update(documents - self._shown)
        self._shown = documents


def _parts(chunk: DocumentChunk, passages: Passages | None, model: QueryModel) -> Iterator[_Document]:
    """Yield the documents of a chunk as the index stores them: whole, or as passages."""
    if passages is None:
        for id, document in zip(chunk.ids, chunk.documents, strict=True):
            yield _Document([id], [document.with_title()], document.metadata)
        return
    for id, document, ranges in zip(chunk.ids, *_cut(chunk.documents, passages, model), strict=True):
        ids: list[Id] = [encode_passage_id(PassageId(id, number, *place)) for number, place in enumerate(ranges)]
        texts = [document.with_title(document.text[start:end]) for start, end in ranges]
        yield _Document(ids, texts, document.metadata)


def _is_stored(stored: PendingDocuments, id: Id, document: _Document) -> bool:
    """Whether the index holds a document with the same passages, texts and metadata."""
    if stored.parts(id) != document.ids:
        return False
    given, records = _as_json(document.metadata, id), stored.index.get(document.ids)
    return all(
        record.text == text and _as_json(record.metadata, id) == given
        for record, text in zip(records, document.texts, strict=True)
    )


def _as_json(metadata: dict[str, Any], id: Id) -> str:
    """Return metadata as JSON with sorted keys, which tells apart 1, 1.0 and true; for ``==`` they are equal."""
    return json.dumps(json.loads(encode_metadata(metadata, id)[0]), sort_keys=True)


def _cut(
    documents: list[InputDocument], passages: Passages, model: QueryModel
) -> tuple[list[InputDocument], list[list[PassageRange]]]:
    """Return documents with titles that leave room for a text, and the passages of each."""
    tokens, overlap, overhead = passages.max_tokens or 0, passages.overlap or 0, model.document_limits[0]
    room = tokens - overhead
    if room < _LEAST_ROOM:
        raise InvalidArgumentError(
            f"received passages of {tokens} tokens, of which special tokens and markers of this model take {overhead}; "
            f"expected at least {overhead + _LEAST_ROOM}."
        )
    rooms = []
    for i, (document, starts) in enumerate(
        zip(documents, model.token_starts([d.title for d in documents]), strict=True)
    ):
        taken = min(len(starts), room // 2)
        if taken < len(starts):  # a title of half a passage, or of more, is cut
            documents[i] = document._replace(title=document.title[: starts[taken]].rstrip())
        rooms.append(room - taken)
    texts = [document.text for document in documents]
    return documents, cut_texts(texts, rooms, overlap, model.token_starts)
