"""``latelier train``: a late-interaction model from pairs, triplets or a teacher's scores."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Start", "train"]


class Start(str, Enum):
    """What is built around a dense model before training."""

    DENSE = "dense"
    COLBERT = "colbert"


def train(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Training data: a .jsonl file or a BEIR folder.")],
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder for the model; new or empty.")],
    *,
    model: Annotated[str | None, typer.Option(help="Name or folder; default: all-MiniLM-L6-v2.")] = None,
    start: Annotated[
        Start, typer.Option(help="Around a dense model: its token vectors as they are, or the whole ColBERT recipe.")
    ] = Start.DENSE,
    dims: Annotated[int | None, typer.Option(min=1, help="Dimensions per token; default: as the model has.")] = None,
    queries: Annotated[Path | None, typer.Option(help="Query texts, where FILE holds ids.")] = None,
    documents: Annotated[Path | None, typer.Option(help="Document texts, where FILE holds ids.")] = None,
    mine: Annotated[
        int, typer.Option(min=0, help="Hard negatives to find for each pair among all documents of FILE.")
    ] = 0,
    neighbours: Annotated[
        int,
        typer.Option(
            min=0, help="Pairs to put into a pair's batch whose documents it is confused with: hard, at no cost."
        ),
    ] = 0,
    epochs: Annotated[float, typer.Option(min=0.0, max=1e6, help="How often to go through the data.")] = 1.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Queries that are contrasted with one another.")] = 32,
    learning_rate: Annotated[float, typer.Option(min=0.0, max=1e6, help="Highest learning rate.")] = 3e-5,
    temperature: Annotated[float, typer.Option(min=0.0, help="Scores are divided by it.")] = 0.2,
    held_out: Annotated[int, typer.Option(min=0, help="Most queries to measure on instead; a tenth at most.")] = 200,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of the order and of what is held out.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: the best there is.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a late-interaction model and save it.

    \b
    FILE holds one row per line, of any of these forms:
      {"query": "...", "positive": "...", "negative": "optional, also a list"}
      {"query": "...", "pos": ["..."], "neg": ["..."], "pos_scores": [...], "neg_scores": [...]}
      {"query_id": 1, "document_ids": [...], "scores": [...]}   with --queries and --documents

    Rows with scores are distilled, others contrasted. Some queries are held out, to measure on before, during and
    after training; the model that did best on them is saved, and loads in plain sentence-transformers, too.

    \b
    Example:
      latelier train pairs.jsonl --neighbours 7 --output ./my-model
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.cli.output import print_json, printable
    from latelier.training.train_model import Settings, run

    settings = Settings(epochs, batch_size, learning_rate, temperature, mine, neighbours, held_out, seed)
    texts = {name: str(path) for name, path in (("queries", queries), ("documents", documents)) if path is not None}
    result = run(file, output, (model, start is Start.COLBERT, dims, device), texts, settings)
    if json_output:
        print_json(result)
        return
    typer.echo(f"{printable(str(output))}: trained on {result['rows']:,} rows, {result['steps']:,} steps.")
    for name, before in result["before"].items():
        typer.echo(
            f"  {name:12} {before:.3f} before, {result['after'][name]:.3f} after, on {result['held_out']} queries"
        )
