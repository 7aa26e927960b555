"""Where an index is; opening and making one.

`latelier.indexes.open` never opens a folder of Qdrant's local mode, since it holds pickles, which can run code. A user
who types ``qdrant:`` before the folder trusts it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import typer

from latelier.cli.options import Kind
from latelier.errors import IndexFormatError, InvalidArgumentError

if TYPE_CHECKING:
    from latelier.indexes import Index, Qdrant
    from latelier.retrieve import Retriever

_FORMS = "qdrant:FOLDER, qdrant+http://HOST:PORT/COLLECTION or qdrant+https://HOST:PORT/COLLECTION"
_KEY = "QDRANT_API_KEY"
# One letter before a colon is a drive of Windows.
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(//)?")


@dataclass(frozen=True)
class QdrantLocation:
    """A collection of Qdrant: in a folder of its local mode, or on a server.

    `folder`: the folder; None for a server. `url`: the URL of the server; None for a folder.
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

        `**options`: those of a new collection; see `latelier.indexes.Qdrant`, also about errors.
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

    `text`: a folder, ``qdrant:FOLDER``, ``qdrant:FOLDER#COLLECTION`` (by default the collection is ``latelier``),
    ``qdrant+http://HOST:PORT/COLLECTION`` or ``qdrant+https://HOST:PORT/COLLECTION``; without a port, 6333. Raises
    `InvalidArgumentError` if it begins with another scheme, names no collection on a server, or holds a password.
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


def as_parquet(text: str) -> Path | None:
    """Return the path of the Parquet file that a text names; None if it names an index."""
    place = parse_location(text)
    return place if isinstance(place, Path) and place.suffix == ".parquet" and not place.is_dir() else None


def parse_folder(text: str) -> Path:
    """Return the folder that a text names, for a command that takes no collection."""
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

    `location`: where it is, as the user types it or parsed; see `parse_location`. `read_only`: open a folder for
    reading only; Qdrant has no such mode. `max_memory`: memory budget of an index in a folder. Raises
    `IndexFormatError` if there is no index.
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


def holds_files(folder: Path) -> bool:
    """Whether there is a folder of this name that is not empty."""
    return folder.is_dir() and any(folder.iterdir())


@contextmanager
def discarded_if_empty(folder: Path, open_or_make: Callable[[], Retriever], source: str) -> Iterator[Retriever]:
    """Open or make an index for a ``with`` block; remove it if the call made it and it is empty at the end.

    An empty index would be of the kind of the first, failed attempt, whatever the next one asks for. `open_or_make`:
    opens the index in the folder, or makes one if the folder is empty or missing; `source`: where the documents come
    from, for the message.
    """
    from latelier.errors import InvalidArgumentError

    was_folder, is_new = folder.is_dir(), not holds_files(folder)
    is_unused = is_new  # if it cannot be opened, nothing was committed
    try:
        with open_or_make() as retriever:
            is_unused = False
            try:
                yield retriever
            finally:
                is_unused = is_new and len(retriever.index) == 0
            if is_unused:
                name = "standard input" if source == "-" else source
                raise InvalidArgumentError(
                    f"nothing to index in {name}: it holds no document, so no index was made. Give one that does, or "
                    "see --format."
                )
    finally:
        if is_unused:
            _remove(folder, keep=was_folder)


@contextmanager
def discarded_if_failed(folder: Path, open_or_make: Callable[[], Index]) -> Iterator[Index]:
    """Open or make an index for a ``with`` block; remove it if the call made it, and an error leaves it empty.

    `open_or_make`: opens the index in the folder, or makes one if the folder is empty or missing.
    """
    was_folder, is_new = folder.is_dir(), not holds_files(folder)
    is_unused = is_new
    try:
        with open_or_make() as index:
            is_unused = False
            try:
                yield index
            except BaseException:
                is_unused = is_new and len(index) == 0
                raise
    finally:
        if is_unused:
            _remove(folder, keep=was_folder)


