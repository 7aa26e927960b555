"""Where an index is, as a user types it: a folder, or a collection of Qdrant in a folder or on a server.

`latelier.indexes.open` never opens a folder of Qdrant's local mode, since it holds pickles, which can run code. A user
who types ``qdrant:`` before the folder trusts it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import typer

from latelier.errors import IndexFormatError, InvalidArgumentError

if TYPE_CHECKING:
    from latelier.indexes import Index, Qdrant

__all__ = ["QdrantLocation", "open_index", "parse_folder", "parse_location"]

_FORMS = "qdrant:FOLDER, qdrant+http://HOST:PORT/COLLECTION or qdrant+https://HOST:PORT/COLLECTION"
_KEY = "QDRANT_API_KEY"
# One letter before a colon is a drive of Windows.
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(//)?")


@dataclass(frozen=True)
class QdrantLocation:
    """A collection of Qdrant: in a folder of its local mode, or on a server.

    Parameters
    ----------
    folder
        The folder; None for a server.
    url
        The URL of the server; None for a folder.
    collection
        Name of the collection.
    """

    folder: Path | None
    url: str | None
    collection: str

    def refuse_budget(self, max_memory: str | None) -> None:
        """Raise `InvalidArgumentError` if the user gives a memory budget, which Qdrant does not take."""
        if max_memory is not None:
            raise InvalidArgumentError(
                f"received --max-memory {max_memory} for a collection of Qdrant, which takes no budget; leave it out."
            )

    def open(self, **options: Any) -> Qdrant:
        """Open the collection, which need not exist yet; a server gets the key in ``QDRANT_API_KEY``.

        Parameters
        ----------
        **options
            Those of a new collection; see `latelier.indexes.Qdrant`, also about errors.
        """
        from latelier import indexes

        if self.folder is None:
            key = os.environ.get(_KEY) or None
            return indexes.Qdrant(url=self.url, api_key=key, collection=self.collection, **options)
        return indexes.Qdrant(self.folder, collection=self.collection, **options)

    def open_existing(self) -> Qdrant:
        """Open the collection, or raise `IndexFormatError` if there is none; no folder is made."""
        if self.folder is not None and not (self.folder / "meta.json").is_file():
            raise IndexFormatError(
                f"{self.folder} is not a folder of Qdrant's local mode; leave out 'qdrant:' if it is another index."
            )
        index = self.open()
        try:
            if not index.exists:
                raise IndexFormatError(
                    f"there is no collection {self.collection!r} in {self.url or self.folder}; name another one: "
                    + ("qdrant+http://HOST:PORT/COLLECTION" if self.url else f"qdrant:{self.folder}#COLLECTION")
                )
        except BaseException:
            index.close()
            raise
        return index


def parse_location(text: str) -> Path | QdrantLocation:
    """Return the folder or the collection that a text names.

    Parameters
    ----------
    text
        A folder, ``qdrant:FOLDER``, ``qdrant:FOLDER#COLLECTION`` (by default the collection is ``latelier``),
        ``qdrant+http://HOST:PORT/COLLECTION`` or ``qdrant+https://HOST:PORT/COLLECTION``; without a port, 6333.

    Raises
    ------
    InvalidArgumentError
        If it begins with another scheme, names no collection on a server, or holds a password.

    Examples
    --------
    >>> parse_location("qdrant+http://localhost:6333/papers")
    QdrantLocation(folder=None, url='http://localhost:6333', collection='papers')
    >>> parse_location("qdrant:fruit#papers").collection
    'papers'
    >>> parse_location("fruit").name
    'fruit'
    """
    match = _SCHEME.match(text)
    scheme, slashes = match.groups() if match else ("", None)
    if scheme == "qdrant":
        folder, _, collection = text.removeprefix("qdrant:").partition("#")
        if slashes or not folder:
            raise InvalidArgumentError(f"received {text!r}; give {_FORMS}.")
        return QdrantLocation(Path(folder), None, collection or "latelier")
    if scheme in ("qdrant+http", "qdrant+https"):
        return _server(text)
    if slashes or scheme.startswith("qdrant+"):
        raise InvalidArgumentError(f"{scheme!r} is not a scheme of indexes; give a folder, {_FORMS}.")
    return Path(text)


def parse_folder(text: str) -> Path:
    """Return the folder that a text names, for a command that takes no collection.

    Raises
    ------
    typer.BadParameter
        If it names a collection of Qdrant, or nothing that `parse_location` knows.
    """
    try:
        location = parse_location(text)
    except InvalidArgumentError as error:
        raise typer.BadParameter(str(error)) from error
    if isinstance(location, QdrantLocation):
        raise typer.BadParameter(
            f"received {text!r}, but this command writes to folders only; give a folder, and then call: latelier copy "
            f"FOLDER {text}"
        )
    return location


def open_index(
    location: str | Path | QdrantLocation, *, read_only: bool = True, max_memory: str | None = None
) -> Index:
    """Open an existing index.

    Parameters
    ----------
    location
        Where it is, as the user types it or parsed; see `parse_location`.
    read_only
        Open a folder for reading only; Qdrant has no such mode.
    max_memory
        Memory budget of an index in a folder.

    Raises
    ------
    IndexFormatError
        If there is no index.
    InvalidArgumentError
        If a collection of Qdrant is given a memory budget.
    """
    from latelier import indexes

    place = parse_location(location) if isinstance(location, str) else location
    if isinstance(place, QdrantLocation):
        place.refuse_budget(max_memory)
        return place.open_existing()
    return indexes.open(place, read_only=read_only, max_memory=max_memory)


def _server(text: str) -> QdrantLocation:
    """Return the collection on a server; the last part of the path names it, other parts belong to the URL."""
    try:
        parts = urlsplit(text.removeprefix("qdrant+"))
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        raise InvalidArgumentError(f"received {_hidden(text)!r}: {error}; give {_FORMS}.") from error
    if "@" in parts.netloc or parts.query:
        raise InvalidArgumentError(
            f"received {_hidden(text)!r} with a password or parameters, which other users of the machine can read; put "
            f"the key of the server into the environment variable {_KEY}."
        )
    prefix, _, collection = parts.path.rstrip("/").rpartition("/")
    if not host or not collection or parts.fragment:
        raise InvalidArgumentError(f"received {text!r}, without a collection or a host; give {_FORMS}.")
    return QdrantLocation(None, f"{parts.scheme}://{parts.netloc}{prefix}", unquote(collection))


def _hidden(text: str) -> str:
    """Return the text without what may be a password or key."""
    return re.sub(r"//[^/]*@|\?.*", lambda found: "//...@" if found[0].startswith("//") else "?...", text)
