"""The commands info, check and demo."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latelier.cli.folders import cached_indexes, own_index
from latelier.cli.locations import open_index, open_retriever
from latelier.cli.options import DeviceOption, IndexArgument, JsonOption, OptionalIndexArgument, count_option
from latelier.cli.output import (
    bold,
    is_terminal,
    print_json,
    printable,
    quiet_loading,
    result_lines,
    results_json,
)
from latelier.errors import CorruptedIndexError, IndexFormatError
from latelier.reading.records import SkipReason
from latelier.utils.checks import format_bytes

if TYPE_CHECKING:
    from latelier.demo import Session
    from latelier.indexes import Index
    from latelier.retrieve import Results
    from latelier.retrieve.identity import ModelIdentity


# A server of Qdrant does not tell them.
_SIZES = ("bytes", "bytes_per_document", "bytes_per_token")


def info(
    index: OptionalIndexArgument = None,
    *,
    skipped: Annotated[
        bool, typer.Option("--skipped", help="List the files that were left out or read in part, and why.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Show what an index holds, without loading its model; without one, the indexes of folders in your cache.

    \b
    Example:
      printf 'Bananas are healthy.\\n' | latelier index - ./fruit
      latelier info ./fruit
    """  # noqa: D301 (\b keeps the lines of a block apart)
    if index is None:
        if skipped:
            raise typer.BadParameter("missing: name the index.", param_hint="INDEX")
        _print_cached(as_json=json_output)
        return
    index = own_index(index)
    if skipped:
        _print_skipped(index, as_json=json_output)
        return
    with open_index(index) as opened:
        facts = index_facts(opened, index)
    if json_output:
        print_json(facts)
        return
    if facts["encoder"] is None and facts["model"] is not None:
        facts["encoder"] = _advise(facts["model"])
    print_facts(facts)


def _print_cached(*, as_json: bool) -> None:
    """List the indexes that searches of folders have made."""
    found = cached_indexes()
    if as_json:
        print_json({"indexes": [each._asdict() for each in found]})
        return
    for each in found:
        held = f"{each.documents:,} documents, {format_bytes(each.bytes)}"
        typer.echo(f"{bold(printable(each.folder or 'of no folder'))}: {held} in {printable(each.place)}")
    if not found:
        typer.echo("No folder was searched that has no index of its own; name an index.", err=True)


def _print_skipped(location: str, *, as_json: bool) -> None:
    """Print what the last runs have said of files that were left out or read in part."""
    from latelier.retrieve.synchronisation import skipped_files

    with open_index(location) as opened:
        found = skipped_files(opened)
    if as_json:
        print_json(
            {
                "index": location,
                "skipped": [{"source": root, **each._asdict()} for root, files in found.items() for each in files],
            }
        )
        return
    for root, files in found.items():
        in_part = sum(each.reason is SkipReason.UNREAD for each in files)
        typer.echo(f"{bold(printable(root))}: {len(files) - in_part:,} left out, {in_part:,} read in part")
        for each in files:
            typer.echo(f"  {printable(each.path)}: {printable(each.message)}")
    if not found:
        typer.echo("No file was skipped: the index was not filled from a folder or a file.", err=True)


