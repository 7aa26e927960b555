"""`Replicas`: the processes of all shards of an open index, and calls that go to each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from latelier.errors import LatelierError
from latelier.indexes.sharded.commit_record import CommitRecord
from latelier.indexes.sharded.ray_nodes import node_resources, threads_of_node
from latelier.indexes.sharded.replica import Replica
from latelier.indexes.sharded.shard import ShardOptions
from latelier.utils.ray_session import connect_to_ray

__all__ = ["Replicas", "persist", "shard_folder", "wait_for_all"]

T = TypeVar("T")

# The folder of all shards, within that of the index.
_SHARDS = "shards"


class Replicas:
    """The processes of all shards.

    `record`: a commit: how many shards and replicas there are, and where; `kind`, `options`: the kind of the shards,
    and the options of new ones, see `ShardOptions`.
    """

    def __init__(
        self,
        path: Path,
        record: CommitRecord,
        kind: str,
        options: Mapping[str, Any],
        *,
        nodes: Sequence[str] | None,
        read_only: bool,
        max_memory: int | None,
    ) -> None:
        ray = connect_to_ray("A sharded index")
        nodes = nodes or record.nodes
        places = {
            (shard, replica): None if nodes is None else nodes[(shard + replica) % len(nodes)]
            for shard in range(record.shards)
            for replica in range(record.replicas)
        }
        on_node = {node: list(places.values()).count(node) for node in set(places.values())}
        threads = {node: threads_of_node(ray, node, count) for node, count in on_node.items()}
        self.shards: list[list[Replica]] = []
        self._are_stopped = False
        try:
            for shard, version in enumerate(record.versions):
                self.shards.append([])
                for replica in range(record.replicas):
                    node = places[shard, replica]
                    folder = str(shard_folder(path, record.generation, shard, replica))
                    is_new = not version and not read_only
                    opening = ShardOptions(folder, kind, options, is_new, read_only, max_memory, threads[node])
                    self.shards[-1].append(Replica(opening, node_resources(ray, node)))
            for each in self:
                each.wait_until_open()
        except BaseException:
            self.stop()
            raise

    def __iter__(self) -> Any:
        return (replica for shard in self.shards for replica in shard)

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def of(self, shards: Iterable[int]) -> list[Replica]:
        """Return all replicas of some shards."""
        return [replica for shard in shards for replica in self.shards[shard]]

    def stop(self, *, delete: bool = False) -> None:
        """End all processes, if they were not ended before; with `delete`, delete the folders of the shards too."""
        if self._are_stopped:
            return
        self._are_stopped = True
        for replica in self:
            with suppress(LatelierError):
                replica.stop(delete=delete)


def persist(replicas: Sequence[Replica], begin: Callable[[Replica], Any]) -> list[Any]:
    """Call a method of several replicas at the same time, and return the results; see `Replica.persist`.

    Raises `LatelierError`: the first error of a call, after all of them have ended.
    """
    first: dict[int, Any] = {place: begin(replica) for place, replica in enumerate(replicas)}

    def next_call(place: int) -> Any:
        return first.pop(place, None) or begin(replicas[place])

    return wait_for_all([partial(replica.persist, partial(next_call, place)) for place, replica in enumerate(replicas)])


def wait_for_all(waits: Sequence[Callable[[], T]]) -> list[T]:
    """Call functions that wait for calls of shards, and return the results.

    All of them are called even if some raise errors, so that no shard is still busy with its call afterwards, and Ray
    does not print errors that nobody has seen; the first error is raised at the end.

    Examples
    --------
    >>> wait_for_all([lambda: 1, lambda: 2])
    [1, 2]
    """
    results, errors = [], []
    for wait in waits:
        try:
            results.append(wait())
        except LatelierError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


def shard_folder(path: Path, generation: int, shard: int, replica: int) -> Path:
    """Return the folder of a replica of a shard.

    Examples
    --------
    >>> shard_folder(Path("index"), 0, 3, 1).as_posix()
    'index/shards/0/3.1'
    """
    return path / _SHARDS / str(generation) / (f"{shard}.{replica}" if replica else str(shard))
