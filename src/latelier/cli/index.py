"""``latelier index``: put the documents of a file into an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from latelier.cli.files import Format
from latelier.cli.retrievers import Kind

__all__ = ["index"]


def index(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The documents: a file, a pipe; - is standard input.")],
    folder: Annotated[Path, typer.Option("--index", metavar="DIR", help="Folder of the index; made if missing.")],
    *,
    model: Annotated[
        str | None, typer.Option(help="Name or folder; default: the index's own, or all-MiniLM-L6-v2 untrained.")
    ] = None,
    kind: Annotated[
        Kind,
        typer.Option(help="What a new index is: flat is exact, ivf fast for thousands of documents and more."),
    ] = Kind.FLAT,
    format: Annotated[
        Format, typer.Option(help="What FILE is; auto: by its name, else by its first line.")
    ] = Format.AUTO,
    update: Annotated[bool, typer.Option("--update", help="Replace documents whose id is in the index.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip documents whose id is in the index: go on after an interruption.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: the best there is.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Long texts encoded together.")] = 32,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Encode documents and add them to an index.

    \b
    FILE holds one document per line or row (.gz is decompressed):
      jsonl  {"id": "a", "title": "optional", "text": "...", "any other key": "is metadata"}
      csv    a header with a column "text"; "id", "title" and metadata as above
      txt    one text per line; ids count on from the largest one there

    \b
    Example:
      printf 'Bananas are healthy.\\nThe moon is far away.\\n' | latelier index - --index ./fruit
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.cli.files import read_file
    from latelier.cli.output import print_json, printable, show_progress
    from latelier.cli.retrievers import open_or_make
    from latelier.errors import InvalidArgumentError

    if update and resume:
        raise InvalidArgumentError("--update replaces what is there, --resume skips it; give one of them.")
    documents = read_file(file, format)
    with open_or_make(folder, model, device, kind) as retriever:
        before = len(retriever)
        options: dict[str, Any] = {"batch_size": batch_size, "show_progress": show_progress()}
        if update:
            retriever.update(documents, **options)
        else:
            retriever.add(documents, skip_existing=resume, **options)
        counts = {"index": str(folder), "before": before, "documents": len(retriever)}
    if json_output:
        print_json(counts)
    else:
        typer.echo(f"{printable(str(folder))}: {counts['documents']:,} documents, {before:,} before.")