def index_facts(index: Index, location: Path | str) -> dict[str, Any]:
    """Return what an index holds, by name, as JSON values; `location` is as the user spells it."""
    from latelier.indexes.sharded import Sharded
    from latelier.retrieve.identity import ModelIdentity

    try:
        model = ModelIdentity.stored_in(index)
    except IndexFormatError as error:
        typer.echo(f"Warning: {printable(str(error))}", err=True)
        model = None
    facts: dict[str, Any] = {"index": str(location), "kind": type(index).__name__, **_counts(index)}
    facts["dim"] = index.dim
    facts["bits"] = index.nbits or {"float32": 32, "float16": 16}[index.dtype]
    if isinstance(index, Sharded):
        facts["shards"] = index.shards
    held = replace(index.statistics(), documents=facts["documents"])  # not passages
    facts |= {"cut": held.cut, "bytes": held.bytes, "tokens": held.tokens, "removed": held.removed}
    ratios = {"bytes_per_document": held.bytes_per_document, "bytes_per_token": held.bytes_per_token}
    facts |= {name: None if ratio is None else round(ratio) for name, ratio in ratios.items()}
    per_text = held.bytes_per_text_byte
    facts["bytes_per_text_byte"] = round(per_text, 1) if per_text else None
    facts |= {"texts": held.has_texts, "metadata": held.has_metadata, "keywords": index.tokenizer}
    facts["searches"] = "words and vectors" if index.has_words else "vectors"
    return {
        **facts,
        "model": model and model.name,
        "model_options": model.options if model else {},
        "encoder": _encoder(model),
    }


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print one fact per line."""
    width = max(map(len, facts))
    for name, value in facts.items():
        missing = "unknown" if name in _SIZES else "-"
        if isinstance(value, bool):
            if value:
                shown = "yes"
            else:
                shown = "no"
        else:
            shown = str(value or missing)
        if name in _SIZES and value is not None:
            shown = format_bytes(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            shown = f"{value:,}"
        typer.echo(f"{bold(f'{name:{width}}')} {printable(shown)}")


def _counts(index: Index) -> dict[str, int]:
    """Return the number of documents, and of passages if there are any."""
    passages = index.statistics().passages
    return {"documents": len(index)} | ({"passages": passages} if passages else {})


def _advise(name: str) -> str:
    """Say what encodes queries where the model of this name is not exported, and what to do for a faster start."""
    from latelier.retrieve.query_model import is_exported

    # Looking at \\host\share on Windows sends the user's credentials there.
    if not name.startswith(("//", "\\\\", "\\/", "/\\")) and is_exported(name):
        return "the model is an exported encoder, which searches open if it is given with --model"
    if find_spec("onnxruntime") is None:
        return 'torch; pip install "latelier[onnx]" and latelier index make search start in a second'
    return "torch; latelier index exports the encoder, with which search starts in a second"


def _encoder(model: ModelIdentity | None) -> str | None:
    """Return the folder of the exported encoder that searches use; None if they load the model."""
    from latelier.retrieve.query_model import encoder_folder, is_exported

    if model is None or find_spec("onnxruntime") is None:
        return None
    folder = encoder_folder(model)
    if is_exported(folder):
        return str(folder)
    return None


def check(
    index: IndexArgument,
    *,
    k: Annotated[int, count_option("Number of hits to compare.")] = 10,
    queries: Annotated[int, typer.Option(min=1, help="Documents of the index to use as queries.")] = 20,
    scores: Annotated[bool, typer.Option("--scores", help="Estimate a --min-mean-score too, with the model.")] = False,
    share: Annotated[float, typer.Option(help="Of --scores: questions without an answer that may find one.")] = 0.05,
    json_output: JsonOption = False,
) -> None:
    """Check the recall of an index, and its files by their checksums.

    The recall is that of searches against exact scores. Prints what the index holds as well, and an effort if another
    one is better. Loads no model without --scores. The exit status is 1 if a file is damaged.

    \b
    Example:
      printf 'Bananas are healthy.\\n' | latelier index - ./fruit
      latelier check ./fruit
    """  # noqa: D301 (\b keeps the lines of a block apart)
    with open_index(index) as opened:
        files = opened.verify()
        facts = index_facts(opened, index)
        recall = None
        failure = ""
        try:
            recall = opened.check(k, queries=queries)
        except CorruptedIndexError as error:
            failure = str(error)
    if scores:
        with open_retriever(index) as retriever:
            threshold = retriever.estimate_threshold(share)
        if json_output:
            facts["threshold"] = asdict(threshold)
        else:
            facts["threshold"] = str(threshold)
    if json_output:
        integrity = {"files": files.files, "damages": [asdict(damage) for damage in files.damages]}
        print_json({**facts, "recall": recall and asdict(recall), "integrity": integrity})
    else:
        summary, *damages = str(files).splitlines()
        print_facts({**facts, "recall": recall or f"not measured: {failure}", "files": summary})
        for line in damages:
            typer.echo(printable(line))
        if facts.get("removed"):
            typer.echo(f"compact() frees the vectors of {facts['removed']:,} removed documents.")
    if not files.is_whole:
        raise typer.Exit(1)


def demo(
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="A question; default: five prepared ones, then yours.")
    ] = None,
    k: Annotated[int, count_option("Maximum number of results per question.")] = 3,
    device: DeviceOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Search Python's own documentation by meaning.

    The first run indexes the docstrings of your Python's standard library, which takes minutes on a laptop; later runs
    answer immediately. The index is kept in your cache folder (LATELIER_CACHE names another one). Below each result
    is the part that matched, and which word of the question matched which word of the text with what similarity.

    \b
    Example:
      latelier demo "make a temporary folder"
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.demo import QUESTIONS, Session

    quiet_loading()
    with Session(device, on_first_run=_announce, show_progress=True) as session:
        answers = []
        for question in QUESTIONS if query is None else (query,):
            results = session.answer(question, k)
            if not json_output:
                _print_answer(question, results)
            answers.append({"query": question, "results": results_json(results, explain=True)})
        if json_output:
            seconds = {phase: round(value, 3) for phase, value in session.seconds.items()}
            facts = {"index": str(session.folder), "documents": len(session), "seconds": seconds}
            print_json({**facts, "answers": answers})
            return
        phases = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in session.seconds.items())
        typer.echo(f"\n{len(session):,} docstrings; {phases}", err=True)
        typer.echo('In a browser, with pip install "latelier[serve]": latelier serve --demo', err=True)
        if query is None:
            _prompt(session, k)


def _announce(count: int, folder: Path) -> None:
    typer.echo(f"First run: indexing {count:,} docstrings into {folder}", err=True)


def _print_answer(question: str, results: Results) -> None:
    typer.echo("\n".join([f"\n{bold(printable(question))}", *result_lines(results, explain=True, most=1)]))


def _prompt(session: Session, k: int) -> None:
    """On a terminal, answer the questions that are typed until an empty line."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        return
    with suppress(ImportError):
        import readline  # noqa: F401 (gives input() line editing)
    with suppress(EOFError, KeyboardInterrupt):
        while question := input("\nYour question (an empty line ends): ").strip():
            _print_answer(question, session.answer(question, k))
