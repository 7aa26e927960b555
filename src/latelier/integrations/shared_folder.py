"""`SharedFolder`: the folder of an index, opened when it is needed and closed when no search uses it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from latelier.retrieve import Retriever

__all__ = ["SharedFolder"]


class SharedFolder:
    """A folder that a `Retriever` has filled, which several threads search. A copy opens it by itself.

    Parameters
    ----------
    path
        The folder.
    options
        Arguments of `Retriever.open`.
    """

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self._given = path, options
        self._changed = threading.Condition()
        self._retriever: Retriever | None = None
        self._running: Counter[Retriever] = Counter()

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedFolder, self._given

    @contextmanager
    def opened(self) -> Iterator[Retriever]:
        """Return the retriever, which stays open within the ``with`` block.

        Raises
        ------
        LatelierError
            As `Retriever.open` does.
        """
        with self._changed:
            if self._retriever is None:
                path, options = self._given
                self._retriever = Retriever.open(path, read_only=True, **options)
            retriever = self._retriever
            self._running[retriever] += 1
        try:
            yield retriever
        finally:
            with self._changed:
                self._running[retriever] -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Close the folder when the blocks that use it have ended; a block that begins meanwhile opens it again."""
        with self._changed:
            retriever, self._retriever = self._retriever, None
            if retriever is None:
                return
            try:
                self._changed.wait_for(lambda: not self._running[retriever])
            finally:
                del self._running[retriever]
                retriever.close()
