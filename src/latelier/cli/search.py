"""The commands search, explain and why-not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latelier.cli.folders import files_folder, open_current
from latelier.cli.locations import open_retriever
from latelier.cli.options import (
    DeviceOption,
    IdArgument,
    IndexArgument,
    JsonOption,
    MemoryOption,
    QueryArgument,
    QueryBackendOption,
    QueryModelOption,
    SameSpaceOption,
    SearchedArgument,
    SearchKeywords,
    TrustOption,
    count_option,
    document_id,
    refuse_unused,
    takes_search_options,
)
from latelier.cli.output import print_json, printable, result_lines, results_json

if TYPE_CHECKING:
    from latelier.retrieve import Explanation


@takes_search_options()
def search(
    context: typer.Context,
    index: SearchedArgument,
    words: Annotated[list[str], typer.Argument(metavar="TEXT", help="The query.")],
    *,
    k: Annotated[int, count_option("Maximum number of documents.")] = 10,
    search: SearchKeywords,
    model: QueryModelOption = None,
    same_space: SameSpaceOption = False,
    trust_remote_code: TrustOption = False,
    backend: QueryBackendOption = "auto",
    max_memory: MemoryOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show which words matched which.")] = False,
    place: Annotated[
        Path | None,
        typer.Option("--index", metavar="FOLDER", help="Where the index of a folder of files is, if not in the cache."),
    ] = None,
    device: DeviceOption = None,
    json_output: JsonOption = False,
) -> None:
    """Find the documents of an index, or of a folder of files, that match a query best.

    Prints rank, score (higher is better), id, and page, heading or line; below them the part of the text that matched.
    A folder of files is indexed first, in your cache or in --index; each search reads what has changed in it.

    \b
    Example:
      latelier search ./notes "when does the lease end?"
      printf 'Bananas are healthy.\\nThe moon is far away.\\n' | latelier index - ./fruit
      latelier search ./fruit unhealthy fruit --explain
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.retrieve.results import asked_if_meant

    text = " ".join(words)
    needs_model = search.get("mode") != "keywords"
    if not needs_model:
        cure = "has no effect on --mode keywords, as nothing is encoded"
        refuse_unused(context, ("model", "backend", "device", "explain"), cure)
    opening: dict[str, Any] = {
        "model": model,
        "device": device,
        "backend": backend,
        "trust_remote_code": trust_remote_code,
        "max_memory": max_memory,
        "load_model": needs_model,
    }
    folder = files_folder(index)
    if folder is None:
        refuse_unused(context, ("place",), "is where the index of a folder of files is, and this is none")
        opened: Any = open_retriever(index, same_space=same_space, **opening)
    else:
        refuse_unused(context, ("same_space",), "is for an index, and this is a folder of files")
        opened = open_current(folder, place, **opening)
    with opened as retriever:
        results = retriever.search(text, k, **search)
        if json_output:
            told: dict[str, Any] = {"query": text, "mode": results.mode}
            if results.did_you_mean:
                told["did_you_mean"] = results.did_you_mean
            print_json({**told, "results": results_json(results, explain=explain)})
        elif results:
            typer.echo("\n".join(result_lines(results, explain=explain)))
    if not results and not json_output:
        typer.echo("no document found.", err=True)
    for word, near in results.did_you_mean.items():
        typer.echo(asked_if_meant(word, near), err=True)
    if results.unread:
        typer.echo(f"the last {results.unread:,} tokens of the query were not read; see --whole-query.", err=True)


def explain(
    index: IndexArgument,
    text: QueryArgument,
    document: IdArgument,
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with the heat map and the highlighted text.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the heat map as a picture: .png, .svg or .pdf.")
    ] = None,
    model: QueryModelOption = None,
    same_space: SameSpaceOption = False,
    trust_remote_code: TrustOption = False,
    backend: QueryBackendOption = "auto",
    device: DeviceOption = None,
    json_output: JsonOption = False,
) -> None:
    """Show which words of a document matched which words of a query.

    Prints for each word of the query the word that it matched, and what this adds to the score.

    \b
    Example:
      printf 'Bananas are healthy.\\nThe moon is far away.\\n' | latelier index - ./fruit
      latelier explain ./fruit "unhealthy fruit" 0 --html fruit.html
    """  # noqa: D301 (\b keeps the lines of a block apart)
    with open_retriever(
        index,
        model=model,
        same_space=same_space,
        device=device,
        backend=backend,
        trust_remote_code=trust_remote_code,
    ) as retriever:
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


@takes_search_options()
def why_not(
    context: typer.Context,
    index: IndexArgument,
    text: QueryArgument,
    document: IdArgument,
    *,
    k: Annotated[int, count_option("Maximum number of documents of the search.")] = 10,
    search: SearchKeywords,
    model: QueryModelOption = None,
    same_space: SameSpaceOption = False,
    trust_remote_code: TrustOption = False,
    backend: QueryBackendOption = "auto",
    device: DeviceOption = None,
    json_output: JsonOption = False,
) -> None:
    """Show why a search misses a document, and what would find it.

    Prints the causes, and changes of the search or of the index that were tested.

    \b
    Example:
      printf 'Bananas are healthy.\\nThe moon is far away.\\n' | latelier index - ./fruit
      latelier why-not ./fruit "unhealthy fruit" 1 -k 1
    """  # noqa: D301 (\b keeps the lines of a block apart)
    with open_retriever(
        index,
        model=model,
        same_space=same_space,
        device=device,
        backend=backend,
        trust_remote_code=trust_remote_code,
    ) as retriever:
        report = retriever.why_not(text, document_id(retriever.index, document), k, **search)
    if json_output:
        print_json({**asdict(report), "differences": [each._asdict() for each in report.differences]})
    else:
        typer.echo(printable(str(report), lines=True))
