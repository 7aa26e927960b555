"""``latelier reshard``: divides the documents of a sharded index among another number of shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["reshard"]


def reshard(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index.")],
    shards: Annotated[int, typer.Argument(metavar="N", min=1, help="New number of shards.")],
) -> None:
    """Divide the documents of a sharded index among N shards.

    Meanwhile, others go on reading and writing.

    \b
    Example:
      latelier reshard ./library 4
    """  # noqa: D301 (\b keeps the lines of a block apart)
    import time

    from latelier import indexes
    from latelier.cli.info import print_facts
    from latelier.cli.output import show_progress
    from latelier.errors import InvalidArgumentError
    from latelier.indexes.sharded import Sharded

    with indexes.open(folder) as index:
        if not isinstance(index, Sharded):
            raise InvalidArgumentError(
                f"the index in {folder} has no shards; latelier copy writes its documents to an index with shards."
            )
        before, begun = index.shards, time.perf_counter()
        index.reshard(shards, show_progress=show_progress())
        seconds = time.perf_counter() - begun
        print_facts(
            {
                "index": str(folder),
                "documents": len(index),
                "shards": f"{before} -> {index.shards}",
                "bytes": index.statistics().bytes,
                "seconds": f"{seconds:.1f}",
            }
        )
