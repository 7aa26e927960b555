"""The commands index and copy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from latelier.cli.locations import (
    as_parquet,
    check_existing,
    discarded_if_unused,
    open_index,
    open_target,
    parse_folder,
)
from latelier.cli.options import DeviceOption, JsonOption, Kind, MemoryOption, refuse_unused
from latelier.cli.output import print_json, printable, quiet_loading, show_progress
from latelier.errors import InvalidArgumentError, LatelierError, StorageError
from latelier.retrieve.readers import DocumentFormat
from latelier.utils.checks import short

if TYPE_CHECKING:
    from latelier.indexes import Index
    from latelier.retrieve import Passages, Retriever

Backend: TypeAlias = Literal["torch", "onnx", "auto"]
ComputeDtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16", "int8"]
BitsOption: TypeAlias = Annotated[
    int | None, typer.Option(help="Bits per number of a new ivf index: 8, 4, 2 or 1; default: as the source, or 8.")
]
ShardsOption: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Divide a new index among N shards, a process each (extra: ray)."),
]
SourceArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SOURCE", help="File, pipe or folder with the documents; - is standard input.")
]
FolderOption: TypeAlias = Annotated[
    Path,
    typer.Option("--index", parser=parse_folder, metavar="DIR", help="Folder of the index; made if missing."),
]
ModelOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Model name or folder; default: the index's own, or all-MiniLM-L6-v2 untrained.")
]
NewKindOption: TypeAlias = Annotated[
    Kind | None,
    typer.Option(help="Kind of a new index: flat (default) is exact; ivf is approximate, for many documents."),
]
FormatOption: TypeAlias = Annotated[
    DocumentFormat, typer.Option(help="Format of a file; auto: by its name, else by its first line.")
]
IdOption: TypeAlias = Annotated[str | None, typer.Option(metavar="FIELD", help="Field of the id; default: id or _id.")]
TextOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="FIELD,...", help="Fields of the text, joined by line ends; default: text.")
]
TitleOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Field of the title, put before the text; default: title.")
]
MetadataOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="FIELD,...", help="Fields of the metadata; default: all others.")
]
GlobOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Files of a folder to read, instead of text and Markdown; repeatable."),
]
PassagesOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="N", help="Cut texts into passages of at most N tokens, or auto: as the model reads."),
]
OverlapOption: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Tokens that passages share; default: an eighth.")
]
PoolFactorOption: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Pool about N token vectors of a document into one.")
]
PrecisionOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Number format of vectors until stored: float32, float16, bfloat16, int8.")
]
UpdateOption: TypeAlias = Annotated[
    bool, typer.Option("--update", help="Replace documents whose id is in the index, if they have changed.")
]
ResumeOption: TypeAlias = Annotated[
    bool, typer.Option("--resume", help="Skip documents whose id is in the index: continue an interrupted run.")
]
WorkersOption: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Encode in N processes, on all machines of a Ray cluster (extra: ray)."),
]
BackendOption: TypeAlias = Annotated[
    Backend | None,
    typer.Option(help="What encodes on a CPU: torch (default), onnx, or auto: onnx where it can."),
]
ComputeDtypeOption: TypeAlias = Annotated[
    ComputeDtype,
    typer.Option(help="What to encode in; int8 (by onnx, on a CPU) is kept for all searches of a new index."),
]
BatchSizeOption: TypeAlias = Annotated[int, typer.Option(min=1, help="Texts of maximum length per batch.")]


def index(
    context: typer.Context,
    source: SourceArgument,
    folder: FolderOption,
    *,
    model: ModelOption = None,
    kind: NewKindOption = None,
    format: FormatOption = "auto",
    id: IdOption = None,
    text: TextOption = None,
    title: TitleOption = None,
    metadata: MetadataOption = None,
    glob: GlobOption = None,
    passages: PassagesOption = None,
    overlap: OverlapOption = None,
    pool_factor: PoolFactorOption = None,
    precision: PrecisionOption = None,
    update: UpdateOption = False,
    resume: ResumeOption = False,
    device: DeviceOption = None,
    shards: ShardsOption = None,
    workers: WorkersOption = None,
    backend: BackendOption = None,
    compute_dtype: ComputeDtypeOption = "auto",
    max_memory: MemoryOption = None,
    batch_size: BatchSizeOption = 32,
    json_output: JsonOption = False,
) -> None:
    """Encode documents and add them to an index.

    \b
    SOURCE is a folder, of which each text and Markdown file is a document, or a file (.gz is decompressed):
      jsonl    {"id": "a", "title": "optional", "text": "...", "any other key": "is metadata"}
      csv      a header with a column "text"; "id", "title" and metadata as above; tabs in .tsv
      parquet  columns as of csv
      txt      one text per line; its id is the integer after the largest one in the index
      whole    the file is one text (.md); its id is the name of the file

    \b
    Example:
      latelier index ./notes --index ./notes-index
      latelier index papers.csv --index ./papers --id doi --text abstract,body --metadata year
      printf 'Bananas are healthy.\\nThe moon is far away.\\n' | latelier index - --index ./fruit
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.retrieve import Retriever
    from latelier.retrieve.model import open_with_model

    if source == "-":
        refuse_unused(context, ("glob",), "has no effect on standard input, only on a folder")
    if passages is None:
        refuse_unused(context, ("overlap",), "has no effect without --passages")
    if update and resume:
        raise typer.BadParameter(
            "it keeps stored documents, --update replaces them; give one of them.", param_hint="--resume"
        )
    fields = {"id": id, "text": _names(text), "title": title, "metadata": _names(metadata)}
    documents = _read(source, format, fields, glob or [])
    _check_not_empty(documents, glob or [])
    quiet_loading()
    options: dict[str, Any] = {"batch_size": batch_size, "show_progress": show_progress(), "workers": workers}
    options |= {"passages": _passages(passages, overlap), "pool_factor": pool_factor, "precision": precision}
    computing = {"backend": backend, "compute_dtype": None if compute_dtype == "auto" else compute_dtype}

    def open_or_make() -> Retriever:
        return Retriever(
            *open_with_model(
                folder,
                model,
                device=device,
                computing={name: value for name, value in computing.items() if value is not None},
                max_memory=max_memory,
                make=partial(_make_index, folder, kind or "flat", shards, max_memory),
                check=partial(check_existing, folder=folder, kind=kind, shards=shards),
            )
        )

    with discarded_if_unused(folder, open_or_make) as retriever:
        before = len(retriever)
        if update:
            retriever.update(documents, skip_unchanged=True, **options)
        else:
            retriever.add(documents, skip_existing=resume, **options)
        if not len(retriever):
            name = "standard input" if source == "-" else source
            raise InvalidArgumentError(
                f"nothing to index in {name}: it holds no document. Give one that does, or see --format."
            )
        _export_encoder(retriever)
        counts: dict[str, Any] = {"index": str(folder), "before": before, "documents": len(retriever)}
    skipped = getattr(documents, "skipped", None)  # of a folder
    if skipped is not None:
        counts["skipped"] = [{"path": path, "reason": reason} for path, reason in skipped]
    if json_output:
        print_json(counts)
    else:
        plural = "" if counts["documents"] == 1 else "s"
        typer.echo(f"{printable(str(folder))}: {counts['documents']:,} document{plural}, {before:,} before.")


