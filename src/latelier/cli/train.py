"""``latelier train``: train a late-interaction model on pairs, triplets or a teacher's scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from latelier.cli.options import DeviceOption, TrustOption, refuse_unused
from latelier.cli.output import print_json, printable, quiet_loading
from latelier.utils.files import is_folder

Start: TypeAlias = Literal["dense", "colbert"]


def train(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Training data: a file or a BEIR folder.")],
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder for the model; new or empty.")],
    *,
    model: Annotated[str | None, typer.Option(help="Name or folder; default: all-MiniLM-L6-v2.")] = None,
    start: Annotated[
        Start,
        typer.Option(help="For a dense model: use its token vectors, or add markers, query expansion and a new head."),
    ] = "dense",
    dims: Annotated[int | None, typer.Option(min=1, help="Dimensions per token; default: the model's own.")] = None,
    queries: Annotated[Path | None, typer.Option(help="File with query texts, if FILE holds ids.")] = None,
    documents: Annotated[Path | None, typer.Option(help="File with document texts, if FILE holds ids.")] = None,
    mine: Annotated[
        int, typer.Option(min=0, help="Hard negatives to mine for each pair among all documents of FILE.")
    ] = 0,
    neighbours: Annotated[
        int,
        typer.Option(min=0, help="Group each pair with N pairs whose positives are its mined hard negatives."),
    ] = 0,
    epochs: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1e6, help="Passes through the data; default: 1, or as many as make 100 steps, at most 20."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Queries per batch.")] = 32,
    learning_rate: Annotated[float, typer.Option(min=0.0, max=1e6, help="Peak learning rate.")] = 3e-5,
    temperature: Annotated[float, typer.Option(min=0.0, help="Divisor of the scores in the contrastive loss.")] = 0.2,
    validation: Annotated[
        Path | None, typer.Option(help="Rows to validate on, in the forms of FILE; default: split off.")
    ] = None,
    validation_queries: Annotated[
        int, typer.Option(min=0, help="Maximum number of validation queries (at most 10% of the data).")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the validation split and the order.")] = 0,
    head_only: Annotated[
        bool, typer.Option("--head-only", help="Only add a layer to --dims (128) that keeps the model's ranking.")
    ] = False,
    device: DeviceOption = None,
    trust_remote_code: TrustOption = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Train a late-interaction model and save it.

    \b
    FILE holds one row per line, as JSON or separated by tabs, or is Parquet, in any of these formats:
      {"query": "...", "positive": "...", "negative": "optional, also a list", "scores": [...]}
      {"query": "...", "pos": ["..."], "neg": ["..."], "pos_scores": [...], "neg_scores": [...]}
      {"query": "...", "positive_passages": [{"title": "...", "text": "..."}], "negative_passages": [...]}
      ["query", "positive", "negative", ...]
      {"query_id": 1, "document_ids": [...], "scores": [...]}   with --queries and --documents
    With --queries and --documents the other formats hold ids, too. Rows of more than a gigabyte are kept in a
    temporary file.

    Rows with scores are trained by distillation, others with a contrastive loss. Some queries are split off as a
    validation set, of which no positive is trained on; it is measured before, during and after training. The best
    checkpoint is saved; it also loads in plain sentence-transformers.

    \b
    Example:
      latelier train pairs.jsonl --neighbours 7 --output ./my-model
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.data import load_training_set

    _refuse_what_has_no_effect(context, file, head_only=head_only, has_validation=validation is not None)
    quiet_loading()
    data = load_training_set(file, queries=queries, documents=documents)
    held = None if validation is None else load_training_set(validation, queries=queries, documents=documents)
    from latelier.training import TrainingOptions  # after the data, as it imports for seconds
    from latelier.training import train as run_training

    options = TrainingOptions(
        start=start,
        dims=dims,
        device=device,
        trust_remote_code=trust_remote_code,
        mine=mine,
        neighbours=neighbours,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        temperature=temperature,
        validation_queries=validation_queries,
        seed=seed,
        head_only=head_only,
    )
    with _new_folder(output):
        report = run_training(
            data,
            output,
            model,
            validation=held,
            options=options,
            on_progress=lambda line: typer.echo(line, err=True),
            show_progress=True,
        )
    if json_output:
        print_json({**asdict(report), "model": str(report.model)})
    else:
        typer.echo(printable(str(report), lines=True))


def _refuse_what_has_no_effect(context: typer.Context, file: str, *, head_only: bool, has_validation: bool) -> None:
    """Raise an error if an option is given that another one, or the form of the data, makes useless."""
    if is_folder(Path(file)):
        names = ("queries", "documents")
        refuse_unused(context, names, f"has no effect on {file}, a folder, which has texts of its own")
    if head_only:
        trained = ("epochs", "batch_size", "learning_rate", "temperature")
        refuse_unused(context, trained, "has no effect with --head-only")
    if has_validation:
        refuse_unused(context, ("validation_queries",), "has no effect with --validation")


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Remove the folders that a ``with`` block makes for its output, if it fails and leaves them empty."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):  # one holds something: it stays, and so do those above it
            for each in made:
                each.rmdir()
        raise
