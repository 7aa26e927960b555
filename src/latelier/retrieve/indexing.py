"""How prepared documents are stored: divided into transactions, encoded, and committed."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from latelier.embeddings import TokenEmbeddings
from latelier.errors import DuplicateIdError
from latelier.indexes import Id, Index, Passage
from latelier.retrieve.encoders import reduced
from latelier.retrieve.late import Taken, taken_rows
from latelier.retrieve.passages import Passages
from latelier.retrieve.preparation import Chunk, OnExisting, PreparedDocument, compare, next_number, prepare
from latelier.retrieve.query_model import QueryModel

if TYPE_CHECKING:
    from latelier.reading.images import Picture
    from latelier.retrieve.workers import EncodingWorkers


def bounded_sizes(index: Index, model: QueryModel, batch_size: int, chunk_size: int) -> tuple[int, int]:
    """Lower the texts of a batch and of a transaction to the memory budget of the index, if it has one."""
    # Half of its working memory is for the activations of a batch: about 16 * hidden + heads * L numbers per token of a
    # text with L tokens, while one layer computes. A quarter is for the vectors of a transaction.
    working = index.working_memory
    if working is None:
        return batch_size, chunk_size
    length = model.limits("document")[1] or (1024 if model.reads_pictures else 512)
    hidden = model.hidden_size
    activations = 4 * length * (16 * hidden + hidden // 32 * length)
    batch_size = min(batch_size, max(1, working // 2 // activations))
    return batch_size, min(chunk_size, max(1, working // 4 // (4 * length * model.dim)))


class Pace:
    """Rows of a transaction, so many that one takes some seconds if it `adapts`, and what was counted so far."""

    def __init__(self, most: int, *, adapts: bool) -> None:
        self.most, self.rows, self._adapts = most, min(most, _FIRST_ROWS) if adapts else most, adapts
        self.new = self.changed = self.unchanged = 0
        self._begin = time.monotonic()

    def committed(self, rows: Rows) -> None:
        """Adapt the rows of the next transaction to the time that this one has taken."""
        seconds = time.monotonic() - self._begin
        self._begin = time.monotonic()
        if self._adapts and rows.size >= self.rows // 2:
            factor = min(max(_SECONDS / max(seconds, 0.01), 0.25), 4)
            self.rows = min(max(int(self.rows * factor), _LEAST_ROWS), self.most)


# Rows of the first transaction, and least and most: a model may encode ten passages a second, or ten thousand.
_FIRST_ROWS = 128
_LEAST_ROWS = 16
_SECONDS = 5.0


class Rows(NamedTuple):
    """What one transaction stores; `numbers` are those ids of documents that the user has not given.

    `inputs` are what the model reads: the texts of the rows, pictures in their place, or windows of which passages are
    `taken`, of which there is one for each row.
    """

    documents: list[Id]
    texts: list[str]
    metadata: list[dict[str, Any]]
    ranges: list[tuple[Passage, ...] | None]
    inputs: list[str | Picture]
    numbers: list[Id]
    taken: list[list[Taken]]

    @classmethod
    def none(cls) -> Rows:
        """Return a transaction without documents."""
        return cls([], [], [], [], [], [], [])

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.taken)

    def append(self, document: PreparedDocument) -> None:
        """Add a document."""
        first = len(self.inputs)
        if document.late is not None:
            self.taken.extend(document.late.after(first))
        else:
            self.taken.extend([[Taken(first + i, None)] for i in range(len(document.inputs))])
        self.inputs.extend(document.inputs)
        self.documents.append(document.id)
        self.texts.append(document.text)
        self.metadata.append(document.given.metadata)
        self.ranges.append(document.passages or None)
        if document.given.id is None:
            self.numbers.append(document.id)

    def unread(self, model: QueryModel) -> list[int]:
        """Return how many tokens the model does not read of those texts that it does not read whole."""
        texts = [each for each in self.inputs if isinstance(each, str)]
        return [tokens for tokens in model.unread(texts, "document") if tokens]


def divide(
    chunks: Iterable[Chunk],
    model: QueryModel,
    passages: Passages | None,
    pace: Pace,
    index: Index,
    bar: Any,
    *,
    skip_unchanged: bool,
    may_replace: Callable[[Id], bool] | None = None,
) -> Iterator[Rows]:
    """Prepare documents and yield transactions of the pace's rows; a document is never in two.

    `may_replace`: whether a stored document may be replaced by one with another content; None: each may.
    """
    for chunk in chunks:
        documents = prepare(chunk, passages, model)
        if skip_unchanged:
            documents = _changed(documents, compare(documents, index), pace, bar, may_replace)
        rows = Rows.none()
        for document in documents:
            if rows.size and rows.size + document.rows > pace.rows:
                yield rows
                rows = Rows.none()
            rows.append(document)
        if rows.size:
            yield rows


def _changed(
    documents: list[PreparedDocument],
    known: dict[Id, bool],
    pace: Pace,
    bar: Any,
    may_replace: Callable[[Id], bool] | None,
) -> list[PreparedDocument]:
    """Count documents, of which the `known` are the same or not; leave out those that are, or may not be replaced."""
    changed = []
    for document in documents:
        if document.id not in known:
            pace.new += 1
        elif known[document.id]:
            pace.unchanged += 1
            continue
        elif may_replace is not None and not may_replace(document.id):
            continue
        else:
            pace.changed += 1
        changed.append(document)
    bar.update(len(documents) - len(changed))
    return changed


class Encoding(NamedTuple):
    """How documents are encoded; `late`: passages are taken of the vectors of windows, and then pooled and rounded."""

    batch_size: int
    pool_factor: int
    precision: str | None
    late: bool

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `QueryModel.encode_documents`."""
        if self.late:
            return {"batch_size": self.batch_size}
        return {"batch_size": self.batch_size, "pool_factor": self.pool_factor, "precision": self.precision}

    def finish(self, rows: Rows, parts: Iterator[TokenEmbeddings], size: int) -> Any:
        """Return the vectors of a transaction, of which `size` inputs are in each part, or an iterator over them."""
        if self.late:
            return (reduced(each, self.pool_factor, self.precision) for each in taken_rows(parts, rows.taken))
        if len(rows.inputs) <= size:
            return next(parts)
        return parts  # encoded while they are stored


