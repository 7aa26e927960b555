"""The connection of an index to Qdrant: a server, or its local mode in a folder or in memory; and its errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latelier.errors import (
    FilterTimeoutError,
    IndexFormatError,
    InvalidArgumentError,
    LatelierError,
    MissingExtraError,
    StorageError,
)
from latelier.utils.checks import describe

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

__all__ = ["QdrantConnection", "check_place"]

# Characters that Qdrant does not allow in the name of a collection.
_NOT_IN_NAMES = frozenset('<>:"/\\|?*\0\x1f')

_REFUSED = (401, 403)
_TIMED_OUT = (408, 504)
# What Qdrant's local mode writes into its folder.
_LOCAL_NAMES = frozenset({".lock", "meta.json", "collection"})


class QdrantConnection:
    """A client of Qdrant, used within ``with connection.use() as client``.

    Parameters
    ----------
    path
        Folder of the local mode; None for a server, or for the local mode in memory.
    url, api_key, prefer_grpc, timeout
        Those of a server; without a URL, the local mode is used.

    Raises
    ------
    IndexFormatError
        If the folder holds something else; it is left as it is.
    MissingExtraError
        If qdrant-client is not installed.
    StorageError
        If another process uses the folder.
    """

    def __init__(
        self, path: Path | None, *, url: str | None, api_key: str | None, prefer_grpc: bool, timeout: int
    ) -> None:
        try:
            from qdrant_client import QdrantClient
        except ImportError as error:
            raise MissingExtraError("indexes.Qdrant", "qdrant") from error
        self.is_local = url is None
        self.path = path
        self.place = url or ("memory" if path is None else str(path))
        self.closed = False
        if path is not None:
            _check_folder(path)
        # The local mode is Python lists without a lock of their own.
        self._lock = threading.RLock() if self.is_local else nullcontext()
        with self._translate():
            if url is not None:
                # The first request of an index checks the server, and its error is one of this library.
                options: dict[str, Any] = {"url": url, "api_key": api_key, "timeout": timeout}
                self._client = QdrantClient(**options, prefer_grpc=prefer_grpc, check_compatibility=False)
            elif path is not None:
                self._client = QdrantClient(path=str(path), force_disable_check_same_thread=True)
            else:
                self._client = QdrantClient(location=":memory:")

    @contextmanager
    def use(self, *, filter: str | None = None) -> Iterator[QdrantClient]:
        """Return a context with the client, whose errors become those of this library.

        Parameters
        ----------
        filter
            The filter of a search: a request that takes too long raises `FilterTimeoutError`, which names it.
        """
        self._check_open()
        with self._lock, self._translate(filter):
            yield self._client

    def _check_open(self) -> None:
        if self.closed:
            raise InvalidArgumentError(f"the index in {self.place} is closed; open it again with indexes.Qdrant().")

    def close(self) -> None:
        """Close the client; closing twice is allowed."""
        if not self.closed:
            self.closed = True
            with self._lock:
                self._client.close()

    @contextmanager
    def _translate(self, filter: str | None = None) -> Iterator[None]:
        """Turn errors of the client within a ``with`` block into errors of this library."""
        try:
            yield
        except (LatelierError, KeyboardInterrupt):
            raise
        except Exception as error:
            self._check_open()  # another thread may have closed it meanwhile
            raise self._explain(error, filter) from error

    def _explain(self, error: Exception, filter: str | None) -> Exception:
        status = getattr(error, "status_code", None)  # of an HTTP answer
        code = getattr(error, "code", lambda: None)()  # of a gRPC call
        name = getattr(code, "name", "")
        source = getattr(error, "source", error)  # what kept httpx from getting an answer
        reason = _first_line(source)
        if status in _REFUSED or name in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
            return StorageError(
                f"the Qdrant server at {self.place} refuses this access ({reason}); give an api_key that may read and "
                "write the collection; commands take it from the environment variable QDRANT_API_KEY."
            )
        if status in _TIMED_OUT or name == "DEADLINE_EXCEEDED" or "Timeout" in type(source).__name__:
            if filter is not None:
                return FilterTimeoutError(
                    f"a search with the filter {filter!r:.200} has not finished in time ({reason}); give it more time: "
                    "filter_timeout=60, or make a payload index: index_fields([...])."
                )
            return StorageError(f"Qdrant at {self.place} has not answered in time ({reason}); raise timeout=.")
        if status is None and name in ("", "UNAVAILABLE") and not self.is_local:
            return StorageError(
                f"no Qdrant server answers at {self.place} ({type(source).__name__}: {reason}); check the url and that "
                "the server runs, for example with: curl URL/readyz"
            )
        if "already accessed" in reason:
            return StorageError(
                f"the folder {self.place} is open already, in this process or in another one; Qdrant's local mode lets "
                "one open it at a time. Close it first, or use a server: url=..."
            )
        if status == 404 or name == "NOT_FOUND" or "not found" in reason:
            return IndexFormatError(
                f"Qdrant at {self.place} does not find the collection, or a part of it ({reason}); others may have "
                "deleted it. Open the index again to make a new one."
            )
        return StorageError(f"Qdrant at {self.place} reports an error: {type(error).__name__}: {reason}.")


def _check_folder(path: Path) -> None:
    """Raise an error for a file, and for a folder that neither is empty nor holds what the local mode writes."""
    if path.exists() and not path.is_dir():
        raise IndexFormatError(f"{path} is a file; Qdrant's local mode needs a folder.")
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    others = sorted(names - _LOCAL_NAMES)
    if others and "meta.json" not in names:
        raise IndexFormatError(
            f"{path} is not a folder of Qdrant's local mode: it holds {', '.join(others[:3])}. Choose a new or an "
            "empty folder."
        )


def _first_line(error: BaseException) -> str:
    """Return the reason that an error states, shortened."""
    content = getattr(error, "content", None)
    text = content.decode(errors="replace") if isinstance(content, bytes) else str(error)
    return " ".join(text.split())[:300] or type(error).__name__


def check_place(path: object, url: object, api_key: object, collection: object) -> None:
    """Raise an error if the place of an index is not clear."""
    if url is not None and path is not None:
        raise InvalidArgumentError(f"received path={path!r} and url={url!r}; give one: a folder, or a server.")
    if url is not None and not (isinstance(url, str) and url.startswith(("http://", "https://"))):
        raise InvalidArgumentError(f"received url={describe(url)}; expected one such as 'http://localhost:6333'.")
    if api_key is not None and not isinstance(api_key, str):  # its value is a secret
        raise InvalidArgumentError(f"received an api_key of type {type(api_key).__name__}; expected a str.")
    if api_key is not None and url is None:
        raise InvalidArgumentError(
            "received an api_key without a url; only a server takes a key: give url=... as well."
        )
    if not isinstance(collection, str) or not 0 < len(collection) <= 255 or _NOT_IN_NAMES & set(collection):
        raise InvalidArgumentError(
            f"received collection={describe(collection)}; expected a name of up to 255 characters, without any of "
            '< > : " / \\ | ? *.'
        )
