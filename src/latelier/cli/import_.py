"""``latelier import``: add the documents of an export to an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latelier.cli.target_index import BitsOption, KindOption, ShardsOption, open_target

__all__ = ["import_"]


def import_(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the export.")],
    index: Annotated[
        str, typer.Argument(metavar="INDEX", help="Folder of the index, or qdrant:..., see below; made if missing.")
    ],
    *,
    kind: KindOption = None,
    nbits: BitsOption = None,
    shards: ShardsOption = None,
    settings: Annotated[
        bool, typer.Option("--settings/--no-settings", help="Store the settings of the export, such as its model.")
    ] = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Add the documents of an export to an index.

    A new index gets the keyword index and the settings of the exported one, so searches load the same model. All files
    are compared with their checksums. If it is interrupted, the same command goes on.

    \b
    INDEX is a folder or a collection of Qdrant:
      qdrant:FOLDER                          local mode; its pickles can run code, so only if you trust the folder
      qdrant+http://HOST:PORT/COLLECTION     a server, also qdrant+https; its key is read from QDRANT_API_KEY

    \b
    Example:
      printf 'Bananas are healthy.\\n' | latelier index - --index ./fruit
      latelier export ./fruit ./fruit-export
      latelier import ./fruit-export ./fruit-ivf --kind ivf --nbits 4
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier import indexes
    from latelier.cli.output import print_transfer, show_progress

    about = indexes.Export(folder).manifest
    with open_target(index, kind, nbits, shards, like=about) as target:
        report = indexes.import_documents(folder, target, settings=settings, show_progress=show_progress())
    print_transfer(report, json_output)
