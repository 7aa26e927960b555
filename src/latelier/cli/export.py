"""``latelier export``: write the documents of an index into a folder."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from latelier.cli.index_location import open_index

__all__ = ["export"]


class Dtype(str, Enum):
    """Floating types of exported vectors."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


def export(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="Folder of the index, or qdrant:..., see below.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the export; new, empty or interrupted.")],
    *,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Floating type of vectors; default: as the index holds them, else float32.")
    ] = None,
    chunk_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of a chunk, such as 64MB; memory is a few chunks.")
    ] = "64MiB",
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write the documents of an index, with vectors, to a folder.

    Vectors, texts, metadata and settings are written, as safetensors and JSON Lines. The folder can be imported into an
    index of any kind, and read by other programs. If it is interrupted, the same command goes on.

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

    with open_index(index) as source:
        report = indexes.export_documents(
            source,
            folder,
            dtype=None if dtype is None else dtype.value,
            chunk_size=chunk_size,
            show_progress=show_progress(),
        )
    print_transfer(report, json_output)
