"""Documents that shards hand over to shards of another generation: as they are stored, so that no code changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from latelier.indexes.documents import DocumentBatch
from latelier.indexes.sharded.placement import positions_by_shard
from latelier.indexes.sharded.staging import StagedBatch
from latelier.indexes.store.rows import StoredDocument, StoredMetadata, encode_metadata
from latelier.indexes.store.segments import Arrays
from latelier.indexes.stored import StoredIndex
from latelier.utils.ragged import lengths_to_offsets, rows_of

__all__ = ["Sizes", "divide", "join_batches", "merge", "sizes_of"]


class Sizes(NamedTuple):
    """Documents of a commit: their numbers, ``(n,)`` int64 ascending, and their numbers of tokens, ``(n,)``."""

    numbers: np.ndarray
    lengths: np.ndarray


def sizes_of(index: StoredIndex, *, check: bool) -> Sizes:
    """Return the sizes of all documents of an index.

    `check`: compare all vectors with their checksums first; raises `CorruptedIndexError` if a segment is damaged.
    """
    snapshot = index.storage.snapshot()
    if check:
        index.storage.check_segments(snapshot)
    parts = snapshot.parts()
    numbers = [part.segment.numbers[part.positions] for part in parts]
    lengths = [part.lengths for part in parts]
    nothing = np.zeros(0, "int64")
    return Sizes(np.concatenate([nothing, *numbers]), np.concatenate([nothing, *lengths]))


def divide(index: StoredIndex, numbers: tuple[int, int], shards: int) -> dict[int, StagedBatch]:
    """Return those of some documents that an index has, by the shard in which they are if there are `shards` shards.

    `numbers`: the first number, and the one after the last.
    """
    snapshot = index.storage.snapshot()
    known = sizes_of(index, check=False).numbers
    chosen = known[(known >= numbers[0]) & (known < numbers[1])]
    if not len(chosen):
        return {}
    ids = snapshot.ids(chosen)
    documents = [
        StoredDocument(record.id, record.text, json, dict(fields))
        for record in index.storage.records(ids)
        for json, fields in [encode_metadata(StoredMetadata(record.metadata), record.id)]
    ]
    parts = snapshot.parts(chosen)
    whole = DocumentBatch(
        documents,
        np.concatenate([part.lengths for part in parts]),
        snapshot.dim or 0,
        {name: np.concatenate([part.rows(name) for part in parts]) for name in parts[0].segment.token_names},
    )
    by_shard = positions_by_shard(ids, shards)
    return {shard: _select(StagedBatch(whole, chosen), np.array(own)) for shard, own in by_shard.items()}


def merge(given: Sequence[StagedBatch]) -> StagedBatch:
    """Return the documents of several batches (at least one) in ascending order of their numbers."""
    whole = join_batches(given)
    return _select(whole, np.argsort(whole.numbers))


def join_batches(given: Sequence[StagedBatch]) -> StagedBatch:
    """Return the documents of several batches (at least one), one batch after the other."""
    batches = [each.batch for each in given]
    numbers = np.concatenate([each.numbers for each in given])
    arrays = {name: np.concatenate([batch.arrays[name] for batch in batches]) for name in batches[0].arrays}
    lengths = np.concatenate([batch.lengths for batch in batches])
    documents = [document for batch in batches for document in batch.documents]
    return StagedBatch(DocumentBatch(documents, lengths, batches[0].dim, arrays), numbers)


def _select(given: StagedBatch, positions: np.ndarray) -> StagedBatch:
    batch, offsets = given.batch, lengths_to_offsets(given.batch.lengths)
    rows = rows_of(offsets, positions)
    arrays: Arrays = {name: array[rows] for name, array in batch.arrays.items()}
    documents = [batch.documents[position] for position in positions]
    return StagedBatch(DocumentBatch(documents, batch.lengths[positions], batch.dim, arrays), given.numbers[positions])
