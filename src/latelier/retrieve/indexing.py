"""Documents to transactions: chunks, ids, encoding ahead.

While workers encode, later documents are read before earlier ones are stored. Their ids must be seen as those of the
index: for the numbers of documents without an id, and for ids that equal such a number.

Documents without an id get numbers before they are encoded. Until they are stored, which takes seconds, other threads
and processes may have stored documents under the same numbers.

Each chunk is stored in one transaction, so memory stays bounded, and an interrupted call keeps the finished chunks. Ids
are checked before the texts are encoded, which takes a thousand times longer.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from latelier.arrays import DTYPES
from latelier.embeddings import TokenEmbeddings
from latelier.errors import DuplicateIdError, InvalidArgumentError
from latelier.indexes import Id, Index
from latelier.indexes.store.rows import encode_metadata
from latelier.indexes.stored import StoredIndex
from latelier.indexes.values import duplicate_ids
from latelier.retrieve.documents import InputDocument, parse_documents
from latelier.retrieve.model import QueryModel
from latelier.retrieve.passages import (
    DocumentSettings,
    PassageId,
    PassageRange,
    Passages,
    StoredDocuments,
    cut_texts,
    decode_passage_id,
    encode_passage_id,
    passage_prefix,
)
from latelier.utils import check_choice, check_count
from latelier.utils.checks import short
from latelier.utils.misc import progress_bar

if TYPE_CHECKING:
    from latelier.retrieve.workers import EncodingWorkers

__all__ = [
    "DocumentChunk",
    "Filling",
    "OnExisting",
    "PendingDocuments",
    "RowIds",
    "document_chunks",
    "encoding_sizes",
    "next_number",
]


class PendingDocuments(StoredDocuments):
    """Stored documents, and those between `begin` and `end`.

    `index`, `has_passages`: as for `StoredDocuments`.

    Examples
    --------
    >>> from latelier import indexes
    >>> documents = PendingDocuments(indexes.Flat())
    >>> documents.begin(["a", 7])
    >>> "a" in documents, documents.ids()
    (True, ['a', 7])
    >>> documents.end(["a", 7])
    >>> "a" in documents, documents.ids()
    (False, [])
    """

    def __init__(self, index: Index, has_passages: bool | None = None) -> None:
        super().__init__(index, has_passages)
        self._pending: Counter[Id] = Counter()

    def begin(self, ids: Iterable[Id]) -> None:
        """Count documents as stored from now on."""
        self._pending.update(ids)

    def end(self, ids: Iterable[Id]) -> None:
        """Stop counting documents, because they are stored."""
        self._pending -= Counter(ids)

    def is_pending(self, id: Id) -> bool:
        """Whether a document is between `begin` and `end`."""
        return id in self._pending

    def __contains__(self, id: Id | None) -> bool:
        return (id is not None and self.is_pending(id)) or super().__contains__(id)

    def ids(self) -> list[Id]:
        """Return the ids of all stored documents in the order of insertion, then those of the others."""
        stored = super().ids()
        if not self._pending:
            return stored
        known = set(stored)
        return [*stored, *(id for id in self._pending if id not in known)]


class RowIds:
    """The ids of new documents, or of their passages, as `latelier.indexes.Index.add` takes them.

    An index reads the ids of a write after it has become the only writer. Numbers that are in the index by then are
    replaced by those after its largest one, so nothing has to be encoded again. `numbers`: those that documents without
    an id got, ascending; `stored`: the documents of the index, without those that are not stored yet; raises
    `DuplicateIdError` while it is read, if a document that is stored as passages is in the index by now: the ids of its
    new passages may differ from those of the old ones, so the index itself would take both.

    Examples
    --------
    >>> from latelier import indexes
    >>> index = indexes.Flat()
    >>> ids = RowIds([0, "a", 1], [0, "a", 1], [0, 1], StoredDocuments(index))
    >>> list(ids)
    [0, 'a', 1]
    >>> index.add([1], [[[1.0, 0.0]]])
    >>> list(ids)
    [2, 'a', 3]
    """

    def __init__(
        self, ids: Sequence[Id], documents: Sequence[Id], numbers: Iterable[Id], stored: StoredDocuments
    ) -> None:
        self._ids, self._documents, self._numbers, self._stored = ids, documents, dict.fromkeys(numbers), stored

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Id]:
        moved = self._moved()  # when the first id is read, not before
        for id in self._ids:
            passage = decode_passage_id(id) if moved and self._stored.has_passages else None
            if passage is None:
                yield moved.get(id, id)
            else:
                yield encode_passage_id(passage._replace(document=moved.get(passage.document, passage.document)))

    def _moved(self) -> dict[Id, Id]:
        """Return the new number of each number, if one of them is in the index."""
        # The index itself finds the ids of whole documents.
        checked = self._documents if self._stored.has_passages else self._numbers
        taken = [id for id in checked if id in self._stored]
        given = [id for id in taken if id not in self._numbers]
        if given:
            raise duplicate_ids(given, "in the index already")
        if not taken:
            return {}
        others = [id for id in self._documents if id not in self._numbers]
        first = next_number(itertools.chain(self._stored.ids(), others))
        return dict(zip(self._numbers, itertools.count(first), strict=False))


def next_number(ids: Iterable[Id]) -> int:
    """Return the integer after the largest one among ids; 0 if there is none.

    Examples
    --------
    >>> next_number([3, "a", 7]), next_number(["a"])
    (8, 0)
    """
    return 1 + max((id for id in ids if isinstance(id, int)), default=-1)


# What to do with a document if its id is in the index.
OnExisting: TypeAlias = Literal["raise", "replace", "skip"]

# Characters of the texts of a chunk.
_MOST_CHARACTERS = 1 << 26


class DocumentChunk(NamedTuple):
    """The documents of one transaction; the id of one without an id is a number, and can change until it is stored."""

    ids: list[Id]
    documents: list[InputDocument]


def document_chunks(
    documents: Iterable[Any], stored: StoredDocuments, size: int, *, on_existing: OnExisting, progress: Any
) -> Iterator[DocumentChunk]:
    """Parse documents and yield them in chunks, with ids that the index accepts.

    `documents`: as in `parse_documents`. `size`: documents per chunk; there are fewer if their texts take more than 64
    MB. `on_existing`: for an id that is in the index: raise an error, replace the stored document, or skip the new one.
    `progress`: a progress bar, updated by the number of documents that are skipped. Yields: up to `size` documents;
    chunks of which all documents are skipped are left out. Raises `DuplicateIdError` if an id is given twice, in one
    chunk or in two, or is in the index already.
    """
    check_count("chunk_size", size)
    parsed = enumerate(parse_documents(documents))
    # The ids of all chunks before, so that an error does not depend on the distance between two documents. A text takes
    # about 100 bytes, a thousandth of the vectors of its document.
    earlier: set[Id] = set()
    while given := _take(parsed, size):
        _check_given_once(given, earlier)
        chunk = given if on_existing != "skip" else _not_in(stored, given)
        progress.update(len(given) - len(chunk))
        if chunk:
            yield DocumentChunk(_chunk_ids(chunk, stored, on_existing), [document for _, document in chunk])


def _take(parsed: Iterator[tuple[int, InputDocument]], size: int) -> list[tuple[int, InputDocument]]:
    """Return the next documents: `size` of them, or fewer if they are long."""
    taken: list[tuple[int, InputDocument]] = []
    characters = 0
    for position, document in itertools.islice(parsed, size):
        taken.append((position, document))
        characters += len(document.text)
        if characters > _MOST_CHARACTERS:
            break
    return taken


def _check_given_once(given: list[tuple[int, InputDocument]], earlier: set[Id]) -> None:
    """Check that no id is given twice, in a chunk or in those before; add the ids of the chunk to the earlier ones."""
    positions: dict[Id, int] = {}
    for position, document in given:
        if (id_ := document.id) is None:
            continue
        if id_ in positions or id_ in earlier:
            other = f"documents[{positions[id_]}]" if id_ in positions else "an earlier document of this input"
            raise DuplicateIdError(
                f"documents[{position}]: id {short(id_)} is given twice; {other} has it too. Give each id once."
            )
        positions[id_] = position
    earlier.update(positions)


def _not_in(stored: StoredDocuments, given: list[tuple[int, InputDocument]]) -> list[tuple[int, InputDocument]]:
    """Return the documents that are not in the index."""
    for position, document in given:
        if document.id is None:
            raise InvalidArgumentError(
                f"documents[{position}] has no id, so skip_existing (--resume) cannot tell whether it is in the index; "
                "give (id, text) pairs or dicts."
            )
    return [(position, document) for position, document in given if document.id not in stored]


def _chunk_ids(chunk: list[tuple[int, InputDocument]], stored: StoredDocuments, on_existing: OnExisting) -> list[Id]:
    """Return the ids of a chunk; documents without an id get the integers after the largest one in the index."""
    numbers: Iterator[int] | None = None
    positions: dict[Id, int] = {}
    for position, document in chunk:
        id_ = document.id
        if id_ is None:
            if on_existing == "replace":
                raise InvalidArgumentError(
                    f"documents[{position}]: update needs an id; give (id, text) pairs or dicts."
                )
            numbers = numbers or itertools.count(next_number(stored.ids()))
            id_ = next(numbers)
        if id_ in positions:  # one of the two is a number that a document without an id got
            raise DuplicateIdError(
                f"documents[{position}]: id {short(id_)} is given twice; documents[{positions[id_]}] has it too. Give "
                "all documents ids, or none."
            )
        if on_existing == "raise" and document.id is not None and id_ in stored:
            raise DuplicateIdError(
                f"documents[{position}]: id {short(id_)} is in the index already; update(...), or --update on the "
                "command line, replaces documents; skip_existing=True, or --resume, keeps the stored ones."
            )
        positions[id_] = position
    return list(positions)


# Shares of the index's working memory: the vectors of the documents of a transaction, which the index packs and encodes
# while they are held; and the activations of a batch.
_VECTORS_SHARE, _BATCH_SHARE = 4, 2
# Assumed where a model does not say its sizes: those of BERT base.
_HIDDEN, _HEADS, _LENGTH = 768, 12, 512
_FLOAT_BYTES = 4


def encoding_sizes(index: Index, model: QueryModel, batch_size: int, chunk_size: int) -> tuple[int, int]:
    """Return the number of texts in a batch and in a transaction, lowered to the memory budget of the index.

    A text of maximum length, with L tokens, takes about ``4 * L * (8 * hidden + 2 * intermediate + heads * L)`` bytes
    while one layer computes, and ``4 * L * dim`` bytes as vectors. At least one text is encoded, whatever the budget.
    `index`: the index; without a memory budget, nothing is lowered.
    """
    if not isinstance(index, StoredIndex) or index.memory.budget is None:
        return batch_size, chunk_size
    working = index.memory.working
    length = model.document_limits[1] or _LENGTH
    hidden, intermediate, heads = _layer_sizes(model)
    activations = _FLOAT_BYTES * length * (8 * hidden + 2 * intermediate + heads * length)
    vectors = _FLOAT_BYTES * length * model.dim
    batch_size = min(batch_size, max(1, working // _BATCH_SHARE // activations))
    return batch_size, min(chunk_size, max(1, working // _VECTORS_SHARE // vectors))


def _layer_sizes(model: QueryModel) -> tuple[int, int, int]:
    """Return the hidden size, the intermediate size and the number of heads of a model's layers."""
    encoder: Any = getattr(model.loaded[0], "model", None) if model.can_load else None
    config: Any = getattr(encoder, "config", None)
    hidden = getattr(config, "hidden_size", _HIDDEN)
    return hidden, getattr(config, "intermediate_size", 4 * hidden), getattr(config, "num_attention_heads", _HEADS)


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

    `on_existing`: what to do with a document if its id is in the index: raise an error, replace it, or skip the new
    one. `batch_size`: texts of maximum length per batch. `chunk_size`: documents, or passages, per transaction. A
    document with more passages than that is one transaction. `passages`, `pool_factor`, `precision`: as the user gives
    them, see `Retriever.add`. `workers`: processes that encode, or their number; None: this process does.
    `skip_unchanged`: whether documents that are stored with the same text and metadata are left as they are.
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

        `documents`: as in `latelier.retrieve.documents.parse_documents`; raises `DuplicateIdError` if an id is given
        twice, or is in the index already and `on_existing` is ``"raise"``.
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
        from latelier.retrieve.workers import open_workers  # with Ray's, only if workers are asked for

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
    """A progress bar of documents, updated by the number of rows that are done."""

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