def _remove(folder: Path, *, keep: bool) -> None:
    """Remove an index without documents; `keep` leaves its folder, empty as it was before."""
    if not folder.is_dir():
        return
    folder = folder.resolve()
    # Another process that has opened the index notices that it was moved, and writes nothing to it from then on.
    aside = folder.with_name(f".{folder.name}.{uuid4().hex}")
    try:
        folder.rename(aside)
    except OSError:  # a mount point, or files that are open on Windows
        return
    if _holds_documents(aside):  # that process has committed in the meantime
        aside.rename(folder)
        return
    shutil.rmtree(aside, ignore_errors=True)
    if keep:
        folder.mkdir()


def _holds_documents(folder: Path) -> bool:
    import sqlite3

    from latelier.indexes.store.checks import CATALOG

    if not (folder / CATALOG).is_file():
        return False
    with closing(sqlite3.connect(folder / CATALOG)) as connection:
        try:
            return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM document)").fetchone()[0])
        except sqlite3.Error:  # of another kind, whose processes have ended with this one
            return False


if TYPE_CHECKING:
    from latelier.indexes import Index
    from latelier.indexes.copy import ParquetDocuments

    Source: TypeAlias = "Index | ParquetDocuments"


def _as_kind(text: str) -> Kind:
    if text == "qdrant":
        raise typer.BadParameter(
            "a collection of Qdrant is named by the target itself: qdrant:FOLDER, or qdrant+http://HOST:PORT/COLLECTION."
        )
    if text not in [each.value for each in Kind]:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(repr(each.value) for each in Kind)}.")
    return Kind(text)


KindOption: TypeAlias = Annotated[
    Kind | None,
    typer.Option(
        parser=_as_kind,
        metavar=f"[{'|'.join(each.value for each in Kind)}]",
        help="Kind of a new index in a folder, or of its shards; default: that of the source.",
    ),
]
BitsOption: TypeAlias = Annotated[
    int | None, typer.Option(help="Bits per number of a new ivf index: 8, 4, 2 or 1; default: as the source, or 8.")
]
ShardsOption: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Divide a new index among N shards; needs the extra ray.")
]


@contextmanager
def open_target(
    text: str, kind: Kind | None, nbits: int | None, shards: int | None, *, like: Source
) -> Iterator[Index]:
    """Open an index, or make a new one, for a ``with`` block; a new one that gets no document is removed if it fails.

    `text`: its folder, or its collection of Qdrant; see `latelier.cli.locations.parse_location`. `kind`, `nbits`,
    `shards`: as the user gives them: the kind of the index, or of its shards, the bits per number, and the number of
    shards. An existing index must have them; a new one gets what is not given from the source, but is not sharded. A
    collection of Qdrant takes none of them. `like`: the source: an index or a Parquet file. Raises
    `InvalidArgumentError` if the index in the folder is another one.
    """
    place = parse_location(text)
    if isinstance(place, QdrantLocation):
        with _open_collection(place, {"kind": kind, "nbits": nbits, "shards": shards}, like) as index:
            yield index
        return
    with discarded_if_failed(place, partial(_open_or_make, place, kind, nbits, shards, like)) as index:
        yield index


def _open_or_make(folder: Path, kind: Kind | None, nbits: int | None, shards: int | None, like: Source) -> Index:
    from latelier import indexes
    from latelier.errors import InvalidArgumentError
    from latelier.retrieve.model import find_index

    index = find_index(folder)
    if index is not None:
        wanted = {"kind": kind, "nbits": nbits, "shards": shards}
        there = {"kind": _kind_of(index), "nbits": getattr(index, "nbits", None)}
        there["shards"] = getattr(index, "shards", None)
        for name, value in wanted.items():
            if value not in (None, there[name]):
                index.close()
                raise InvalidArgumentError(
                    f"the index in {folder} has {name}={_spelled(there[name])}, not {_spelled(value)}; leave --{name} "
                    "out, or give a new folder."
                )
        return index
    kind = kind or _kind_of(like)
    if nbits is not None and kind is not Kind.IVF:
        raise typer.BadParameter("only an ivf index is quantised; add --kind ivf.", param_hint="--nbits")
    options = _keyword_options(like)
    if kind is Kind.IVF:
        options["nbits"] = nbits or getattr(like, "nbits", None)
    elif getattr(like, "dtype", None) == "float16":
        options["dtype"] = "float16"
    if shards is not None:
        return indexes.Sharded(folder, shards=shards, index=kind.value, **options)
    return indexes.IVF(folder, **options) if kind is Kind.IVF else indexes.Flat(folder, **options)


