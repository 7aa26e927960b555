"""``latelier info``: the contents of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["info"]


def info(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show what an index holds, without loading its model.

    \b
    Example:
      printf 'Bananas are healthy.\\n' | latelier index - --index ./fruit
      latelier info ./fruit
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier import indexes
    from latelier.cli.output import bold, print_json, printable
    from latelier.errors import IndexFormatError
    from latelier.retrieve.model_identity import ModelIdentity

    with indexes.open(folder, read_only=True) as index:
        try:
            model = ModelIdentity.stored_in(index)
        except IndexFormatError as error:
            typer.echo(f"Warning: {printable(str(error))}", err=True)
            model = None
        facts = {
            "index": str(folder),
            "kind": type(index).__name__,
            "documents": len(index),
            "dim": index.dim,
            "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
            "model": model and model.name,
            "model_options": model.options if model else {},
        }
    if json_output:
        print_json(facts)
        return
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) else str(value or "-")
        typer.echo(f"{bold(f'{name:14}')} {printable(shown)}")
