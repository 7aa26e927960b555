"""``latelier compare``: whether two runs differ beyond chance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from latelier.evaluation import Comparison

__all__ = ["compare"]


def compare(
    context: typer.Context,
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="The baseline's run: TREC or JSON Lines.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="The run to compare with it.")],
    *,
    qrels: Annotated[
        Path, typer.Option(metavar="PATH", help="Qrels: a file (TREC, BEIR's .tsv, JSON Lines) or a BEIR folder.")
    ],
    split: Annotated[str, typer.Option(help="Which qrels of a folder: test, dev, train, ...")] = "test",
    measure: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Measure such as nDCG@10; repeatable. Default: those of latelier evaluate."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials of the randomisation test.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the test.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON, with every query.")] = False,
) -> None:
    """Test whether two runs differ beyond chance, query by query.

    Prints, for each measure, both means, the mean difference with its 95% interval, the effect size, the p-value of a
    paired randomisation test, the same corrected by Holm's procedure for the number of measures, and how many queries
    the second run wins, ties and loses.

    \b
    Example:
      latelier compare bm25.trec hybrid.trec --qrels ./scifact --measure nDCG@10 --measure R@100
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier import evaluation
    from latelier.cli.output import print_json, printable
    from latelier.cli.unused_options import refuse_unused_split
    from latelier.evaluation.measures import DEFAULT_MEASURES

    refuse_unused_split(context, qrels)
    runs = evaluation.read_run(run_a), evaluation.read_run(run_b)
    judged = evaluation.read_qrels(qrels, split)
    names = (run_a.stem, run_b.stem) if run_a.stem != run_b.stem else (str(run_a), str(run_b))
    if names[0] == names[1]:  # a run compared with itself
        names = f"{names[0]} (a)", f"{names[1]} (b)"
    comparison = evaluation.compare(*runs, judged, measure or DEFAULT_MEASURES, names=names, trials=trials, seed=seed)
    if json_output:
        print_json(_values(comparison))
    else:
        typer.echo(printable(str(comparison), lines=True))


def _values(comparison: Comparison) -> dict[str, Any]:
    measures = {}
    for name, found in comparison.items():
        # JSON has no infinity: the effect size of equal differences.
        effect = found.effect_size if abs(found.effect_size) != float("inf") else None
        measures[name] = {
            "a": found.a,
            "b": found.b,
            "difference": found.difference,
            "interval": list(found.interval),
            "effect_size": effect,
            "p": found.p,
            "p_holm": found.p_holm,
            "wins": found.wins,
            "ties": found.ties,
            "losses": found.losses,
            "differences": found.differences,
        }
    return {"a": comparison.names[0], "b": comparison.names[1], "trials": comparison.trials, "measures": measures}