def _open_collection(location: QdrantLocation, given: dict[str, Any], like: Source) -> Index:
    """Open a collection of Qdrant, or prepare a new one, with the dtype and the tokenizer of the source."""
    for name, value in given.items():
        if value is not None:
            raise typer.BadParameter("a collection of Qdrant has no such option; leave it out.", param_hint=f"--{name}")
    index = location.open()
    if index.exists:
        return index
    index.close()
    dtype = "float16" if getattr(like, "dtype", None) == "float16" else "float32"
    return location.open(dtype=dtype, **_keyword_options(like))


def _keyword_options(like: Source) -> dict[str, Any]:
    tokenizer = getattr(like, "tokenizer", None)
    return {"keywords": tokenizer is not None, "tokenizer": tokenizer}


def _kind_of(source: Source) -> Kind:
    """Return the kind of an index; of its shards, if it has shards; and for other engines, what is quantised or not."""
    kind = getattr(source, "kind", None)
    if kind in [each.value for each in Kind]:
        return Kind(kind)
    return Kind.FLAT if getattr(source, "nbits", None) is None else Kind.IVF


def _spelled(value: Any) -> Any:
    return value.value if isinstance(value, Kind) else value


def named_locations(arguments: Iterable[str]) -> dict[str, Path | QdrantLocation]:
    """Return where some indexes are, by name.

    `arguments`: each ``INDEX``, whose name is that of the folder or of the collection of Qdrant, or ``NAME=INDEX``.
    """
    locations: dict[str, Path | QdrantLocation] = {}
    for argument in arguments:
        name, text = _named(argument)
        location = parse_location(text)
        if not name:
            name = location.collection if isinstance(location, QdrantLocation) else location.resolve().name
        if name in locations:
            raise InvalidArgumentError(f"received two indexes named {name!r}; name one of them: NAME={text}")
        locations[name] = location
    return locations


def open_named(
    locations: Mapping[str, Path | QdrantLocation],
    stack: ExitStack,
    *,
    read_only: bool,
    max_memory: str | None = None,
    **options: Any,
) -> dict[str, Retriever]:
    """Open indexes, first all of them and then their models, which takes much longer.

    `read_only`, `max_memory`: as of `latelier.cli.locations.open_index`, also about errors; `**options`: ``model``,
    ``device`` and ``backend``, as of `latelier.retrieve.Retriever.open`; returns: retrievers by name.
    """
    from latelier.retrieve import Retriever

    opened = {
        name: stack.enter_context(open_index(location, read_only=read_only, max_memory=max_memory))
        for name, location in locations.items()
    }
    return {name: Retriever.open(index, **options) for name, index in opened.items()}


def _named(argument: str) -> tuple[str, str]:
    """Return the name, or an empty one, and the location of an argument, ``INDEX`` or ``NAME=INDEX``."""
    name, equals, location = argument.partition("=")
    # A colon or slash before the sign belongs to a location.
    if equals and location and not {"/", ":"} & set(name) and not Path(argument).exists():
        return name, location
    return "", argument


def open_retriever(location: str, *, max_memory: str | None = None, **options: Any) -> Retriever:
    """Open an index for reading, with the model that filled it, or with the one that the user names.

    `location`: the index, as the user types it; see `latelier.cli.locations.parse_location`. `**options`: ``model``,
    ``device`` and ``backend``, as of `latelier.retrieve.Retriever.open`. Raises `LatelierError`: as `Retriever.open`
    does; if there is no such collection; if one is given a memory budget.
    """
    from latelier.retrieve import Retriever

    index = open_index(location, max_memory=max_memory)
    try:
        return Retriever.open(index, **options)
    except BaseException:
        index.close()
        raise
