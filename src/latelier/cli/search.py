"""``latelier search``: find the documents of an index for a query."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, TypeAlias

import typer

from latelier.cli.index_location import INDEX_HELP, open_index

__all__ = ["search"]


class Backend(str, Enum):
    """What encodes the query."""

    AUTO = "auto"
    ONNX = "onnx"
    TORCH = "torch"


class Mode(str, Enum):
    """How vectors and keywords are used."""

    VECTORS = "vectors"
    KEYWORDS = "keywords"
    HYBRID = "hybrid"
    RERANK = "rerank"


class Fusion(str, Enum):
    """How ``--mode hybrid`` combines vectors and keywords."""

    RELATIVE = "relative"
    RRF = "rrf"


Depth: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Of hybrid: documents that each side contributes; of rerank: that keywords find; at least k. "
        "Default: 2k, at least 100.",
    ),
]


def search(
    context: typer.Context,
    index: Annotated[str, typer.Argument(metavar="INDEX", help=INDEX_HELP)],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The query.")],
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
    filter_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time limit of the filter; 0 is no limit.")
    ] = 10.0,
    mode: Annotated[
        Mode,
        typer.Option(
            help="vectors (MaxSim), keywords (BM25, no model), hybrid (both), rerank (keywords, then MaxSim)."
        ),
    ] = Mode.VECTORS,
    fusion: Annotated[
        Fusion, typer.Option(help="Of hybrid: relative (weighted sum of scaled scores) or rrf (reciprocal ranks).")
    ] = Fusion.RELATIVE,
    weights: Annotated[tuple[float, float], typer.Option(metavar="VECTORS KEYWORDS", help="Weights of hybrid.")] = (
        0.5,
        0.5,
    ),
    depth: Depth = None,
    effort: Annotated[
        str | None, typer.Option(metavar="EFFORT", help="IVF: fast, balanced, exact, or a factor such as 2.")
    ] = None,
    nprobe: Annotated[int | None, typer.Option(min=1, help="IVF: inverted lists probed per query token.")] = None,
    candidates: Annotated[int | None, typer.Option(min=1, help="IVF: documents that enter the sign stage.")] = None,
    rerank: Annotated[
        int | None, typer.Option(min=1, help="IVF: documents scored by their codes after the sign stage.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model name or folder, or exported encoder; default: the index's own.")
    ] = None,
    backend: Annotated[
        Backend, typer.Option(help="What encodes the query; auto: the exported encoder (onnx) if there is one.")
    ] = Backend.AUTO,
    max_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory budget beside the model, such as 512MB or 1GB.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show which words matched.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: the best available.")] = None,
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
    from latelier.utils.reading import number_or_text

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
