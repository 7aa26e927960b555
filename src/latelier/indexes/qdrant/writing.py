"""Writes: documents are read and checked in full, then sent to Qdrant in requests of bounded size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from latelier.errors import EmbeddingsError, LatelierError
from latelier.indexes.catalog.values import duplicate_ids
from latelier.indexes.inputs import DocumentBatch, DocumentBatches
from latelier.indexes.qdrant.collection import QdrantCollection
from latelier.indexes.qdrant.keywords import average_length, count_words
from latelier.indexes.qdrant.points import Points, stored_part
from latelier.indexes.qdrant.spool import Spool
from latelier.indexes.results import Id

__all__ = ["write_documents"]

# A batch of documents in memory, in bytes.
_BATCH_BYTES = 64 << 20
# Qdrant stores multi-vectors of fewer numbers only (MAX_MULTIVECTOR_FLATTENED_LEN).
_MOST_NUMBERS = 1 << 20
# Texts of the first write that give the average length.
_SAMPLE = 10_000


def write_documents(
    points: Points,
    collection: QdrantCollection,
    given: tuple[Any, Any, Any, Any],
    *,
    replace: bool = False,
    prefixes: Sequence[str] = (),
    show_progress: bool = False,
) -> None:
    """Insert documents.

    Parameters
    ----------
    points, collection
        Where to.
    given
        The ids, embeddings, texts and metadata, as the user gave them.
    replace
        Replace documents that are in the index.
    prefixes
        Remove the documents that were in the index and whose ids begin with one of these.
    show_progress
        Show a progress bar while the documents are read.

    Raises
    ------
    DuplicateIdError
        If an id is given twice or, without `replace`, is in the index.
    EmbeddingsError, InvalidArgumentError
        If a document cannot be stored; nothing has been sent then.
    StorageError
        If Qdrant does not answer.
    """
    collection.read()  # others may have changed its dim or its tokenizer, or deleted it
    dtype = collection.configuration.dtype
    batches = DocumentBatches(*given, dtype=dtype, batch_bytes=_BATCH_BYTES, show_progress=show_progress)
    seen: set[Id] = set()
    with Spool() as spool:
        empty = points.count() == 0
        for batch in batches.read(None if empty else collection.dim, lambda part, _: {"vectors": part.vectors}):
            _check_ids(points, batch, seen, replace)
            _check_sizes(batch)
            spool.append(batch)
        replaced = {id for prefix in prefixes for id in points.ids(prefix)} - seen
        if spool.documents:
            _send(points, collection, spool)
        # The old documents go last: until then, searches find the old ones, the new ones, or both, but never neither.
        points.delete(replaced)


def _send(points: Points, collection: QdrantCollection, spool: Spool) -> None:
    stored = 0
    try:
        for batch in spool:
            if stored == 0:
                collection.create(batch.dim)
                sequence = points.last_sequence() + 1
                _set_average_length(collection, batch)
            collection.add_fields(dict.fromkeys(key for document in batch.documents for key in document.fields))
            for count in points.upsert(batch, sequence):
                stored += count
                sequence += count
    except LatelierError as error:
        if not stored:
            raise
        raise stored_part(error, stored, spool.documents) from error


def _check_ids(points: Points, batch: DocumentBatch, seen: set[Id], replace: bool) -> None:
    counts = Counter(document.id for document in batch.documents)
    twice = [id for id, count in counts.items() if count > 1 or id in seen]
    if twice:
        raise duplicate_ids(twice, "given twice in this call; give every document a different id")
    seen.update(counts)
    present = {} if replace else points.find(counts)
    if present:
        raise duplicate_ids(present, "in the index already; update() replaces documents")


def _check_sizes(batch: DocumentBatch) -> None:
    for document, length in zip(batch.documents, batch.lengths, strict=True):
        if length * batch.dim >= _MOST_NUMBERS:
            raise EmbeddingsError(
                f"document {document.id!r} has {length:,} tokens of dim {batch.dim}; Qdrant stores fewer than "
                f"{_MOST_NUMBERS:,} numbers per document. Cut it into passages, or pool its tokens."
            )


def _set_average_length(collection: QdrantCollection, batch: DocumentBatch) -> None:
    """Set the average length of texts that BM25 divides by, if it is not set yet and there are texts."""
    configuration = collection.configuration
    texts = [document.text for document in batch.documents[:_SAMPLE] if document.text is not None]
    if configuration.tokenizer is not None and configuration.average_length is None and texts:
        collection.write_configuration(average_length=average_length(count_words(texts, configuration.tokenizer)))
