"""``latelier why-not``: why a search does not find a document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from latelier.cli.options import (
    CandidatesOption,
    DepthOption,
    DeviceOption,
    EffortOption,
    FilterTimeoutOption,
    Fusion,
    IndexArgument,
    JsonOption,
    Mode,
    NprobeOption,
    QueryArgument,
    QueryBackend,
    QueryBackendOption,
    QueryModelOption,
    RerankOption,
    WeightsOption,
)

__all__ = ["why_not"]


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
    from latelier.cli.document_id import document_id
    from latelier.cli.filter_values import filter_values
    from latelier.cli.opened_retriever import open_retriever
    from latelier.cli.output import print_json, printable, quiet_loading
    from latelier.cli.unused_options import refuse_unused, refuse_unused_in_mode
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
