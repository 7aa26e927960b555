"""The commands index and copy."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from latelier import indexes
from latelier.cli.locations import (
    as_parquet,
    check_bits,
    check_existing,
    discarded_if_unused,
    make_index,
    open_index,
    open_target,
    parse_folder,
)
from latelier.cli.options import (
    DeviceOption,
    JsonOption,
    MemoryOption,
    ModelOption,
    TrustOption,
    refuse_unused,
)
from latelier.cli.output import print_json, printable, quiet_loading
from latelier.errors import InvalidArgumentError, LatelierError, StorageError
from latelier.indexes.ivf.layout import BITS, FOLDER_BITS
from latelier.indexes.results import stored_cut
from latelier.reading.folders import DocumentFolder, DocumentFormat, read_document_file, read_documents
from latelier.reading.records import DocumentFields, FileDocuments, OnProblem, Pages, Reading
from latelier.retrieve.passages import LEAST_TOKENS, DocumentSettings, Passages
from latelier.retrieve.write_options import WRITE_DEFAULTS, WRITE_OPTIONS
from latelier.utils.checks import format_bytes, is_count, short
from latelier.utils.files import number_or_text
from latelier.utils.misc import needs_extra

if TYPE_CHECKING:
    from latelier.indexes import Index
    from latelier.retrieve import Retriever, Synchronised

Backend: TypeAlias = Literal["torch", "onnx", "auto"]
ComputeDtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16", "int8"]
NewBitsOption: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Bits per number of a new index: 8, 4, 2 (default) or 1.")
]
NewExactOption: TypeAlias = Annotated[
    bool, typer.Option("--exact", help="Make a new index of exact vectors, in float16: several times as large.")
]
ShardsOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Divide a new index among N shards, a process each (extra: ray); default: undivided."
    ),
]
SourceArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SOURCE", help="File, pipe or folder with the documents; - is standard input.")
]
FolderArgument: TypeAlias = Annotated[
    Path, typer.Argument(parser=parse_folder, metavar="INDEX", help="Folder of the index; made if missing.")
]
FormatOption: TypeAlias = Annotated[
    DocumentFormat, typer.Option(help="Format of a file; auto: by its name, else by its first line.")
]
IdOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FIELD", help="Field of the id; default: id or _id, else docno, docid, doc_id, pid."),
]
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
    typer.Option(metavar="PATTERN", help="Files of a folder to read, instead of all known formats; repeatable."),
]
PassagesOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="N", help=WRITE_OPTIONS["passages"].shell_help),
]
OverlapOption: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Tokens that passages share; default: an eighth.")
]
PoolFactorOption: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", min=WRITE_OPTIONS["pool_factor"].least, help=WRITE_OPTIONS["pool_factor"].help),
]
PrecisionOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help=WRITE_OPTIONS["precision"].help),
]
RemoveOption: TypeAlias = Annotated[
    bool, typer.Option("--remove/--no-remove", help="Remove documents of files that the folder does not hold any more.")
]
MovedOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--moved-from", metavar="PATH", help="The folder or file, indexed before, that was moved to SOURCE."),
]
WatchOption: TypeAlias = Annotated[
    bool, typer.Option("--watch", help="Go on: bring it up to date whenever the source changes (extra: files).")
]
EncodingOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="Encoding of text and CSV files; default: detected.")
]
DelimiterOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="CHARACTER", help="Between the cells of a CSV file; default: detected.")
]
ProblemOption: TypeAlias = Annotated[
    OnProblem, typer.Option(help="Faulty lines and rows: stop, or skip them. Those without a text are always skipped.")
]
PagesOption: TypeAlias = Annotated[
    Pages,
    typer.Option(help="PDF and pictures: texts, or images of pages for a model that reads them (extra: images)."),
]
WorkersOption: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", min=WRITE_OPTIONS["workers"].least, help=WRITE_OPTIONS["workers"].help),
]
BackendOption: TypeAlias = Annotated[
    Backend | None,
    typer.Option(help="What encodes on a CPU: torch (default), onnx, or auto: onnx where it can."),
]
ComputeDtypeOption: TypeAlias = Annotated[
    ComputeDtype,
    typer.Option(
        help="What to encode in; int8 (by onnx, on a CPU) is kept for all searches of a new index. auto: int8 for the "
        "default model in a new index where there is no GPU, else float32 or bfloat16."
    ),
]
BatchSizeOption: TypeAlias = Annotated[
    int, typer.Option(min=WRITE_OPTIONS["batch_size"].least, help=WRITE_OPTIONS["batch_size"].help)
]


def index(
    context: typer.Context,
    source: SourceArgument,
    folder: FolderArgument,
    *,
    model: ModelOption = None,
    trust_remote_code: TrustOption = False,
    bits: NewBitsOption = None,
    exact: NewExactOption = False,
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
    remove: RemoveOption = True,
    moved_from: MovedOption = None,
    watch: WatchOption = False,
    encoding: EncodingOption = None,
    delimiter: DelimiterOption = None,
    on_problem: ProblemOption = "stop",
    pages: PagesOption = "texts",
    device: DeviceOption = None,
    shards: ShardsOption = None,
    workers: WorkersOption = None,
    backend: BackendOption = None,
    compute_dtype: ComputeDtypeOption = "auto",
    max_memory: MemoryOption = None,
    batch_size: BatchSizeOption = WRITE_DEFAULTS["batch_size"],
    json_output: JsonOption = False,
) -> None:
    """Encode documents, and bring an index up to date with them: only what is new or changed is encoded.

    \b
    SOURCE is a folder or a file (.gz is decompressed):
      whole    one text: Markdown, HTML, PDF and sheets (extra: files), Office, EPUB, mail, notebooks, source code, or
               any other text; in a folder also .txt, and each file has its path as the id
      jsonl    {"id": "a", "title": "optional", "text": "...", "any other key": "is metadata"}; also a JSON array
      csv      a header with a column "text"; "id", "title" and metadata as above
      tsv      as csv, with tabs; also without a header: id, text, title
      trec     TREC's SGML: <DOC>, <DOCNO>, ...
      parquet  columns as of csv
      txt      one text per line; its id is the integer after the largest one in the index

    Of a folder, hidden files and what .gitignore and .latelierignore name are left out.

    \b
    Example:
      latelier index ./notes ./notes-index
      latelier index papers.csv ./papers --id doi --text abstract,body --metadata year
      printf 'Bananas are healthy.\\nThe moon is far away.\\n' | latelier index - ./fruit
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.retrieve.query_model import find_index

    if source == "-":
        refuse_unused(context, ("glob", "watch", "moved_from"), "has no effect on standard input, only on a folder")
    check_bits(bits, exact)
    if passages is None:
        refuse_unused(context, ("overlap",), "has no effect without --passages")
    target = folder
    fields = {"id": id, "text": _names(text), "title": title, "metadata": _names(metadata)}
    reading = {"encoding": encoding, "delimiter": delimiter, "on_problem": on_problem, "pages": pages}
    read = partial(_read, source, format, glob or [], fields, reading)
    documents = read()
    changes = changes_of(source) if watch else ()
    check_has_files(documents)
    quiet_loading()
    options: dict[str, Any] = {"batch_size": batch_size, "show_progress": True, "workers": workers}
    options |= {"passages": _passages(passages, overlap), "pool_factor": pool_factor, "precision": precision}
    make = partial(make_compact, target, bits, exact, shards, max_memory=max_memory)

    def open_or_make() -> Retriever:
        typer.echo("Opening the index and its model ...", err=True)
        index = find_index(target, max_memory=max_memory)
        if index is not None:
            check_existing(index, target, bits=bits, exact=exact, shards=shards)
        return writing_retriever(
            index,
            make,
            model,
            device=device,
            options=_computing(backend, compute_dtype, workers if index is None else None),
            trusts_code=trust_remote_code,
        )

    with discarded_if_unused(target, open_or_make) as retriever:
        report = synchronise(retriever, documents, remove=remove, moved_from=moved_from, **options)
        if not len(retriever):
            name = "standard input" if source == "-" else source
            raise InvalidArgumentError(
                f"nothing to index in {name}: it holds no document. Give one that does, or see --format."
            )
        export_encoder(retriever)
        if report.new or report.changed:
            tell_languages(retriever)
            learn_weak(retriever)
        _report(retriever, target, report, documents, as_json=json_output)
        for _ in changes:
            keep_current(retriever, read, remove=remove, **options)


