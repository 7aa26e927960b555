"""`Replica`: one copy of a shard, in an actor of Ray, which is opened again after its process has died."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from latelier.errors import LatelierError, StorageError
from latelier.indexes.sharded.shard import Shard, ShardOptions
from latelier.indexes.store.connections import closed_error
from latelier.utils.ray_session import RaySession, require_ray

__all__ = ["Replica", "ReplicaDownError", "ShardProcess"]

# Reads that a process answers at the same time; those of one commit wait for each other.
_READS = 32
# How long to wait until a process that has died is running again, and between two attempts.
_RESTART_SECONDS, _PAUSE_SECONDS = 120.0, 0.1


class ReplicaDownError(StorageError):
    """The process of a replica has died since it was called, or since the commit that it was asked about was held."""


class ShardProcess:
    """The actor: an open shard. After Ray has started it again, no shard is open."""

    def __init__(self) -> None:
        self._shard: Shard | None = None

    def open(self, options: ShardOptions) -> int:
        """Open a shard, in place of another one, if any; return the number of the process."""
        self.close()
        self._shard = Shard(options)
        return os.getpid()

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Return the result of a method of the shard."""
        if self._shard is None:
            raise ReplicaDownError("the process of this shard was started again.")
        return getattr(self._shard, method)(*arguments, **options)

    def release(self, commit: str) -> None:
        """Give up a commit, if it is held."""
        if self._shard is not None:
            self._shard.release(commit)

    def read(self, commit: str, method: str, *arguments: Any) -> Any:
        """Return the result of `Shard.read`, if the commit is held."""
        if self._shard is None or not self._shard.holds(commit):
            raise ReplicaDownError("the process of this shard was started again.")
        return self._shard.read(commit, method, *arguments)

    def close(self, *, delete: bool = False) -> None:
        """Close the shard; with `delete`, delete its folder too."""
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.close()
            if delete:
                shard.delete()


class Replica:
    """One copy of a shard."""

    def __init__(self, options: ShardOptions, resources: dict[str, float]) -> None:
        self.options = options
        self._opening = threading.Lock()
        self._opened = 0
        self._is_stopped = False
        self._session = RaySession("A sharded index")
        self._actor = start_process(resources)
        self._started = self._begin("open", "write", options)

    def wait_until_open(self) -> None:
        """Wait until the process has opened the shard; after that it is never made, only opened."""
        try:
            self.result(self._started)
        except ReplicaDownError:
            self.reopen(self._opened)
        self.options = self.options._replace(create=False)

    @property
    def opened(self) -> int:
        """How often the shard was opened again, to be given to `reopen`."""
        return self._opened

    def write(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Begin a call of a method of `Shard`, after those that were begun before; `result` returns its result."""
        return self._begin("call", "write", method, *arguments, **options)

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Begin a call of a method of `Shard` that waits for no other one."""
        return self._begin("call", "read", method, *arguments, **options)

    def read(self, commit: str, method: str, *arguments: Any) -> Any:
        """Begin a read of a commit that `Shard.pin` holds."""
        return self._begin("read", "read", commit, method, *arguments)

    def release(self, commit: str) -> None:
        """Let the process give up a commit; this waits for nothing."""
        with suppress(StorageError):  # there is no process any more
            self._begin("release", "read", commit)

    def result(self, reference: Any) -> Any:
        """Wait for a call that was begun, and return its result, or raise its error.

        Raises `ReplicaDownError` if the process has died; raises `InvalidArgumentError` if it has not died, but another
        thread has closed the index.
        """
        self._session.check()
        try:
            return fetch(self._session.ray, reference)
        except ReplicaDownError:
            self._check_open()
            raise

    def reopen(self, opened: int) -> None:
        """Wait until Ray has started the process again, and open the shard.

        `opened`: the value of the attribute before the call that has failed: another thread may have opened it since;
        raises `StorageError` if the process does not run again in time.
        """
        with self._opening:
            if self._opened != opened:
                return
            deadline = time.monotonic() + _RESTART_SECONDS
            while True:
                try:
                    self.result(self._begin("open", "write", self.options))
                    break
                except ReplicaDownError:
                    if time.monotonic() > deadline:
                        raise StorageError(
                            f"the process of the shard in {self.options.folder} has died and was not started again "
                            f"within {_RESTART_SECONDS:g} seconds. Nothing is lost; see that its node is running, and "
                            "try again."
                        ) from None
                    time.sleep(_PAUSE_SECONDS)
            self._opened += 1

    def persist(self, begin: Callable[[], Any]) -> Any:
        """Begin a call that may be repeated and return its result; if the process dies, open it again and repeat."""
        while True:
            opened = self._opened
            try:
                return self.result(begin())
            except ReplicaDownError:
                self.reopen(opened)

    def stop(self, *, delete: bool = False) -> None:
        """Close the shard and end its process; with `delete`, delete the folder of the shard too."""
        self._is_stopped = True
        with suppress(LatelierError):  # it has died, or is no longer ours
            fetch(self._session.ray, self._begin("close", "write", delete=delete))
        with suppress(StorageError):
            self._session.check()
            stop_process(self._actor)

    def _check_open(self) -> None:
        if self._is_stopped:
            raise closed_error(Path(self.options.folder).parents[2])

    def _begin(self, method: str, group: str, *arguments: Any, **options: Any) -> Any:
        """Begin a call of a method of `ShardProcess`."""
        self._session.check()
        return getattr(self._actor, method).options(concurrency_group=group).remote(*arguments, **options)


def start_process(resources: dict[str, float]) -> Any:
    """Start a process without a shard, and return its actor."""
    # It asks for no processor: shards are idle between searches, and would block those that encode documents.
    groups = {"read": _READS, "write": 1}
    make = require_ray("A sharded index").remote(
        num_cpus=0, resources=resources, max_restarts=-1, concurrency_groups=groups
    )
    return make(ShardProcess).remote()


def stop_process(actor: Any) -> None:
    """End a process."""
    require_ray("A sharded index").kill(actor)


def fetch(ray: Any, reference: Any) -> Any:
    """Return the result of a call, or raise its error as the shard raised it."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except _death_errors(ray) as error:
        raise ReplicaDownError(f"the process of a shard has died: {str(error)[:200]}") from None


def _death_errors(ray: Any) -> tuple[type[Exception], ...]:
    """Return the errors of calls of a process that has died."""
    errors = ray.exceptions
    return errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError, errors.NodeDiedError
