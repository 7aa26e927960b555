"""``latelier explain``: which words of a document matched which words of a query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latelier.cli.options import (
    DeviceOption,
    IndexArgument,
    JsonOption,
    QueryArgument,
    QueryBackend,
    QueryBackendOption,
    QueryModelOption,
)

if TYPE_CHECKING:
    from latelier.retrieve import Explanation

__all__ = ["explain"]


def explain(
    index: IndexArgument,
    text: QueryArgument,
    document: Annotated[str, typer.Argument(metavar="ID", help="Id of the document.")],
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with the heat map and the highlighted text.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the heat map as a picture: .png, .svg or .pdf.")
    ] = None,
    model: QueryModelOption = None,
    backend: QueryBackendOption = QueryBackend.AUTO,
    device: DeviceOption = None,
    json_output: JsonOption = False,
) -> None:
    """Show which words of a document matched which words of a query.

    Prints for each word of the query the word that it matched, and what this adds to the score.

    \b
    Example:
      printf 'Bananas are healthy.\\nThe moon is far away.\\n' | latelier index - --index ./fruit
      latelier explain ./fruit "unhealthy fruit" 0 --html fruit.html
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.cli.document_id import document_id
    from latelier.cli.opened_retriever import open_retriever
    from latelier.cli.output import print_json, printable, quiet_loading

    quiet_loading()
    with open_retriever(index, model=model, device=device, backend=backend.value) as retriever:
        explanation = retriever.explain(text, document_id(retriever.index, document))
    if figure is not None:  # first, as it fails for an ending that is no format
        explanation.save_figure(figure)
    if html is not None:
        explanation.to_html(html)
    if json_output:
        print_json(_as_json(explanation))
    else:
        typer.echo(printable(str(explanation), lines=True))


def _as_json(explanation: Explanation) -> dict[str, Any]:
    return {
        "id": explanation.id,
        "query": explanation.query,
        "text": explanation.text,
        "score": explanation.score,
        "words": [match._asdict() for match in explanation.words()],
        "query_spans": [span._asdict() for span in explanation.query_spans],
        "spans": [span._asdict() for span in explanation.spans],
        "tokens": [match._asdict() for match in explanation.tokens],
    }
