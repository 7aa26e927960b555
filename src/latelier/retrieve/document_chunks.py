"""Group the documents that users give to a retriever into chunks with ids.

Each chunk is stored in one transaction, so memory stays bounded, and an interrupted call keeps the finished chunks. Ids
are checked before the texts are encoded, which takes a thousand times longer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

from latelier.errors import DuplicateIdError, InvalidArgumentError
from latelier.indexes import Id
from latelier.retrieve.documents import InputDocument, parse_documents
from latelier.retrieve.row_ids import next_number
from latelier.retrieve.stored_documents import StoredDocuments
from latelier.utils import check_count
from latelier.utils.checks import short

__all__ = ["DocumentChunk", "OnExisting", "document_chunks"]

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

    Parameters
    ----------
    documents
        As in `parse_documents`.
    stored
        The documents of the index that will store them.
    size
        Documents per chunk; there are fewer if their texts take more than 64 MB.
    on_existing
        For an id that is in the index: raise an error, replace the stored document, or skip the new one.
    progress
        A progress bar, updated by the number of documents that are skipped.

    Yields
    ------
    DocumentChunk
        Up to `size` documents; chunks of which all documents are skipped are left out.

    Raises
    ------
    InvalidArgumentError
        If a document is invalid; the message names its position.
    DuplicateIdError
        If an id is given twice, in one chunk or in two, or is in the index already.
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
