"""``latelier check``: recall against exact scores, and the integrity of all files, in one report."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from latelier.cli.index_location import open_index
from latelier.cli.options import IndexArgument, JsonOption

__all__ = ["check"]


def check(
    index: IndexArgument,
    *,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of hits to compare.")] = 10,
    queries: Annotated[int, typer.Option(min=1, help="Documents of the index to use as queries.")] = 20,
    json_output: JsonOption = False,
) -> None:
    """Check the recall of an index, and its files by their checksums.

    The recall is that of searches against exact scores. Prints what the index holds as well, and an effort if another
    one is better. Loads no model. The exit status is 1 if a file is damaged.

    \b
    Example:
      printf 'Bananas are healthy.\\n' | latelier index - --index ./fruit
      latelier check ./fruit
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.cli.info import index_facts, print_facts
    from latelier.cli.output import print_json, printable
    from latelier.errors import CorruptedIndexError

    with open_index(index) as opened:
        files = opened.verify()
        facts = index_facts(opened, index)
        recall, failure = None, ""
        try:
            recall = opened.check(k, queries=queries)
        except CorruptedIndexError as error:
            failure = str(error)
    if json_output:
        integrity = {"files": files.files, "damages": [asdict(damage) for damage in files.damages]}
        print_json({**facts, "recall": recall and asdict(recall), "integrity": integrity})
    else:
        summary, *damages = str(files).splitlines()
        print_facts({**facts, "recall": recall or f"not measured: {failure}", "files": summary})
        for line in damages:
            typer.echo(printable(line))
        if facts.get("removed"):
            typer.echo(f"compact() frees the vectors of {facts['removed']:,} removed documents.")
    if not files.is_whole:
        raise typer.Exit(1)
