"""Documents on their way into an index: read, numbered and encoded in chunks.

A chunk is what one transaction stores, so it bounds memory and says what an interrupted call has kept. Ids are checked
before their texts are encoded, which takes a thousand times longer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Literal, NamedTuple, TypeAlias

from latelier.embeddings import TokenEmbeddings
from latelier.errors import DuplicateIdError, InvalidArgumentError
from latelier.indexes import Id, Index
from latelier.models import ColBERT
from latelier.models.encoding import Job, packed_windows
from latelier.retrieve.documents import Document, read_documents
from latelier.utils import check_count
from latelier.utils.describing import short
from latelier.utils.progress import progress_bar

__all__ = ["Chunk", "Existing", "chunks", "encode"]

# What becomes of documents whose id is there already.
Existing: TypeAlias = Literal["refuse", "replace", "skip"]


class Chunk(NamedTuple):
    """Documents of one transaction, and the bar that counts them."""

    ids: list[Id]
    texts: list[str]
    metadata: list[dict[str, Any]]
    progress: Any


def chunks(
    documents: Iterable[Any], index: Index, size: int, *, existing: Existing, show_progress: bool
) -> Iterator[Chunk]:
    """Read documents in chunks, with ids that the index can take.

    Parameters
    ----------
    documents
        See `latelier.retrieve.documents.read_documents`.
    index
        Where they will go.
    size
        Documents per chunk.
    existing
        What becomes of ids that are there already: an error, replaced, or left as they are.
    show_progress
        Count documents on standard error.

    Raises
    ------
    InvalidArgumentError
        If a document is invalid; it is named by its position.
    DuplicateIdError
        If an id is given twice in a chunk, or is in the index already.
    """
    check_count("chunk_size", size)
    read = enumerate(read_documents(documents))
    total = len(documents) if isinstance(documents, Sized) else None
    with progress_bar(shown=show_progress, total=total, desc="Indexing", unit=" documents") as progress:
        while given := list(itertools.islice(read, size)):
            chunk = given if existing != "skip" else _missing(given, index)
            progress.update(len(given) - len(chunk))
            if chunk:
                ids = _ids(chunk, index, existing)
                yield Chunk(ids, [document.text for _, document in chunk], [d.metadata for _, d in chunk], progress)


def encode(model: ColBERT, texts: list[str], batch_size: int, progress: Any) -> TokenEmbeddings:
    """Return the token vectors of a chunk, in order; texts of similar length are encoded together."""
    job = Job("document", batch_size=batch_size, truncate_dim=model.truncate_dim)
    return TokenEmbeddings.concatenate(packed_windows(model, texts, job, bar=progress))


def _missing(given: list[tuple[int, Document]], index: Index) -> list[tuple[int, Document]]:
    """Return the documents that are not in the index."""
    for position, document in given:
        if document.id is None:
            raise InvalidArgumentError(
                f"documents[{position}] has no id, by which it could be known again; give (id, text) pairs or dicts."
            )
    return [(position, document) for position, document in given if document.id not in index]


def _ids(chunk: list[tuple[int, Document]], index: Index, existing: Existing) -> list[Id]:
    """Return the ids of a chunk, new ones for documents without."""
    numbers: Iterator[int] | None = None
    positions: dict[Id, int] = {}
    for position, document in chunk:
        id_ = document.id
        if id_ is None:
            if existing == "replace":
                raise InvalidArgumentError(
                    f"documents[{position}]: update needs an id; give (id, text) pairs or dicts."
                )
            numbers = numbers or itertools.count(_next_number(index))
            id_ = next(numbers)
        if id_ in positions:
            raise DuplicateIdError(
                f"documents[{position}]: id {short(id_)} is that of documents[{positions[id_]}] too."
            )
        if existing == "refuse" and id_ in index:
            raise DuplicateIdError(
                f"documents[{position}]: id {short(id_)} is in the index already; update(...), or --update on the "
                "command line, replaces documents; skip_existing=True, or --resume, leaves them as they are."
            )
        positions[id_] = position
    return list(positions)


def _next_number(index: Index) -> int:
    return 1 + max((id_ for id_ in index.ids() if isinstance(id_, int)), default=-1)
