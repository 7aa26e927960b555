"""The index that a command moves documents to: an existing one, or a new one like the source; and its options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from latelier.cli.index_location import QdrantLocation, parse_location
from latelier.cli.new_index import discarded_if_failed
from latelier.cli.options import Kind

if TYPE_CHECKING:
    from latelier.indexes import Index
    from latelier.indexes.transfer.manifest import ExportManifest

    Source: TypeAlias = "Index | ExportManifest"

__all__ = ["BitsOption", "KindOption", "ShardsOption", "open_target"]


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

    Parameters
    ----------
    text
        Its folder, or its collection of Qdrant; see `latelier.cli.index_location.parse_location`.
    kind, nbits, shards
        As the user gives them: the kind of the index, or of its shards, the bits per number, and the number of shards.
        An existing index must have them; a new one gets what is not given from the source, but is not sharded. A
        collection of Qdrant takes none of them.
    like
        The source: an index, or the manifest of an export.

    Raises
    ------
    InvalidArgumentError
        If the index in the folder is another one.
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
    from latelier.retrieve.existing_index import open_if_made

    index = open_if_made(folder)
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
