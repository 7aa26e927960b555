"""In which shard a document is: a stable hash of its id, so that a duplicate is found in one shard."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from latelier.indexes.results import Id

__all__ = ["positions_by_shard", "shard_of"]

_HASH_BYTES = 8


def shard_of(id: Id, shards: int) -> int:
    """Return the shard of an id: its BLAKE2b hash modulo the number of shards; 1 and "1" are two ids."""
    spelled = f"{'s' if isinstance(id, str) else 'i'}{id}".encode()
    return int.from_bytes(hashlib.blake2b(spelled, digest_size=_HASH_BYTES).digest(), "big") % shards


def positions_by_shard(ids: Iterable[Id], shards: int) -> dict[int, list[int]]:
    """Return the positions of ids by shard, ascending; shards without an id are left out.

    Examples
    --------
    >>> positions_by_shard(["a", "b", 1], 1)
    {0: [0, 1, 2]}
    """
    found: dict[int, list[int]] = {}
    for position, id in enumerate(ids):
        found.setdefault(shard_of(id, shards), []).append(position)
    return found
