"""The index that a command moves documents to: the one in a folder, or a new one like the source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from latelier.cli.index import Kind

if TYPE_CHECKING:
    from latelier.indexes import Index
    from latelier.indexes.transfer.manifest import ExportManifest

    Source: TypeAlias = "Index | ExportManifest"

__all__ = ["open_target"]


def open_target(folder: Path, kind: Kind | None, nbits: int | None, shards: int | None, *, like: Source) -> Index:
    """Open the index in a folder, or make a new one.

    Parameters
    ----------
    folder
        Its folder.
    kind, nbits, shards
        As the user gives them: the kind of the index, or of its shards, the bits per number, and the number of shards.
        An existing index must have them; a new one gets what is not given from the source, but is not sharded.
    like
        The source: an index, or the manifest of an export.

    Raises
    ------
    InvalidArgumentError
        If the index in the folder is another one.
    """
    from latelier import indexes
    from latelier.errors import InvalidArgumentError

    if folder.is_dir() and any(folder.iterdir()):
        index = indexes.open(folder)
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
    tokenizer = getattr(like, "tokenizer", None)
    options: dict[str, Any] = {"keywords": tokenizer is not None, "tokenizer": tokenizer}
    if kind is Kind.IVF:
        options["nbits"] = nbits or getattr(like, "nbits", None)
    elif getattr(like, "dtype", None) == "float16":
        options["dtype"] = "float16"
    if shards is not None:
        return indexes.Sharded(folder, shards=shards, index=kind.value, **options)
    return indexes.IVF(folder, **options) if kind is Kind.IVF else indexes.Flat(folder, **options)


def _kind_of(source: Source) -> Kind:
    """Return the kind of an index; of its shards, if it has shards; and for other engines, what is quantised or not."""
    kind = getattr(source, "kind", None)
    if kind in [each.value for each in Kind]:
        return Kind(kind)
    return Kind.FLAT if getattr(source, "nbits", None) is None else Kind.IVF


def _spelled(value: Any) -> Any:
    return value.value if isinstance(value, Kind) else value