def _computing(backend: Backend | None, compute_dtype: ComputeDtype, workers: int | None) -> dict[str, Any]:
    """Return what encodes, and in what; with `workers` (of a new index) it is torch, unless the user says more."""
    computing: dict[str, Any] = {}
    if workers is not None and compute_dtype == "auto":
        computing["backend"] = "torch"
    if backend is not None:
        computing["backend"] = backend
    if compute_dtype != "auto":
        computing["compute_dtype"] = compute_dtype
    return computing


def writing_retriever(index: Index | None, make: Callable[[], Index], model: str | None, **options: Any) -> Retriever:
    """Return a retriever that fills an index; one is made if there is none and the model can be loaded."""
    from latelier.retrieve.choice import Asked
    from latelier.retrieve.query_model import open_model
    from latelier.retrieve.retriever import retriever_of

    try:
        opened = open_model(Asked(model, purpose="fill", **options), index)
        if index is not None and model is None:  # the model is loaded if there is something to write
            return retriever_of(lambda: opened, index)
        opened.prepare()
        if index is None:
            index = make()
        return retriever_of(opened, index)
    except BaseException:
        if index is not None:
            index.close()
        raise


def make_compact(folder: Path, bits: int | None, exact: bool, shards: int | None, **options: Any) -> Index:
    """Make an index as the options say: without any, of `FOLDER_BITS`."""
    if exact:
        return make_index(folder, None, shards, dtype="float16", **options)
    return make_index(folder, bits or FOLDER_BITS, shards, **options)


