"""`Generations`: the processes of the shards, by generation: each division of the documents has shards of its own.

Readers and writers take the processes of the generation of their commit. When the documents were divided anew, those of
an older generation end as soon as nobody uses them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.indexes.sharded.commit_record import CommitRecord
from latelier.indexes.sharded.replicas import Replicas
from latelier.indexes.store.connections import closed_error
from latelier.utils.ray_session import check_not_forked, is_forked

__all__ = ["Generations"]


class Generations:
    """The processes of all generations that are used."""

    def __init__(self, path: Path, start: Callable[[CommitRecord], Replicas]) -> None:
        self._path, self._start = path, start
        self._is_closed = False
        self._running: dict[int, Replicas] = {}
        self._users: dict[int, int] = {}
        self._lock, self._starting = threading.Lock(), threading.RLock()

    @property
    def latest(self) -> Replicas:
        """The processes of the latest generation that was started."""
        with self._lock:
            return self._running[max(self._running)]

    def take(self, record: CommitRecord) -> Replicas:
        """Return the processes of a commit's generation, started if necessary, until `give_back`.

        Raises `InvalidArgumentError` if the index was closed.
        """
        check_not_forked()  # a lock may have been held at the fork
        with self._starting:
            with self._lock:
                self._check_open()
                if record.generation in self._running:
                    self._users[record.generation] += 1
                    return self._running[record.generation]
            replicas = self._start(record)
            try:
                self._check_open()  # another thread may have closed it meanwhile
            except InvalidArgumentError:
                replicas.stop()
                raise
            self.add(record, replicas, users=1)
        return replicas

    def starting(self) -> AbstractContextManager[Any]:
        """Return a context in which no other thread starts processes; enter it after a transaction, as writers do."""
        return self._starting

    def add(self, record: CommitRecord, replicas: Replicas, *, users: int = 0) -> None:
        """Add processes that were started for a commit."""
        with self._lock:
            self._running[record.generation] = replicas
            self._users[record.generation] = users
        self._stop_unused()

    def give_back(self, record: CommitRecord) -> None:
        """End a use that `take` has begun."""
        with self._lock:
            if record.generation in self._users:  # otherwise the index was closed
                self._users[record.generation] -= 1
        self._stop_unused()

    @contextmanager
    def using(self, record: CommitRecord) -> Iterator[Replicas]:
        """Take the processes of a commit's generation within the ``with`` block."""
        replicas = self.take(record)
        try:
            yield replicas
        finally:
            self.give_back(record)

    def close(self) -> None:
        """End all processes, unless they are those of a parent process."""
        if is_forked():
            return
        with self._lock:
            self._is_closed = True
            running = dict(self._running)
            self._users.clear()
        for replicas in running.values():
            replicas.stop()

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed_error(self._path)

    def _stop_unused(self) -> None:
        with self._lock:
            latest = max(self._running)
            unused = [number for number in self._users if number != latest and not self._users[number]]
            for number in unused:
                del self._users[number]
            stopped = [self._running.pop(number) for number in unused]
        for replicas in stopped:
            replicas.stop()