def _read(source: str, format: DocumentFormat, fields: dict[str, Any], glob: list[str]) -> Iterable[Any]:
    from latelier.retrieve.readers import as_fields, read_document_file, read_documents

    try:
        named = as_fields(**fields)
    except InvalidArgumentError as error:
        raise typer.BadParameter(str(error)) from error
    if source != "-":
        if not os.path.lexists(source):
            raise typer.BadParameter(f"there is no file {short(source)}.", param_hint="SOURCE")
        return read_documents(source, format=format, glob=glob, **fields)
    if sys.stdin is None:
        raise StorageError("standard input is closed; name a file, or pipe the documents in.")
    # As bytes: the text layer decodes by the locale, and some locales let invalid bytes through.
    return read_document_file(sys.stdin.buffer, format, name="standard input", fields=named)


def _check_not_empty(documents: Iterable[Any], glob: list[str]) -> None:
    """Check that a folder has a file that can be read, before a model is loaded and an index is made."""
    from latelier.retrieve.readers import DocumentFolder

    if not isinstance(documents, DocumentFolder) or (len(documents) and next(iter(documents), None) is not None):
        return
    wanted = ", ".join(glob) or ".txt, .md and .markdown"
    found = f"all {len(documents.skipped):,} found were skipped" if documents.skipped else "there is none"
    raise InvalidArgumentError(
        f"nothing to index in the folder {str(documents.folder)!r}: looked for files {wanted} in it and its "
        f"sub-folders, without hidden ones, and {found}. --glob '*.rst' reads others, each as one "
        "document; give a .jsonl, .csv or .parquet file by its own name."
    )


