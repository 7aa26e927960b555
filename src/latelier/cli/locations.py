"""Where the index of a command is: a folder, or a collection of Qdrant, opened or made.

`latelier.indexes.open` never opens a folder of Qdrant's local mode, since it holds pickles, which can run code. A user
who types ``qdrant:`` before the folder trusts it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import typer

from latelier import indexes
from latelier.cli.options import check_same_space
from latelier.cli.output import quiet_loading
from latelier.errors import IndexFormatError, InvalidArgumentError, LatelierError
from latelier.indexes.ivf.layout import BITS

if TYPE_CHECKING:
    from latelier.indexes import Index, Qdrant
    from latelier.indexes.copy import ParquetDocuments
    from latelier.retrieve import Retriever

Opened = TypeVar("Opened", "Index", "Retriever")

_FORMS = "qdrant:FOLDER, qdrant+http://HOST:PORT/COLLECTION or qdrant+https://HOST:PORT/COLLECTION"
_KEY = "QDRANT_API_KEY"
# One letter before a colon is a drive of Windows.
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(//)?")


@dataclass(frozen=True)
class QdrantLocation:
    """A collection of Qdrant, in a folder of its local mode or on a server (one of `folder` and `url` is None)."""

    folder: Path | None
    url: str | None
    collection: str

    def open(self, **options: Any) -> Qdrant:
        """Open the collection, which need not exist yet; a server gets the key in ``QDRANT_API_KEY``."""
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
    """Return the folder or the collection that a text names, in one of these forms: FOLDER and `_FORMS`."""
    match = _SCHEME.match(text)
    scheme, slashes = match.groups() if match else ("", None)
    if scheme == "qdrant":
        folder, _, collection = text.removeprefix("qdrant:").partition("#")
        if slashes or not folder:
            raise InvalidArgumentError(f"received {text!r}; give {_FORMS}.")
        return QdrantLocation(Path(folder), None, collection or "latelier")
    if scheme in ("qdrant+http", "qdrant+https"):
        parts = urlsplit(text.removeprefix("qdrant+"))
        prefix, _, collection = parts.path.rstrip("/").rpartition("/")
        if "@" in parts.netloc or parts.query:  # which may hold a password: it is not repeated
            raise InvalidArgumentError(
                "the location of a server has no password and no parameters, which other users of the machine can "
                f"read; put the key of the server into the environment variable {_KEY}."
            )
        if not parts.hostname or not collection or parts.fragment:
            raise InvalidArgumentError(f"received {text!r}, without a collection or a host; give {_FORMS}.")
        return QdrantLocation(None, f"{parts.scheme}://{parts.netloc}{prefix}", unquote(collection))
    if slashes or scheme.startswith("qdrant+"):
        raise InvalidArgumentError(f"{scheme!r} is not a scheme of indexes; give a folder, {_FORMS}.")
    return Path(text)


def as_parquet(text: str) -> Path | None:
    """Return the path of the Parquet file that a text names; None if it names an index."""
    place = parse_location(text)
    if isinstance(place, Path) and place.suffix == ".parquet" and not place.is_dir():
        return place
    return None


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
    """Open an existing index at a place as the user types it, or parsed; Qdrant has no mode for reading only."""
    if isinstance(location, str):
        place = parse_location(location)
    else:
        place = location
    if isinstance(place, QdrantLocation):
        if max_memory is not None:
            raise InvalidArgumentError("a collection of Qdrant takes no --max-memory; leave it out.")
        return place.open_existing()
    return indexes.open(place, read_only=read_only, max_memory=max_memory)


@contextmanager
def discarded_if_unused(folder: Path, open_or_make: Callable[[], Opened]) -> Iterator[Opened]:
    """Open or make an index for a ``with`` block; delete a new one that an error leaves empty."""
    was_folder = folder.is_dir()
    is_new = not (folder.is_dir() and any(folder.iterdir()))
    is_unused = is_new  # if it cannot be opened, nothing was committed
    try:
        with open_or_make() as opened:
            is_unused = False
            try:
                yield opened
            except BaseException:
                is_unused = is_new and len(opened) == 0
                raise
    finally:
        if is_unused:
            _remove_empty(folder, keep=was_folder)


def _remove_empty(folder: Path, *, keep: bool) -> None:
    """Remove an index without documents; `keep` leaves its folder, empty as it was before."""
    # Another process that has opened the index notices that it was moved, and writes nothing to it from then on.
    with suppress(OSError, ValueError):  # there is none, it is a mount point, or files are open on Windows
        folder = folder.resolve()
        aside = folder.with_name(f".{folder.name}.{uuid4().hex}")
        folder.rename(aside)
        with suppress(LatelierError), indexes.open(aside, read_only=True) as index:
            if len(index):  # that process has committed in the meantime
                aside.rename(folder)
                return
        shutil.rmtree(aside, ignore_errors=True)
        if keep:
            folder.mkdir()


@contextmanager
def open_target(
    text: str, bits: int | None, exact: bool, shards: int | None, *, like: Index | ParquetDocuments
) -> Iterator[Index]:
    """Open the index to copy to, which must have what is given, or make one with the options of the source."""
    place = parse_location(text)
    if isinstance(place, Path):
        with discarded_if_unused(place, partial(_open_or_make, place, bits, exact, shards, like)) as index:
            yield index
        return
    for name, value in {"bits": bits, "exact": exact, "shards": shards}.items():
        if value:
            raise typer.BadParameter("a collection of Qdrant has no such option; leave it out.", param_hint=f"--{name}")
    with place.open() as collection:
        if collection.exists:
            yield collection
            return
    if getattr(like, "dtype", None) == "float16":
        dtype = "float16"
    else:
        dtype = "float32"
    with place.open(dtype=dtype, **_keyword_options(like)) as collection:
        yield collection


def _open_or_make(
    folder: Path, bits: int | None, exact: bool, shards: int | None, like: Index | ParquetDocuments
) -> Index:
    from latelier.retrieve.query_model import find_index

    index = find_index(folder)
    if index is not None:
        check_existing(index, folder, bits=bits, exact=exact, shards=shards)
        return index
    options = _keyword_options(like)
    if bits is None and not exact:
        bits = getattr(like, "nbits", None)
    if bits is None and getattr(like, "dtype", None) == "float16":
        options["dtype"] = "float16"
    return make_index(folder, bits, shards, **options)


def make_index(folder: Path, bits: Any, shards: int | None, **options: Any) -> Index:
    """Make an index of codes of so many bits, None for exact vectors; or of shards of that kind."""
    if shards is not None:
        kind: Any = "flat" if bits is None else "ivf"
        return indexes.Sharded(folder, shards=shards, kind=kind, nbits=bits, **options)
    if bits is None:
        return indexes.Flat(folder, **options)
    return indexes.IVF(folder, nbits=bits, **options)


def check_bits(bits: int | None, exact: bool) -> None:
    """Raise an error if the bits of an index are none that there are, or if it is to be exact as well."""
    if bits not in (None, *BITS):
        raise typer.BadParameter(f"received {bits}; expected {', '.join(map(str, BITS))}.", param_hint="--bits")
    if exact and bits is not None:
        raise typer.BadParameter(f"an exact index has no codes of {bits} bits; leave one out.", param_hint="--exact")


def check_existing(index: Index, folder: Path, *, bits: int | None, exact: bool, shards: int | None) -> None:
    """Close an index and raise an error if its bits or shards are not those that the user gives."""
    there = {"bits": getattr(index, "nbits", None), "shards": getattr(index, "shards", None)}
    there["exact"] = there["bits"] is None
    for name, value in {"bits": bits, "exact": exact or None, "shards": shards}.items():
        if value not in (None, there[name]):
            index.close()
            raise InvalidArgumentError(
                f"the index in {folder} has {name}={there[name]}, not {value}; leave --{name} out, or give a new "
                "folder."
            )


def _keyword_options(like: Index | ParquetDocuments) -> dict[str, Any]:
    tokenizer = getattr(like, "tokenizer", None)
    return {"keywords": tokenizer is not None, "tokenizer": tokenizer}


def named_locations(arguments: Iterable[str]) -> dict[str, Path | QdrantLocation]:
    """Return where indexes are, by name: each is INDEX (with the name of its folder or collection) or NAME=INDEX."""
    locations: dict[str, Path | QdrantLocation] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        # A colon or slash before the sign belongs to a location.
        is_named = equals and text and not {"/", ":"} & set(name) and not Path(argument).exists()
        location = parse_location(text if is_named else argument)
        if not is_named:
            if isinstance(location, QdrantLocation):
                name = location.collection
            else:
                name = location.resolve().name
        if name in locations:
            raise InvalidArgumentError(f"received two indexes named {name!r}; name one of them: NAME={argument}")
        locations[name] = location
    return locations


def open_named(
    locations: Mapping[str, Path | QdrantLocation],
    stack: ExitStack,
    *,
    read_only: bool,
    max_memory: str | None = None,
    model: str | None = None,
    same_space: bool = False,
    **options: Any,
) -> dict[str, Retriever]:
    """Open indexes, first all and then their models, which takes much longer to open."""
    from latelier.retrieve import Retriever

    check_same_space(same_space, model)
    quiet_loading()
    opened = {
        name: stack.enter_context(open_index(location, read_only=read_only, max_memory=max_memory))
        for name, location in locations.items()
    }
    options |= {"model": model, "same_space": same_space}
    return {name: Retriever.open(index, **options) for name, index in opened.items()}


def open_retriever(
    location: str, *, max_memory: str | None = None, model: str | None = None, same_space: bool = False, **options: Any
) -> Retriever:
    """Open an index for reading, with the model that filled it, or with `options` of `Retriever.open`."""
    from latelier.retrieve import Retriever

    check_same_space(same_space, model)
    quiet_loading()
    index = open_index(location, max_memory=max_memory)
    try:
        check_not_empty(index, location)
        return Retriever.open(index, model=model, same_space=same_space, **options)
    except BaseException:
        index.close()
        raise


def check_not_empty(index: Index, location: str) -> None:
    """Raise an error for an index that has never had a document: its first run was interrupted."""
    if len(index) or index.dim is not None:
        return
    source = next(iter(index.settings.get("files", None) or {}), "SOURCE")
    raise InvalidArgumentError(
        f"the index in {location} holds no document: its first run was interrupted before it stored one. This goes on: "
        f"latelier index {source} {location}"
    )
