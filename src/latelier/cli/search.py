"""Search, explain, why-not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latelier.cli.locations import open_index
from latelier.cli.options import (
    CandidatesOption,
    DepthOption,
    DeviceOption,
    EffortOption,
    FilterTimeoutOption,
    Fusion,
    IndexArgument,
    JsonOption,
    MemoryOption,
    Mode,
    NprobeOption,
    QueryArgument,
    QueryBackend,
    QueryBackendOption,
    QueryModelOption,
    RerankOption,
    WeightsOption,
)

if TYPE_CHECKING:
    from latelier.retrieve import Explanation

__all__ = ["explain", "search", "why_not"]


def search(
    context: typer.Context,
    index: IndexArgument,
    text: QueryArgument,
    *,
    k: Annotated[int, typer.Option("-k", min=1, help="Maximum number of documents.")] = 10,
    filter: Annotated[
        str | None, typer.Option(metavar="SQL", help="A condition on metadata: \"year >= ? AND lang = 'en'\".")
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE", help="Value of a ? in the filter, in order; repeatable. '\"1\"' is a text, 1 a number."
        ),
    ] = None,
    filter_timeout: FilterTimeoutOption = 10.0,
    mode: Annotated[
        Mode,
        typer.Option(
            help="vectors (MaxSim), keywords (BM25, no model), hybrid (both), rerank (keywords, then MaxSim)."
        ),
    ] = Mode.VECTORS,
    fusion: Annotated[
        Fusion, typer.Option(help="Of hybrid: relative (weighted sum of scaled scores) or rrf (reciprocal ranks).")
    ] = Fusion.RELATIVE,
    weights: WeightsOption = (0.5, 0.5),
    depth: DepthOption = None,
    effort: EffortOption = None,
    nprobe: NprobeOption = None,
    candidates: CandidatesOption = None,
    rerank: RerankOption = None,
    model: QueryModelOption = None,
    backend: QueryBackendOption = QueryBackend.AUTO,
    max_memory: MemoryOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show which words matched.")] = False,
    device: DeviceOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Find the documents of an index that match a query best.

    Prints rank, score, id and the beginning of the text; higher scores are better.

    \b
    Example:
      printf 'Bananas are healthy.\\nThe moon is far away.\\n' | latelier index - --index ./fruit
      latelier search ./fruit "unhealthy fruit" --explain
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.cli.locations import open_retriever
    from latelier.cli.options import filter_values, refuse_unused, refuse_unused_in_mode
    from latelier.cli.output import print_json, quiet_loading, result_lines, results_json
    from latelier.retrieve.model import checked_queries
    from latelier.retrieve.searching import find_results
    from latelier.utils.files import number_or_text

    refuse_unused_in_mode(context, mode.value)
    if filter is None:
        refuse_unused(context, ("parameter", "filter_timeout"), "has no effect without --filter")
    if mode is Mode.KEYWORDS and not explain:
        cure = "has no effect on --mode keywords without --explain, as nothing is encoded"
        refuse_unused(context, ("model", "backend", "device"), cure)
    quiet_loading()
    given = {"effort": effort and number_or_text(effort), "nprobe": nprobe, "candidates": candidates, "rerank": rerank}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options |= {"mode": mode.value, "fusion": fusion.value, "weights": weights, "depth": depth}
    options |= {"parameters": filter_values(parameter), "filter": filter, "filter_timeout": filter_timeout or None}
    if mode is Mode.KEYWORDS and not explain:  # needs no model, which takes most of the time of other searches
        with open_index(index, max_memory=max_memory) as opened:
            results, explanations = find_results(None, opened, checked_queries(text), k, **options)[0], {}
    else:
        computing: dict[str, Any] = {"model": model, "device": device, "backend": backend.value}
        with open_retriever(index, max_memory=max_memory, **computing) as retriever:
            results = retriever.search(text, k, **options)
            explanations = {result.id: retriever.explain(text, result.id) for result in results} if explain else {}
    if json_output:
        print_json({"query": text, "results": results_json(results, explanations)})
    elif results:
        typer.echo("\n".join(result_lines(results, explanations)))
    else:
        typer.echo("no document found.", err=True)


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
    from latelier.cli.locations import open_retriever
    from latelier.cli.options import document_id
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


def why_not(
    context: typer.Context,
    index: IndexArgument,
    text: QueryArgument,
    document: Annotated[str, typer.Argument(metavar="ID", help="Id of the document.")],
    *,
    k: Annotated[int, typer.Option("-k", min=1, help="Maximum number of documents of the search.")] = 10,
    filter: Annotated[
        list[str] | None, typer.Option(metavar="SQL", help="A condition on metadata; repeatable: all must hold.")
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE", help="Value of a ? in the filters, in order; repeatable. As in latelier search."),
    ] = None,
    filter_timeout: FilterTimeoutOption = 10.0,
    mode: Annotated[
        Mode, typer.Option(help="Mode of the search: vectors, keywords, hybrid or rerank; see latelier search.")
    ] = Mode.VECTORS,
    fusion: Annotated[Fusion, typer.Option(help="Of hybrid: relative or rrf.")] = Fusion.RELATIVE,
    weights: WeightsOption = (0.5, 0.5),
    depth: DepthOption = None,
    effort: EffortOption = None,
    nprobe: NprobeOption = None,
    candidates: CandidatesOption = None,
    rerank: RerankOption = None,
    model: QueryModelOption = None,
    backend: QueryBackendOption = QueryBackend.AUTO,
    device: DeviceOption = None,
    json_output: JsonOption = False,
) -> None:
    """Show why a search misses a document, and what would find it.

    Prints the causes, and changes of the search or of the index that were tested.

    \b
    Example:
      printf 'Bananas are healthy.\\nThe moon is far away.\\n' | latelier index - --index ./fruit
      latelier why-not ./fruit "unhealthy fruit" 1 -k 1
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.cli.locations import open_retriever
    from latelier.cli.options import document_id, filter_values, refuse_unused, refuse_unused_in_mode
    from latelier.cli.output import print_json, printable, quiet_loading
    from latelier.utils.files import number_or_text

    refuse_unused_in_mode(context, mode.value)
    if not filter:
        refuse_unused(context, ("parameter", "filter_timeout"), "has no effect without --filter")
    quiet_loading()
    given = {"effort": effort and number_or_text(effort), "nprobe": nprobe, "candidates": candidates, "rerank": rerank}
    with open_retriever(index, model=model, device=device, backend=backend.value) as retriever:
        report = retriever.why_not(
            text,
            document_id(retriever.index, document),
            k,
            mode=mode.value,
            fusion=fusion.value,
            weights=weights,
            depth=depth,
            filter=filter[0] if filter and len(filter) == 1 else filter or None,
            parameters=filter_values(parameter),
            filter_timeout=filter_timeout or None,
            **{name: value for name, value in given.items() if value is not None},
        )
    if json_output:
        print_json({**asdict(report), "differences": [each._asdict() for each in report.differences]})
    else:
        typer.echo(printable(str(report), lines=True))