def _report(
    retriever: Retriever, target: Path, report: Synchronised, documents: FileDocuments, *, as_json: bool
) -> None:
    if documents.taken.records:
        typer.echo(f"{printable(str(documents.taken))}.", err=True)
    index: Any = retriever.index
    count = len(retriever)
    size = index.statistics().bytes or 0
    if as_json:
        skipped = [each._asdict() for each in report.skipped]
        print_json({"index": str(target), "documents": count, "bytes": size, **report._asdict(), "skipped": skipped})
        return
    plural = "" if count == 1 else "s"
    found = f"{count:,} document{plural} ({report}), {searchable(retriever)}; {size / 1e6:,.1f} MB"
    typer.echo(f"{printable(str(target))}: {found}.")
    if size > _LARGE:
        typer.echo(_smaller(index, target, size))


# Milliseconds after which a watched folder is looked at even if the system has told of no change: what was changed
# during a run, or on a drive of another machine.
_LOOK = 30_000


def changes_of(source: str) -> Iterator[object]:
    """Return an iterator that goes on whenever a folder or a file, or an index in it, may have changed."""
    with needs_extra("--watch", "files"):
        from watchfiles import watch

    options: dict[str, Any] = {"rust_timeout": _LOOK, "yield_on_timeout": True, "ignore_permission_denied": True}
    return _changes(partial(watch, Path(source).resolve(), **options))


def _changes(watch: Callable[[], Iterator[object]]) -> Iterator[object]:
    """Go on after a failure, such as of a folder that is away, or of more folders than the system can watch."""
    while True:
        try:
            yield from watch()
            return
        except Exception as error:  # noqa: BLE001 (it may be gone the next time)
            typer.echo(f"Warning: looking every {_LOOK // 1000} seconds: {printable(str(error))}", err=True)
        sleep(_LOOK / 1000)
        yield None


def keep_current(retriever: Retriever, read: Callable[[], FileDocuments], **options: Any) -> None:
    """Synchronise an index once more; a failure, such as of a folder that is being moved, is a warning."""
    try:
        report = synchronise(retriever, read(), **options)
        if report.new or report.changed or report.renamed or report.removed:
            typer.echo(f"{len(retriever):,} documents ({report}).", err=True)
    except (LatelierError, typer.BadParameter) as error:
        typer.echo(f"Warning: {printable(str(error))}", err=True)
    except Exception as error:  # noqa: BLE001 (the next change may be read, and nobody sees what ends a thread)
        typer.echo(f"Warning: not up to date: {printable(f'{type(error).__name__}: {error}')}", err=True)