def encode(
    model: QueryModel, transactions: Iterable[Rows], size: int, bar: Any, encoding: Encoding
) -> Iterator[tuple[Rows, Any]]:
    """Yield each transaction with its vectors; those of a document of more than `size` inputs come in parts."""
    for rows in transactions:
        inputs = (rows.inputs[first : first + size] for first in range(0, len(rows.inputs), size))
        parts = (model.encode_documents(each, **encoding.options) for each in inputs)
        yield rows, encoding.finish(rows, parts, size)
        bar.update(len(rows.documents))


def encode_by_workers(
    workers: EncodingWorkers | int,
    model: QueryModel,
    transactions: Iterable[Rows],
    size: int,
    bar: Any,
    encoding: Encoding,
) -> Iterator[tuple[Rows, Any]]:
    """Yield each transaction with its vectors, while workers, or so many new ones, encode the next."""
    from latelier.retrieve.workers import open_workers  # with Ray's, only if workers are asked for

    waiting: deque[Rows] = deque()

    def inputs() -> Iterator[list[Any]]:
        for rows in transactions:
            waiting.append(rows)
            yield from (rows.inputs[first : first + size] for first in range(0, len(rows.inputs), size))

    with open_workers(workers, model) as opened, closing(opened.encode(inputs(), **encoding.options)) as encoded:
        for vectors in encoded:
            rows = waiting.popleft()
            remaining = -(-len(rows.inputs) // size) - 1
            yield rows, encoding.finish(rows, itertools.chain([vectors], itertools.islice(encoded, remaining)), size)
            bar.update(len(rows.documents))


def store(
    rows: Rows, vectors: TokenEmbeddings | Iterable[TokenEmbeddings], index: Index, on_existing: OnExisting
) -> None:
    """Store documents in one commit."""
    if on_existing in ("update", "synchronise"):
        index.update(rows.documents, vectors, rows.texts, rows.metadata, ranges=rows.ranges)
        return
    try:
        index.add(_ids(rows, index), vectors, rows.texts, rows.metadata, ranges=rows.ranges)
    except DuplicateIdError as error:
        raise DuplicateIdError(
            f"{error.fact} Another writer has stored documents with these ids since this call checked them.",
            advice="skip-stored",
        ) from error


def _ids(rows: Rows, index: Index) -> Iterator[Id]:
    """Yield the ids of new documents, read by the only writer: numbers that others have taken give way to new ones."""
    moved: dict[Id, Id] = {}
    if index.existing(rows.numbers):
        numbers = set(rows.numbers)
        given = [id for id in rows.documents if id not in numbers]
        moved = dict(zip(rows.numbers, itertools.count(next_number([*index.ids(), *given])), strict=False))
    for id in rows.documents:
        yield moved.get(id, id)