def _passages(given: str | None, overlap: int | None) -> Passages | None:
    from latelier.retrieve.passages import LEAST_TOKENS, Passages

    if given is None:
        return None
    if given != "auto" and not (given.isdecimal() and len(given) < 10 and int(given) >= LEAST_TOKENS):
        raise typer.BadParameter(
            f"received {short(given)}; expected an integer of at least {LEAST_TOKENS}, or auto.",
            param_hint="--passages",
        )
    try:
        return Passages(None if given == "auto" else int(given), overlap)
    except InvalidArgumentError as error:
        raise typer.BadParameter(str(error), param_hint="--passages") from error


def _names(listed: str | None) -> list[str] | None:
    """Return the names in a list with commas; None if there is no list, and none if it is empty."""
    return None if listed is None else [name.strip() for name in listed.split(",")] if listed.strip() else []


def _export_encoder(retriever: Retriever) -> None:
    """Export the encoder for `latelier search`, if the extra 'onnx' is installed and the model can be exported."""
    from importlib.util import find_spec

    from latelier.retrieve.model import ModelIdentity, encoder_folder, is_exported

    if find_spec("onnxruntime") is None or not len(retriever):
        return
    try:
        stored = ModelIdentity.stored_in(retriever.index)
        if stored is not None and not is_exported(encoder_folder(stored)):
            typer.echo("Exporting the encoder for latelier search, once for this model ...", err=True)
        retriever.export_encoder()
    except LatelierError as error:
        typer.echo(f"Warning: searches will load the model with torch: {printable(str(error))}", err=True)


def _make_index(folder: Path, kind: Kind, shards: int | None, max_memory: str | None) -> Index:
    from latelier import indexes

    if shards is not None:
        return indexes.Sharded(folder, shards=shards, index=kind, max_memory=max_memory)
    return (indexes.Flat if kind == "flat" else indexes.IVF)(folder, max_memory=max_memory)


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Index or file to copy from, see below.")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Index or new file to copy to, see below; made if missing.")
    ],
    *,
    kind: Annotated[
        Kind | None, typer.Option(help="Kind of a new index in a folder, or of its shards; default: as the source.")
    ] = None,
    nbits: BitsOption = None,
    shards: ShardsOption = None,
    settings: Annotated[
        bool, typer.Option("--settings/--no-settings", help="Store the settings of the source, such as its model.")
    ] = True,
    json_output: JsonOption = False,
) -> None:
    """Copy an index to another one, or to or from a Parquet file.

    Nothing is encoded again. The target need not be empty. A new one gets the keyword index and the settings of the
    source, so searches load the same model. If a copy to an index is interrupted, the same command goes on.

    \b
    SOURCE and TARGET are each a folder, a file or a collection of Qdrant:
      FILE.parquet                           id, text, vectors and metadata as columns (extra: parquet)
      qdrant:FOLDER                          local mode; its pickles can run code, so only if you trust the folder
      qdrant+http://HOST:PORT/COLLECTION     a server, also qdrant+https; its key is read from QDRANT_API_KEY

    \b
    Example:
      printf 'Bananas are healthy.\\n' | latelier index - --index ./fruit
      latelier copy ./fruit ./fruit-ivf --kind ivf --nbits 4
      latelier copy ./fruit ./fruit.parquet
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier import indexes
    from latelier.indexes.copy import ParquetDocuments

    file, new = as_parquet(source), as_parquet(target)
    with ExitStack() as stack:
        given: Any = stack.enter_context(open_index(source)) if file is None else ParquetDocuments(file)
        if new is not None and (kind, nbits, shards) != (None, None, None):
            raise typer.BadParameter("a file has no --kind, --nbits and --shards; leave them out.", param_hint="TARGET")
        filled = new or stack.enter_context(open_target(target, kind, nbits, shards, like=given))
        report = indexes.copy_documents(file or given, filled, settings=settings, show_progress=show_progress())
    if json_output:
        print_json({**asdict(report), "kept": report.kept})
    else:
        typer.echo(printable(str(report)))
