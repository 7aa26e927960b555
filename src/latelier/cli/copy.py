"""``latelier copy``: add the documents of an index to another one."""

from __future__ import annotations

from typing import Annotated

import typer

from latelier.cli.index_location import open_index
from latelier.cli.target_index import BitsOption, KindOption, ShardsOption, open_target

__all__ = ["copy"]


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Index to copy from, see below.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Index to copy to, see below; made if missing.")],
    *,
    kind: KindOption = None,
    nbits: BitsOption = None,
    shards: ShardsOption = None,
    settings: Annotated[
        bool, typer.Option("--settings/--no-settings", help="Store the settings of the source, such as its model.")
    ] = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Copy an index to another one, of any kind, without encoding.

    The other one need not be empty. A new one gets the keyword index and the settings of the source, so searches load
    the same model. If it is interrupted, the same command goes on.

    \b
    SOURCE and TARGET are each a folder or a collection of Qdrant:
      qdrant:FOLDER                          local mode; its pickles can run code, so only if you trust the folder
      qdrant+http://HOST:PORT/COLLECTION     a server, also qdrant+https; its key is read from QDRANT_API_KEY

    \b
    Example:
      printf 'Bananas are healthy.\\n' | latelier index - --index ./fruit
      latelier copy ./fruit ./fruit-ivf --kind ivf --nbits 4
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier import indexes
    from latelier.cli.output import print_transfer, show_progress

    with open_index(source) as given, open_target(target, kind, nbits, shards, like=given) as filled:
        report = indexes.copy_documents(given, filled, settings=settings, show_progress=show_progress())
    print_transfer(report, json_output)
