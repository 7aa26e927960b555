"""The index that a command moves documents to: the one in a folder, or a new one like the source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from latelier.cli.index import Kind

if TYPE_CHECKING:
    from latelier.indexes import Index
    from latelier.indexes.transfer.manifest import ExportManifest

__all__ = ["open_target"]


def open_target(folder: Path, kind: Kind | None, nbits: int | None, *, like: Index | ExportManifest) -> Index:
    """Open the index in a folder, or make a new one.

    Parameters
    ----------
    folder
        Its folder.
    kind, nbits
        As the user gives them. An existing index must have them; a new one that lacks them is as the source.
    like
        The source: an index, or the manifest of an export.

    Raises
    ------
    InvalidArgumentError
        If the index in the folder is of another kind, or has another number of bits.
    """
    from latelier import indexes
    from latelier.errors import InvalidArgumentError

    if folder.is_dir() and any(folder.iterdir()):
        index = indexes.open(folder)
        wanted = {"kind": kind and kind.value, "nbits": nbits}
        for name, value in wanted.items():
            if value is not None and value != (found := getattr(index, name, None)):
                index.close()
                raise InvalidArgumentError(
                    f"the index in {folder} has {name}={found}, not {value}; leave --{name} out, or give a new folder."
                )
        return index
    source: dict[str, Any] = {name: getattr(like, name, None) for name in ("kind", "nbits", "dtype", "tokenizer")}
    known = [each.value for each in Kind]
    if kind is None and source["kind"] not in known:
        raise typer.BadParameter(
            f"the source is of kind {source['kind']!r}; give one of {', '.join(known)}.", param_hint="--kind"
        )
    kind = kind or Kind(source["kind"])
    if nbits is not None and kind is not Kind.IVF:
        raise typer.BadParameter("only an ivf index is quantised; add --kind ivf.", param_hint="--nbits")
    options: dict[str, Any] = {"keywords": source["tokenizer"] is not None, "tokenizer": source["tokenizer"]}
    if kind is Kind.IVF:
        options["nbits"] = nbits or source["nbits"]
        return indexes.IVF(folder, **options)
    if source["kind"] == Kind.FLAT.value:
        options["dtype"] = source["dtype"]
    return indexes.Flat(folder, **options)
