"""``latelier search``: ask an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["search"]


def search(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to look for.")],
    *,
    k: Annotated[int, typer.Option("-k", min=1, help="How many documents.")] = 10,
    filter: Annotated[
        str | None, typer.Option(metavar="SQL", help="A condition on metadata: \"year >= ? AND lang = 'en'\".")
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option(metavar="VALUE", help="Value of a ? in the filter, in order; repeatable.")
    ] = None,
    filter_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long the filter may take; 0 for as long as it needs.")
    ] = 10.0,
    model: Annotated[str | None, typer.Option(help="Name or folder; default: what the index names.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show which words matched which.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: the best there is.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Find the documents of an index that answer a text best.

    Rank, score, id and the beginning of the text; the higher the score, the better.

    \b
    Example:
      printf 'Bananas are healthy.\\nThe moon is far away.\\n' | latelier index - --index ./fruit
      latelier search ./fruit "unhealthy fruit" --explain
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.cli.files import number_or_text
    from latelier.cli.output import print_json, result_lines, results_json
    from latelier.cli.retrievers import open_existing

    with open_existing(folder, model, device) as retriever:
        values = [number_or_text(value) for value in parameter or ()]
        results = retriever.search(text, k, filter=filter, parameters=values, filter_timeout=filter_timeout or None)
        explanations = {result.id: retriever.explain(text, result.id) for result in results} if explain else {}
    if json_output:
        print_json({"query": text, "results": results_json(results, explanations)})
    elif results:
        typer.echo("\n".join(result_lines(results, explanations)))
    else:
        typer.echo("no document found.", err=True)
