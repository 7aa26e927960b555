"""How prepared documents are stored: divided into transactions, encoded, and committed."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from latelier.embeddings import TokenEmbeddings
from latelier.errors import DuplicateIdError
from latelier.indexes import Index
from latelier.indexes.packing import GivenDocuments
from latelier.indexes.store.sources import Changes
from latelier.retrieve.encoders import reduced
from latelier.retrieve.late import Taken, taken_rows
from latelier.retrieve.passages import Passages
from latelier.retrieve.preparation import PreparedDocument, Write, prepare
from latelier.retrieve.query_model import QueryModel
from latelier.retrieve.write_options import WriteOptions
from latelier.utils.misc import Share

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
    """Rows of a transaction, so many that one takes some seconds if it `adapts`."""

    def __init__(self, most: int, *, adapts: bool) -> None:
        self.most, self.rows, self._adapts = most, min(most, _FIRST_ROWS) if adapts else most, adapts
        self._begin = time.monotonic()

    def committed(self, transaction: Transaction) -> None:
        """Adapt the rows of the next transaction to the time that this one has taken."""
        seconds = time.monotonic() - self._begin
        self._begin = time.monotonic()
        if self._adapts and transaction.rows >= self.rows // 2:
            factor = min(max(_SECONDS / max(seconds, 0.01), 0.25), 4)
            self.rows = min(max(int(self.rows * factor), _LEAST_ROWS), self.most)


# Rows of the first transaction, and least and most: a model may encode ten passages a second, or ten thousand.
_FIRST_ROWS = 128
_LEAST_ROWS = 16
_SECONDS = 5.0


class Transaction:
    """What one commit stores: documents, what the model reads of them, and of which of it their rows are taken."""

    def __init__(self) -> None:
        self.documents: list[PreparedDocument] = []
        self.inputs: list[str | Picture] = []
        self.taken: list[list[Taken]] = []
        self.rows = 0

    def append(self, document: PreparedDocument) -> None:
        """Add a document."""
        first = len(self.inputs)
        if document.late is not None:
            self.taken.extend(document.late.after(first))
        else:
            self.taken.extend([[Taken(first + i, None)] for i in range(len(document.inputs))])
        self.inputs.extend(document.inputs)
        self.documents.append(document)
        self.rows += document.rows

    @property
    def writes(self) -> list[Write]:
        """The documents as they were given."""
        return [document.write for document in self.documents]

    def unread(self, model: QueryModel) -> list[int]:
        """Return how many tokens the model does not read of those texts that it does not read whole."""
        texts = [each for each in self.inputs if isinstance(each, str)]
        return [tokens for tokens in model.unread(texts, "document") if tokens]


def divide(
    chunks: Iterable[list[Write]], model: QueryModel, passages: Passages | None, pace: Pace
) -> Iterator[Transaction]:
    """Prepare documents and yield transactions of the pace's rows; a document is never in two."""
    for chunk in chunks:
        transaction = Transaction()
        for document in prepare(chunk, passages, model):
            if transaction.rows and transaction.rows + document.rows > pace.rows:
                yield transaction
                transaction = Transaction()
            transaction.append(document)
        if transaction.rows:
            yield transaction


class Encoding:
    """How documents are encoded; late passages are taken of the vectors of windows, and then pooled and rounded."""

    def __init__(self, options: WriteOptions) -> None:
        self._late = isinstance(options.passages, Passages) and options.passages.late
        self._reduction: dict[str, Any] = {
            "pool_factor": options.pool_factor or 1,
            "precision": options.precision,
        }
        self.options: dict[str, Any] = {"batch_size": options.batch_size}  # of `QueryModel.encode_documents`
        if not self._late:
            self.options |= self._reduction

    def finish(self, transaction: Transaction, parts: Iterator[TokenEmbeddings], size: int) -> Any:
        """Return the vectors of a transaction, of which `size` inputs are in each part, or an iterator over them."""
        if self._late:
            return (reduced(each, **self._reduction) for each in taken_rows(parts, transaction.taken))
        if len(transaction.inputs) <= size:
            return next(parts)
        return parts  # encoded while they are stored


def encode(
    model: QueryModel, transactions: Iterable[Transaction], size: int, bar: Any, encoding: Encoding
) -> Iterator[tuple[Transaction, Any]]:
    """Yield each transaction with its vectors; those of a document of more than `size` inputs come in parts."""
    for transaction in transactions:
        inputs = (transaction.inputs[first : first + size] for first in range(0, len(transaction.inputs), size))
        share = Share(bar, len(transaction.documents), len(transaction.inputs))
        parts = (model.encode_documents(each, bar=share, **encoding.options) for each in inputs)
        yield transaction, encoding.finish(transaction, parts, size)
        share.finish()


def encode_by_workers(
    workers: EncodingWorkers | int,
    model: QueryModel,
    transactions: Iterable[Transaction],
    size: int,
    bar: Any,
    encoding: Encoding,
) -> Iterator[tuple[Transaction, Any]]:
    """Yield each transaction with its vectors, while workers, or so many new ones, encode the next."""
    from latelier.retrieve.workers import open_workers  # with Ray's, only if workers are asked for

    waiting: deque[Transaction] = deque()

    def inputs() -> Iterator[list[Any]]:
        for transaction in transactions:
            waiting.append(transaction)
            yield from (transaction.inputs[first : first + size] for first in range(0, len(transaction.inputs), size))

    with open_workers(workers, model) as opened, closing(opened.encode(inputs(), **encoding.options)) as encoded:
        for vectors in encoded:
            transaction = waiting.popleft()
            remaining = -(-len(transaction.inputs) // size) - 1
            yield (
                transaction,
                encoding.finish(transaction, itertools.chain([vectors], itertools.islice(encoded, remaining)), size),
            )
            bar.update(len(transaction.documents))


def store(
    transaction: Transaction,
    vectors: TokenEmbeddings | Iterable[TokenEmbeddings],
    index: Index,
    changes: Changes,
    *,
    replace: bool | None,
) -> list[int]:
    """Store documents in one commit; return the positions of those that were left out, see `Index.write`."""
    writes = transaction.writes
    given = GivenDocuments(
        [write.document.id for write in writes],
        vectors,
        [document.text for document in transaction.documents],
        [write.document.metadata for write in writes],
        [document.passages for document in transaction.documents],
        [write.seen for write in writes],
        [write.origin for write in writes],
    )
    try:
        return index.write(given, changes, replace=replace)
    except DuplicateIdError as error:
        raise DuplicateIdError(
            f"{error.fact} This call gives them twice, or another writer has stored them since it checked the ids.",
            advice="skip-stored",
        ) from error
