"""The commands evaluate and compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from latelier import evaluation
from latelier.cli.locations import check_bits, make_index, open_index
from latelier.cli.options import (
    DeviceOption,
    ModelOption,
    SameSpaceOption,
    SearchKeywords,
    TrustOption,
    check_same_space,
    is_given,
    refuse_unused,
    refuse_unused_split,
    takes_search_options,
)
from latelier.cli.output import print_json, printable, quiet_loading
from latelier.errors import LatelierError
from latelier.evaluation.checks import OnProblem, check_same_documents
from latelier.evaluation.files import check_run_file
from latelier.indexes.options import default_mode
from latelier.utils.files import parse_json

if TYPE_CHECKING:
    from latelier.evaluation import Collection, Comparison, Evaluation, Run
    from latelier.indexes import Index
    from latelier.retrieve import Retriever

IdenticalIdsOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(help="Leave out the document with the id of its query; default: where that is relevant to no query."),
]
ExcludeOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Documents that do not count: a query and a document a line; default: DATA's."),
]
_OF_A_SEARCH = (
    "index",
    "model",
    "same_space",
    "bits",
    "k",
    "mode",
    "fusion",
    "weights",
    "effort",
    "on_problem",
    "device",
    "trust_remote_code",
    "max_length_query",
    "max_length_document",
)
# What an index that exists has already.
_OF_A_NEW_INDEX = ("bits", "max_length_query", "max_length_document")


@takes_search_options("mode", "fusion", "weights", "effort")
def evaluate(
    context: typer.Context,
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="Folder of a collection, or irds:NAME of ir_datasets; or qrels for --run."),
    ],
    *,
    index: Annotated[
        str | None,
        typer.Option(metavar="INDEX", help="Search this index of the collection's documents: a folder, or qdrant:..."),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measure this run (TREC or JSON Lines); nothing is searched.")
    ] = None,
    model: ModelOption = None,
    same_space: SameSpaceOption = False,
    trust_remote_code: TrustOption = False,
    bits: Annotated[
        int | None,
        typer.Option(metavar="N", help="Without --index: bits per number of the temporary index; default: exact."),
    ] = None,
    max_length_query: Annotated[
        int | None, typer.Option(min=1, help="Without --index: most tokens to read of a query; default: the model's.")
    ] = None,
    max_length_document: Annotated[
        int | None,
        typer.Option(min=1, help="Without --index: most tokens to read of a document; default: the model's."),
    ] = None,
    split: Annotated[str, typer.Option(help="Which qrels of the folder: test, dev, train, ...")] = "test",
    measure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Measure; repeatable. Default: nDCG@10, RR@10, Success@1 and R@100, with cutoffs of at most -k.",
        ),
    ] = None,
    k: Annotated[
        int,
        typer.Option("-k", min=1, help="Documents to find for each query; more if a --measure has a larger cutoff."),
    ] = 100,
    search: SearchKeywords,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the run: JSON Lines to a .jsonl[.gz] file, else TREC.")
    ] = None,
    on_problem: Annotated[OnProblem, typer.Option(help="Faulty lines of the collection: stop, or skip them.")] = "stop",
    ignore_identical_ids: IdenticalIdsOption = None,
    exclude: ExcludeOption = None,
    device: DeviceOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON, with the values of every query.")] = False,
) -> None:
    """Measure how well the documents of a collection are found.

    The queries of the collection are searched in an index, or, without --index, in a temporary one that the documents
    are encoded into. Or a run file of any system is measured, with --run.

    \b
    Example:
      latelier evaluate ./scifact --output minilm.trec
      latelier evaluate irds:beir/scifact/test
      latelier evaluate ./scifact --index ./scifact-index --mode hybrid --measure nDCG@10
      latelier evaluate qrels.txt --run bm25.trec
    """  # noqa: D301 (\b keeps the lines of a block apart)
    from latelier.evaluation.measures import default_measures, evaluate_named, largest_cutoff

    measures = measure or default_measures(k)
    widest = largest_cutoff(measures)  # an unknown measure is an error before anything is read
    excluded = _excluded(exclude, data)
    documents: set[str] = set()  # that are searched
    found: Any
    refuse_unused_split(context, data)
    if run is not None:
        refuse_unused(context, _OF_A_SEARCH, "has no effect beside --run, which measures a run and searches nothing")
        qrels = evaluation.read_qrels(data, split)
        found = evaluation.read_run(run)
    else:
        _check_of_an_index(context, index)
        check_same_space(same_space, model)
        quiet_loading()
        collection = evaluation.load_beir(data, split, on_problem=on_problem)
        qrels = collection.qrels
        excluded = excluded or collection.excluded
        if ignore_identical_ids is None:
            ignore_identical_ids = collection.identical_ids()
        lengths = {"max_length_query": max_length_query, "max_length_document": max_length_document}
        searched = _Searched(index, bits, model, device, same_space, trust_remote_code, lengths)
        found, documents = _search(context, collection, searched, k, widest, output, excluded, search)
    if output is not None:
        evaluation.write_run(found, output)
    result = evaluate_named(found, qrels, measures, "the run", ignore_identical_ids, documents, excluded)
    _show(result, data, as_json=json_output)


def _check_of_an_index(context: typer.Context, index: str | None) -> None:
    if index is None:
        refuse_unused(context, ("same_space",), "has no effect without --index")
    else:
        refuse_unused(context, _OF_A_NEW_INDEX, "has no effect beside --index, which has its own")


class _Searched(NamedTuple):
    """What is searched, the index of a name or a new one of so many bits, and with which model."""

    name: str | None
    bits: int | None
    model: str | None
    device: str | None
    same_space: bool
    trust: bool
    lengths: dict[str, int | None]


def _search(
    context: typer.Context,
    collection: Collection,
    searched: _Searched,
    k: int,
    widest: tuple[str, int] | None,
    output: Path | None,
    excluded: dict[str, list[str]],
    search: SearchKeywords,
) -> tuple[Run, set[str]]:
    """Search for the queries of a collection; return the run, and the ids of the documents that were searched."""
    with _searched_index(searched.name, searched.bits) as index:
        # What can fail is checked before a model is loaded and anything is encoded.
        documents = _check_documents(None if searched.name is None else index, collection, output)
        k = _enough(context, k, widest, len(documents))
        with _retriever(searched, index) as retriever:
            if searched.name is None:
                retriever.add(collection.texts().items(), show_progress=True)
                search = {"mode": default_mode(search, can_be_hybrid=False), **search}  # the model is measured
            found = retriever.run(collection.queries, k, excluded=excluded, **search)
            _check_found(found, len(retriever), found.settings["mode"])
    return found, documents


def _check_documents(index: Index | None, collection: Collection, output: Path | None) -> set[str]:
    """Check that judged documents are among those to search, and a run of these can be written; return their ids."""
    if index is None:
        ids = list(collection.documents)
    else:
        ids = [str(id) for id in index.ids()]
    check_same_documents({"": dict.fromkeys(ids, 0.0)}, collection.qrels, "the index")
    if output is not None:
        check_run_file(output, collection.queries, ids)
    return set(ids)


def _excluded(exclude: Path | None, data: Path | None) -> dict[str, list[str]]:
    """Return which documents do not count: those of a file that is named, else those of the queries of a folder."""
    if exclude is not None:
        return evaluation.read_excluded(exclude)
    if data is not None and data.is_dir():
        return evaluation.read_excluded(data)
    return {}


def _show(result: Evaluation, data: Path, *, as_json: bool) -> None:
    if as_json:
        settings = {"data": str(data), **result.settings}
        print_json({"measures": result, "settings": settings, "per_query": result.per_query})
    else:
        typer.echo(printable(str(result), lines=True))


def _enough(context: typer.Context, k: int, widest: tuple[str, int] | None, documents: int) -> int:
    """Return how many documents to find: the default grows to the largest cutoff, and a smaller ``-k`` is an error."""
    if widest is None or k >= min(widest[1], documents):
        return k
    name, cutoff = widest
    if is_given(context, "k"):
        raise typer.BadParameter(
            f"{k:,} documents per query are too few for {name}; give -k {cutoff}, or name measures with --measure that "
            f"need no more than {k:,}.",
            param_hint="-k",
        )
    return cutoff


def _check_found(run: Run, documents: int, mode: str) -> None:
    """Check that a document was found: otherwise there would be only zeros."""
    if any(run.values()):
        return
    raise LatelierError(
        f"nothing to measure: --mode {mode} found no document for {len(run):,} queries, as no query shares a word with "
        f"any of the {documents:,} documents; search with --mode vectors."
    )


@contextmanager
def _searched_index(index: str | None, bits: int | None) -> Iterator[Index]:
    """Yield an existing index, or a new, temporary one."""
    if index is not None:
        with open_index(index) as opened:
            yield opened
        return
    check_bits(bits, exact=False)
    with TemporaryDirectory(prefix="latelier-evaluate-") as folder, make_index(Path(folder), bits, None) as made:
        yield made


def _retriever(searched: _Searched, index: Index) -> Retriever:
    """Return a retriever over an index with the model that it names, or over a new one with the default model."""
    from latelier.retrieve import Retriever

    if searched.name is not None:
        return Retriever.open(
            index,
            model=searched.model,
            device=searched.device,
            same_space=searched.same_space,
            trust_remote_code=searched.trust,
        )
    options: dict[str, Any] = {name: length for name, length in searched.lengths.items() if length is not None}
    if searched.trust:
        options["trust_remote_code"] = True
    return Retriever(searched.model, index, device=searched.device, model_options=options)


def compare(
    context: typer.Context,
    run_a: Annotated[
        Path,
        typer.Argument(metavar="RUN_A", help="The baseline: a run, or what evaluate --json printed, in a .json file."),
    ],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="What to compare with it.")],
    *,
    qrels: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="For runs: qrels, a file (TREC, BEIR, JSON Lines), a folder or irds:NAME."),
    ] = None,
    split: Annotated[str, typer.Option(help="Which qrels of a folder: test, dev, train, ...")] = "test",
    measure: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Measure such as nDCG@10; repeatable. Default: those of latelier evaluate."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials of the randomisation test.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the test.")] = 0,
    ignore_identical_ids: IdenticalIdsOption = None,
    exclude: ExcludeOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print as JSON, with every query.")] = False,
) -> None:
    """Test whether two runs differ beyond chance, query by query, and say which of their settings differ.

    Prints, for each measure, both means, the mean difference with its 95% interval, the effect size, the p-value of a
    paired randomisation test, the same corrected by Holm's procedure for the number of measures, and how many queries
    the second run wins, ties and loses.

    \b
    Example:
      latelier compare bm25.trec hybrid.trec --qrels ./scifact --measure nDCG@10 --measure R@100
      latelier evaluate ./scifact --bits 2 --json > small.json
      latelier compare exact.json small.json
    """  # noqa: D301 (\b keeps the lines of a block apart)
    judged = None
    if qrels is not None:
        refuse_unused_split(context, qrels)
        judged = evaluation.read_qrels(qrels, split)
    runs = _run_or_report(run_a), _run_or_report(run_b)
    if qrels is None and not all(isinstance(run, evaluation.Evaluation) for run in runs):
        raise typer.BadParameter("runs are compared by relevance judgements; give them.", param_hint="--qrels")
    if run_a.stem != run_b.stem:
        names = (run_a.stem, run_b.stem)
    else:
        names = (str(run_a), str(run_b))
    if names[0] == names[1]:  # a run compared with itself
        names = f"{names[0]} (a)", f"{names[1]} (b)"
    options: dict[str, Any] = {"trials": trials, "seed": seed, "ignore_identical_ids": ignore_identical_ids}
    options["excluded"] = _excluded(exclude, qrels)
    comparison = evaluation.compare(*runs, judged, measure, names=names, **options)
    if json_output:
        print_json(_values(comparison))
    else:
        typer.echo(printable(str(comparison), lines=True))


def _run_or_report(path: Path) -> Run | Evaluation:
    """Read a run, or the report of a run that evaluate has printed as JSON."""
    if path.suffix == ".json" and path.is_file():
        report = path.read_text(encoding="utf-8")
    else:
        report = ""
    if '"per_query"' not in report:
        return evaluation.read_run(path)
    read = parse_json(report)
    return evaluation.Evaluation(read["measures"], read["per_query"], read["settings"])


def _values(comparison: Comparison) -> dict[str, Any]:
    measures = {}
    for name, found in comparison.items():
        # JSON has no infinity: the effect size of equal differences.
        if abs(found.effect_size) != float("inf"):
            effect = found.effect_size
        else:
            effect = None
        counts = {"wins": found.wins, "ties": found.ties, "losses": found.losses}
        measures[name] = {**asdict(found), "difference": found.difference, "effect_size": effect, **counts}
    facts = {"a": comparison.names[0], "b": comparison.names[1], "trials": comparison.trials}
    return {**facts, "settings": comparison.settings, "measures": measures}
