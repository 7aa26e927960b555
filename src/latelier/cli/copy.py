"""``latelier copy``: add the documents of an index to another one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latelier.cli.index import Kind

__all__ = ["copy"]


def copy(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder of the index to copy from.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index to copy to; made if missing.")],
    *,
    kind: Annotated[
        Kind | None, typer.Option(help="Kind of a new index, or of its shards; default: that of the source.")
    ] = None,
    nbits: Annotated[
        int | None, typer.Option(help="Bits per number of a new ivf index: 8, 4, 2 or 1; default: as the source, or 8.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Divide a new index among N shards; needs the extra ray.")
    ] = None,
    settings: Annotated[
        bool, typer.Option("--settings/--no-settings", help="Store the settings of the source, such as its model.")
    ] = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Add the documents of an index to another one, of any kind, without encoding them again.

    A new index gets the keyword index and the settings of the source, so searches load the same model. If it is
    interrupted, the same command goes on.

    \b
    Example:
      printf 'Bananas are healthy.\\n' | latelier index - --index ./fruit
      latelier copy ./fruit ./fruit-ivf --kind ivf --nbits 4
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier import indexes
    from latelier.cli.output import print_transfer, show_progress
    from latelier.cli.target_index import open_target

    with indexes.open(source, read_only=True) as given, open_target(folder, kind, nbits, shards, like=given) as target:
        report = indexes.copy_documents(given, target, settings=settings, show_progress=show_progress())
    print_transfer(report, json_output)