def synchronise(retriever: Retriever, documents: FileDocuments, **options: Any) -> Synchronised:
    """Bring an index up to date; if the user interrupts it, say what is stored."""
    try:
        return retriever.synchronise(documents, **options)
    except (KeyboardInterrupt, SystemExit):  # the latter: SIGTERM
        typer.echo(f"Interrupted: {len(retriever):,} of the documents are stored; the same command goes on.", err=True)
        raise


_LOOKED_AT = 1000  # documents of which the language is looked at
_MULTILINGUAL = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"


def tell_languages(retriever: Retriever) -> None:
    """Say how many documents seem to be in another language than English, if the model is the one that is known."""
    from latelier.models.location import DEFAULT_MODEL
    from latelier.retrieve.identity import ModelIdentity
    from latelier.retrieve.languages import language_of

    stored = ModelIdentity.stored_in(retriever.index)
    if stored is None or stored.name != DEFAULT_MODEL:
        return
    documents = retriever.documents
    ids = documents.ids()
    looked_at = ids[:: -(-len(ids) // _LOOKED_AT)]
    found = Counter(language_of(record.text or "") for record in documents.get(looked_at))
    others = [name for name, _ in found.most_common() if name not in (None, "English")]
    if others:
        count = sum(found[name] for name in others)
        name = DEFAULT_MODEL.rpartition("/")[2]
        typer.echo(
            f"{count:,} of {len(looked_at):,} documents seem to be {' or '.join(map(str, others))}; {name} reads "
            f"English: fill a new index with --model {_MULTILINGUAL}",
            err=True,
        )


# How many times as many documents an index has to have until what is weak is estimated again.
_GROWTH = 2


def learn_weak(retriever: Retriever) -> None:
    """Estimate which results are weak, for a new index and for one that has grown; it may be too small."""
    from latelier.retrieve.weak import WeakBars

    before = WeakBars.stored_in(retriever.index)
    if before is not None and len(retriever) < _GROWTH * before.documents:
        return
    why = ""
    if before is not None:
        why = f" again, as the index has grown from {before.documents:,} documents"
    typer.echo(f"Learning which results are weak{why} ...", err=True)
    with suppress(InvalidArgumentError):
        retriever.learn_weak()


# Bytes from which on an index says what is smaller.
_LARGE = 100_000_000


def _smaller(index: Index, folder: Path, size: int) -> str:
    """Say what fewer bits and pooled vectors would take in place of `size` bytes."""
    from latelier.indexes.ivf.codec import Codec
    from latelier.indexes.stored_index import token_bytes

    def bytes_of(bits: int) -> int:
        return sum(token_bytes(Codec(bits, index.dim or 1).layout, 1).values())

    tokens = index.statistics().tokens
    held = getattr(index, "nbits", None)
    stored = 2 * (index.dim or 1) if held is None else bytes_of(held)
    others = max(0, size - tokens * stored)  # texts, metadata, keywords
    said = []
    for bits in BITS:
        if bits < (held or 16):
            said.append(f"{bits} bit{'' if bits == 1 else 's'} {format_bytes(others + tokens * bytes_of(bits))}")
    copied = f"latelier copy {printable(str(folder))} NEW --bits N: {', '.join(said)}. "
    pooled = format_bytes(others + tokens * stored // 2)
    return f"Smaller: {copied if said else ''}A new index with --pool-factor 2: {pooled}."


def searchable(retriever: Retriever) -> str:
    """Say which part of the texts of an index searches compare."""
    if DocumentSettings.stored_in(retriever.index).passages is not None:
        count = retriever.index.statistics().passages
        return f"in {count:,} passage{'' if count == 1 else 's'}; all of their text is searchable"
    length = retriever.query_model.limits("document")[1]
    if length is None:
        return "whole"
    cut = stored_cut(retriever.index.settings)
    if not cut:
        return "all of their text is searchable"
    return f"{cut:,} of them longer than the first {length:,} tokens, which are searchable"


def _read(
    source: str, format: DocumentFormat, glob: list[str], fields: dict[str, Any], reading: dict[str, Any]
) -> FileDocuments:
    try:
        named = DocumentFields.of(**fields)
    except InvalidArgumentError as error:
        raise typer.BadParameter(str(error)) from error
    if source != "-":
        if not os.path.lexists(source):
            raise typer.BadParameter(f"there is no file {short(source)}.", param_hint="SOURCE")
        return read_documents(source, format=format, glob=glob, **fields, **reading)
    if sys.stdin is None:
        raise StorageError("standard input is closed; name a file, or pipe the documents in.")
    # As bytes: the text layer decodes by the locale, and some locales let invalid bytes through.
    return read_document_file(sys.stdin.buffer, format, name="standard input", reading=Reading(named, **reading))


def check_has_files(documents: FileDocuments) -> None:
    """Check that a folder has a file that can be read, before a model is loaded and an index is made."""
    if isinstance(documents, DocumentFolder) and not len(documents):
        wanted = ", ".join(documents.glob) or "of known formats"
        if documents.skipped:
            found = f"all {len(documents.skipped):,} found were skipped"
        else:
            found = "there is none"
        documents.warn()
        raise InvalidArgumentError(
            f"nothing to index in the folder {str(documents.folder)!r}: looked for files {wanted} in it and its "
            f"sub-folders, without hidden and ignored ones, and {found}. --glob '*.xyz' reads others as text."
        )


def _passages(given: str | None, overlap: int | None) -> Passages | Literal[False] | None:
    if given is None or given == "none":
        if given is None:
            return None
        return False
    late = given == "late" or given.startswith("late:")
    number = given.removeprefix("late").removeprefix(":")
    tokens: Any = None
    if number and number != "auto":
        tokens = number_or_text(number)
    if tokens is not None and not is_count(tokens, LEAST_TOKENS):
        expected = f"a number of tokens from {LEAST_TOKENS} on, auto, late, late:N or none"
        raise typer.BadParameter(f"received {given!r}; expected {expected}.", param_hint="--passages")
    return Passages(tokens, overlap, late)


def _names(listed: str | None) -> list[str] | None:
    """Return the names in a list with commas; None if there is no list, and none if it is empty."""
    if listed is None:
        return None
    if listed.strip():
        return [name.strip() for name in listed.split(",")]
    return []


def export_encoder(retriever: Retriever) -> None:
    """Export the encoder for `latelier search`, if the extra 'onnx' is installed and the model can be exported."""
    from latelier.retrieve.encoders import LoadedEncoder
    from latelier.retrieve.identity import ModelIdentity
    from latelier.retrieve.query_model import encoder_folder, is_exported

    if find_spec("onnxruntime") is None or not len(retriever):
        return
    try:
        stored = ModelIdentity.stored_in(retriever.index)
        if stored is not None:
            if is_exported(encoder_folder(stored)) or retriever.query_model.reads_pictures:
                return
            if isinstance(retriever.query_model.documents, LoadedEncoder):  # else it is exported already
                typer.echo("Exporting the encoder for latelier search, once for this model ...", err=True)
        retriever.export_encoder()
    except LatelierError as error:
        typer.echo(f"Warning: searches will load the model with torch: {printable(str(error))}", err=True)


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Index or file to copy from, see below.")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Index or new file to copy to, see below; made if missing.")
    ],
    *,
    bits: Annotated[
        int | None,
        typer.Option(metavar="N", help="Bits per number of a new index: 8, 4, 2 or 1; default: as the source."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Make a new index of exact vectors; default: as the source.")
    ] = False,
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
      printf 'Bananas are healthy.\\n' | latelier index - ./fruit
      latelier copy ./fruit ./fruit-exact --exact
      latelier copy ./fruit ./fruit.parquet
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.indexes.copy import ParquetDocuments

    check_bits(bits, exact)
    file = as_parquet(source)
    new = as_parquet(target)
    with ExitStack() as stack:
        given: Any = stack.enter_context(open_index(source)) if file is None else ParquetDocuments(file)
        if new is not None and (bits, exact, shards) != (None, False, None):
            raise typer.BadParameter("a file has no --bits, --exact and --shards; leave them out.", param_hint="TARGET")
        filled = new or stack.enter_context(open_target(target, bits, exact, shards, like=given))
        report = indexes.copy_documents(file or given, filled, settings=settings, show_progress=True)
    if json_output:
        print_json({**asdict(report), "kept": report.kept})
    else:
        typer.echo(printable(str(report)))
