"""``latelier import``: add the documents of an export to an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latelier.cli.index import Kind

__all__ = ["import_"]


def import_(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the export.")],
    index: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index; made if missing.")],
    *,
    kind: Annotated[
        Kind | None, typer.Option(help="Kind of a new index, or of its shards; default: as exported.")
    ] = None,
    nbits: Annotated[
        int | None, typer.Option(help="Bits per number of a new ivf index: 8, 4, 2 or 1; default: as exported, or 8.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Divide a new index among N shards; needs the extra ray.")
    ] = None,
    settings: Annotated[
        bool, typer.Option("--settings/--no-settings", help="Store the settings of the export, such as its model.")
    ] = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Add the documents of an export to an index.

    A new index gets the keyword index and the settings of the exported one, so searches load the same model. All files
    are compared with their checksums. If it is interrupted, the same command goes on.

    \b
    Example:
      printf 'Bananas are healthy.\\n' | latelier index - --index ./fruit
      latelier export ./fruit ./fruit-export
      latelier import ./fruit-export ./fruit-ivf --kind ivf --nbits 4
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier import indexes
    from latelier.cli.output import print_transfer, show_progress
    from latelier.cli.target_index import open_target

    about = indexes.Export(folder).manifest
    with open_target(index, kind, nbits, shards, like=about) as target:
        report = indexes.import_documents(folder, target, settings=settings, show_progress=show_progress())
    print_transfer(report, json_output)
