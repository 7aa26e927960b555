"""`Views`: gives each read the commit to see, which is the latest one or the one that its thread holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from latelier.indexes.catalog import forks
from latelier.indexes.catalog.connection import Connection
from latelier.indexes.catalog.pool import ConnectionPool
from latelier.indexes.catalog.settings import read_setting
from latelier.indexes.storage.snapshot import Snapshot, load_snapshot
from latelier.indexes.storage.store import SegmentStore

__all__ = ["View", "Views"]

T = TypeVar("T")


class View(NamedTuple):
    """One commit: a connection in a reading transaction, and the snapshot of the same commit."""

    connection: Connection
    snapshot: Snapshot


class Views:
    """Opens views of an index.

    Parameters
    ----------
    pool
        Connections to the catalog.
    store
        The segments.
    """

    def __init__(self, pool: ConnectionPool, store: SegmentStore) -> None:
        self._pool, self._store = pool, store
        self._latest: Snapshot | None = None
        self._loading = forks.Lock()
        self._by_thread = threading.local()

    @property
    def held(self) -> View | None:
        """The view that this thread holds; ``None`` if it holds none."""
        return getattr(self._by_thread, "view", None)

    @contextmanager
    def open(self) -> Iterator[View]:
        """Yield the view that this thread holds, or else a view of the latest commit."""
        held = self.held
        while held is None:
            with self._pool.reading() as connection:
                with self._loading.current:
                    snapshot = self._latest = load_snapshot(connection, self._store, self._latest)
                # A segment may be missing because a newer commit has merged it while it was being opened.
                if not snapshot.damaged or snapshot.generation == self._latest_generation():
                    yield View(connection, snapshot)
                    return
        yield held

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Within the ``with`` block, let all reads of this thread see one commit."""
        if self.held is not None:
            yield
            return
        mine = self._by_thread.__dict__  # belongs to the thread that begins the block, even if another one ends it
        with self.open() as view:
            mine["view"] = view
            try:
                yield
            finally:
                del mine["view"]

    def ask(self, question: Callable[..., T], *arguments: Any) -> T:
        """Return ``question(connection, *arguments)`` for a connection in a reading transaction; open no snapshot."""
        if self.held is not None:
            return question(self.held.connection, *arguments)
        with self._pool.reading() as connection:
            return question(connection, *arguments)

    def close(self) -> None:
        """Forget the latest snapshot."""
        self._latest = None

    def _latest_generation(self) -> int:
        with self._pool.reading() as connection:
            return int(read_setting(connection, "generation"))
