"""What a server accepts, over REST and from agents: sizes, lengths, and the names of indexes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.utils.checks import check_count, short


class TooLargeError(LatelierError):
    """The request holds more than the server's limits allow."""

    status = 413


@dataclass(frozen=True)
class Limits:
    """What a server accepts.

    Parameters
    ----------
    body_bytes
        Size of the body of a request.
    batch
        Number of queries, documents or ids in a request, 100,000 at most.
    characters
        Length of one text.
    hits
        Number of documents per query, and of those that a hybrid or reranking search compares if its `depth` is given.
    waiting_queries, waiting_writes
        How many queries and other reads of an index, and how many of its writes, wait for their turn; further ones are
        answered with 429.
    seconds
        How long a request may take, its head and its body included; then it is answered with 503, or with 408 if its
        body has not arrived, or its connection is closed if its head has not. A write that has begun is still finished.

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

    def check(self, *, batch: int = 0, texts: Sequence[str] = (), k: int = 0, depth: int | None = None) -> None:
        """Raise `TooLargeError` for too many queries, documents or ids, a text that is too long, or too many hits."""
        longest = max(map(len, texts), default=0)
        for what, size, most in (
            (f"{batch:,} queries, documents or ids", batch, self.batch),
            (f"a text of {longest:,} characters", longest, self.characters),
            (f"k={k:,}", k, self.hits),
            (f"depth={depth or 0:,}", depth or 0, self.hits),
        ):
            if size > most:
                raise TooLargeError(f"received {what}; this server takes at most {most:,}.")


_NAME = re.compile(r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?")
# Names that files cannot have on Windows, whatever their ending.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def check_name(name: str) -> None:
    """Check the name that an index gets in addresses, and that its folder gets on any system."""
    expected = "expected up to 100 letters, digits, '.', '_' and '-', with no '.' at an end"
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"received {short(name)} as the name of an index; {expected}.", advice="name-index")
    if _RESERVED.fullmatch(name):
        raise InvalidArgumentError(
            f"received {short(name)} as the name of an index, which Windows reserves for a device.",
            advice="name-index",
        )
