"""`Limits`: how much a server takes from one request, and how much waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from latelier.serve.errors import TooLargeError
from latelier.utils.checks import check_count

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """What a server accepts.

    Parameters
    ----------
    body_bytes
        Size of the body of a request.
    batch
        Number of queries, documents or ids in a request.
    characters
        Length of one text.
    hits
        Number of documents per query, and of those that a hybrid or reranking search compares if its `depth` is given.
    waiting_queries, waiting_writes
        How many queries, and how many other requests of each kind, wait for their turn; further ones are answered with
        429. Look-ups, which are quick, count as queries do. The other kinds are writes, rankings of documents that are
        in no index, and questions such as why a document is not found.
    seconds
        How long a request may take, its body included; then it is answered with 503, or with 408 if its body has not
        arrived. A write that has begun is still finished.

    Examples
    --------
    >>> Limits(batch=64).batch
    64
    """

    body_bytes: int = 16 << 20
    batch: int = 512
    characters: int = 200_000
    hits: int = 1000
    waiting_queries: int = 2048
    waiting_writes: int = 64
    seconds: int = 60

    def __post_init__(self) -> None:
        for field in fields(self):
            check_count(field.name, getattr(self, field.name))

    def check_batch(self, count: int) -> None:
        """Raise `TooLargeError` for a request with too many queries, documents or ids."""
        if count > self.batch:
            raise TooLargeError(f"received {count:,} at once; this server takes at most {self.batch:,}: send less.")

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise `TooLargeError` for a text that is too long."""
        longest = max(map(len, texts), default=0)
        if longest > self.characters:
            raise TooLargeError(
                f"received a text of {longest:,} characters; this server takes at most {self.characters:,}."
            )

    def check_hits(self, k: int, depth: int | None = None) -> None:
        """Raise `TooLargeError` for too many documents per query."""
        if k > self.hits:
            raise TooLargeError(f"received k={k:,}; this server returns at most {self.hits:,} documents per query.")
        if depth is not None and depth > self.hits:
            raise TooLargeError(f"received depth={depth:,}; this server compares at most {self.hits:,} documents.")
