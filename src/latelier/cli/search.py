"""``latelier search``: find the documents of an index for a query."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from latelier.cli.index_location import open_index
from latelier.cli.options import (
    CandidatesOption,
    DepthOption,
    DeviceOption,
    EffortOption,
    FilterTimeoutOption,
    Fusion,
    IndexArgument,
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

__all__ = ["search"]


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
    from latelier.cli.filter_values import filter_values
    from latelier.cli.opened_retriever import open_retriever
    from latelier.cli.output import print_json, quiet_loading, result_lines, results_json
    from latelier.cli.unused_options import refuse_unused, refuse_unused_in_mode
    from latelier.retrieve.queries import checked_queries
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
