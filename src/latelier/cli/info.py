"""``latelier info``: the contents of an index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from latelier.retrieve.model_identity import ModelIdentity

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
            "encoder": _encoder(model),
        }
    if json_output:
        print_json(facts)
        return
    if facts["encoder"] is None and model is not None:
        facts["encoder"] = 'torch; pip install "latelier[onnx]" and latelier index make search start in a second'
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) else str(value or "-")
        typer.echo(f"{bold(f'{name:14}')} {printable(shown)}")


def _encoder(model: ModelIdentity | None) -> str | None:
    """Return the folder of the exported encoder that searches use; None if they load the model."""
    from importlib.util import find_spec

    from latelier.retrieve.encoder_store import encoder_folder, is_exported

    if model is None or find_spec("onnxruntime") is None:
        return None
    folder = encoder_folder(model)
    return str(folder) if is_exported(folder) else None
