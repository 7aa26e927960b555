"""`CommitRecord`: what one commit of a sharded index consists of; it becomes visible with the catalog's commit.

The record names the last transaction that changed each shard, as a *version*: the number of the transaction, padded
with zeros, and a random name. Versions of one shard ascend as strings; a shard without a transaction has the version
``""``. A reader sees the commit if it reads each shard at exactly this version.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from latelier.errors import CorruptedIndexError
from latelier.indexes.store.checks import damaged

__all__ = ["MOST_SHARDS", "RECORD_SETTING", "CommitRecord"]

# The name of the record among the settings of the catalog.
RECORD_SETTING = "committed"
# More shards or replicas than this are damage of the catalog.
MOST_SHARDS = 4096
_VERSION = re.compile(r"(\d{12}-[0-9a-f]{16})?", re.ASCII)


@dataclass(frozen=True)
class CommitRecord:
    """One commit.

    `versions`: the version of each shard; their number is the number of shards. `nodes`: where the shards are, see
    `latelier.indexes.Sharded`; None: on the node of the caller. `transaction`: number of the last transaction. `epoch`:
    increased when shards have been reorganised, their documents being the same: readers then open them again.
    `generation`: number of the folder that holds the shards; increased when documents are divided anew.
    """

    versions: tuple[str, ...]
    replicas: int
    nodes: tuple[str, ...] | None = None
    transaction: int = 0
    next_number: int = 0
    epoch: int = 0
    generation: int = 0

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.versions)

    def new_version(self) -> str:
        """Return a version for the shards that the next transaction changes."""
        return f"{self.transaction + 1:012d}-{secrets.token_hex(8)}"

    def after(self, version: str, shards: Iterable[int], *, next_number: int) -> CommitRecord:
        """Return the record of the next transaction, which gives some shards a new version."""
        versions = list(self.versions)
        for shard in shards:
            versions[shard] = version
        return replace(self, versions=tuple(versions), transaction=self.transaction + 1, next_number=next_number)

    def reorganised(self) -> CommitRecord:
        """Return the record with the next epoch."""
        return replace(self, epoch=self.epoch + 1)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(self) | {"versions": list(self.versions), "nodes": self.nodes and list(self.nodes)}

    @classmethod
    def from_json(cls, value: Any) -> CommitRecord:
        """Return a record from JSON values, which are checked: they become paths and numbers of processes.

        Raises `CorruptedIndexError` if they are not those of a record.
        """
        if not isinstance(value, Mapping) or value.keys() != cls.__dataclass_fields__.keys():
            raise _damaged_record(value)
        versions, nodes = value["versions"], value["nodes"]
        texts = [*versions, *(nodes or ())] if isinstance(versions, list) and isinstance(nodes or [], list) else [None]
        counts = [value[name] for name in ("replicas", "transaction", "next_number", "epoch", "generation")]
        if not all(isinstance(text, str) for text in texts) or not all(type(n) is int and n >= 0 for n in counts):
            raise _damaged_record(value)
        if not all(_VERSION.fullmatch(version) for version in versions):
            raise _damaged_record(value)
        if not (1 <= len(versions) <= MOST_SHARDS and 1 <= value["replicas"] <= MOST_SHARDS):
            raise _damaged_record(value)
        return cls(**{**value, "versions": tuple(versions), "nodes": tuple(nodes) if nodes else None})


def _damaged_record(value: Any) -> CorruptedIndexError:
    return damaged(f"its commit record is {value!r:.200}")
