"""Files of runs and of relevance judgements (qrels): TREC's format, BEIR's, those of other tools, and JSON Lines.

The format of a file is that of its first line, so names do not matter and pipes can be read. ir_measures' own readers
name neither the file nor the line of a fault, and need its extra; so these are our own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError, StorageError
from latelier.evaluation.checks import Qrels, Run, check_evaluated, check_relevance, check_scores, relevance_fault
from latelier.reading.rows import (
    NAMES,
    Fault,
    Header,
    HeaderOf,
    RowFormat,
    Rows,
    Source,
    checked_rows,
    names_of,
    read_rows,
    value_of,
)
from latelier.utils.checks import describe, short
from latelier.utils.files import as_path, is_file, is_folder, write_lines
from latelier.utils.misc import needs_extra

# The files of a collection's folder, in the order in which they are looked for: of BEIR and MTEB, LoTTE and MS MARCO,
# and of the Hugging Face Hub, where several files are one. Each may end in .gz.
DOCUMENT_FILES = (
    "corpus.jsonl",
    "collection.tsv",
    "corpus/{split}-*.parquet",
    "corpus/*.parquet",
    "corpus.parquet",
    "data/corpus-*.parquet",
)
QUERY_FILES = (
    "queries.jsonl",
    "queries.{split}.tsv",
    "questions.{split}.tsv",
    "queries.tsv",
    "queries/{split}-*.parquet",
    "queries/*.parquet",
    "queries.parquet",
    "data/queries-*.parquet",
)
_QRELS_FILES = (
    "qrels/{split}.tsv",
    "qrels/{split}.jsonl",
    "{split}.jsonl",
    "qas.{split}.jsonl",
    "qrels.{split}.tsv",
    "qrels/{split}.parquet",
    "qrels/{split}-*.parquet",
    "data/{split}-*.parquet",
)
_QRELS_OF_TEST = ("qrels.jsonl", "qrels.tsv", "qrels.txt")
_END_OF_QRELS = re.compile(r"(-\d{5}-of-\d{5})?\.(tsv|jsonl|parquet)(\.gz)?$")


_IRDS = "irds:"


def irds_dataset(source: Any) -> Any:
    """Return the data set of ir_datasets that `source` is, or that has this name after ``irds:``; else None."""
    if hasattr(source, "docs_iter"):
        return source
    if isinstance(source, Path):
        source = source.as_posix()
    if not isinstance(source, str) or not source.startswith(_IRDS):
        return None
    with needs_extra("Reading data sets of ir_datasets", "irds"):
        import ir_datasets
    name = source.removeprefix(_IRDS)
    try:
        dataset = ir_datasets.load(name)
    except KeyError as error:
        raise InvalidArgumentError(f"ir_datasets has no data set {name!r}; see https://ir-datasets.com.") from error
    lacking = [part for part in ("docs", "queries", "qrels") if not getattr(dataset, f"has_{part}")()]
    if lacking:
        raise InvalidArgumentError(
            f"the data set {name!r} of ir_datasets has no {' and no '.join(lacking)}; name one that has them, such as "
            f"{name}/test."
        )
    return dataset


def find_files(folder: Path, names: Iterable[str], split: str) -> list[Path]:
    """Return the files of the first of some names or patterns that there are, in order."""
    for name in names:
        for end in ("", ".gz"):
            found = sorted(folder.glob(name.format(split=escape(split)) + end))
            if found := [path for path in found if is_file(path)]:
                return found
    return []


def find_split(folder: Path, split: str) -> list[Path]:
    """Return the files with the qrels of a split of the folder of a collection."""
    names: tuple[str, ...] = _QRELS_FILES
    if split == "test":
        names = (*_QRELS_FILES, *_QRELS_OF_TEST)
    if found := find_files(folder, names, split):
        return found
    files = [*(folder / "qrels").glob("*.*"), *folder.glob("q[ra]*s.*.*"), *(folder / "data").glob("*-*.parquet")]
    names_of_splits = {re.sub(r"^(qrels|qas)\.", "", _END_OF_QRELS.sub("", path.name)) for path in files}
    available = ", ".join(sorted(names_of_splits)) or "none (there is no qrels/*.tsv file)"
    raise InvalidArgumentError(
        f"{folder} has no relevance judgements for split={split!r}; splits available: {available}."
    )


def ranking(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return one query's documents, best first; equal scores are ordered by descending id, as in ``trec_eval``.

    Parameters
    ----------
    scores
        Document id to score.

    Examples
    --------
    >>> ranking({"a": 1.0, "b": 2.0, "c": 1.0})
    [('b', 2.0), ('c', 1.0), ('a', 1.0)]
    """
    return sorted(((id_, float(score)) for id_, score in scores.items()), key=lambda p: (p[1], p[0]), reverse=True)


def read_run(path: str | Path) -> dict[str, dict[str, float]]:
    r"""Read a run of TREC, ranx, pytrec_eval, ColBERT or MS MARCO or as JSON Lines, plain or with ``.gz``.

    Parameters
    ----------
    path
        The file, by whose first line the format is known. Six columns are TREC's; four, separated by tabs, are
        ColBERT's (query, document, rank, score); three are MS MARCO's (query, document, rank), which get the score
        ``1 / rank``. Lines that begin with ``#`` are comments. A JSON line is
        ``{"query_id": "q1", "document_id": "d1", "score": 1.5}``, or holds all documents of a query:
        ``{"query_id": "q1", "results": [{"corpus_id": "d1", "score": 1.5}]}``, as the evaluators of
        sentence-transformers write it; ``query-id`` and ``corpus-id`` are accepted too. One object
        ``{"q1": {"d1": 1.5}}`` is a run of ranx or pytrec_eval, and the predictions that mteb saves hold one. A table
        with commas or tabs and a header is read by the names of its columns, as PyTerrier and RankLLM write it:
        ``qid``, ``docno`` and ``score``, else ``rank``; so are the columns of a Parquet file.

    Returns
    -------
    dict
        Query id to document id to score, in the order of the file.

    Raises
    ------
    InvalidArgumentError
        If the file is empty, a line is malformed, a score is not a number, or a document is repeated for a query; the
        message names the file and the line.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> line = '{"query_id": "q1", "document_id": "d2", "score": 1.25}'
    >>> _ = path.write_text(line)
    >>> read_run(path)
    {'q1': {'d2': 1.25}}
    """
    return _run(_rows(as_path(path), _run_header))


class Candidates(NamedTuple):
    """A run to rerank, and the texts of its queries and documents if its file holds them."""

    run: dict[str, dict[str, float]]
    queries: dict[str, str]
    documents: dict[str, str]


def read_candidates(path: str | Path) -> Candidates:
    """Read a run, or lines of query id, document id, query and text, as MS MARCO's top1000.dev, best first."""
    rows = _rows(as_path(path), _candidates_header)
    if rows.columns != list(_CANDIDATE):
        return Candidates(_run(rows), {}, {})
    run: dict[str, dict[str, float]] = {}
    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    for place, values in checked_rows(rows):
        query, document, query_text, text = (values[name] for name in _CANDIDATE)
        if not all(cell.strip() for cell in values.values()):
            raise InvalidArgumentError(
                f"{place}: a column is empty; expected the ids of query and document, and their texts."
            )
        for kind, texts, id_, own in (("query", queries, query, query_text), ("document", documents, document, text)):
            if texts.setdefault(id_, own) != own:
                raise InvalidArgumentError(f"{place}: the {kind} {id_!r} has another text than in a line before it.")
        add_entry(run, query, document, -float(len(run.get(query, ()))), place)
    return Candidates(run, queries, documents)


def read_qrels(path: str | Path, split: str = "test") -> dict[str, dict[str, int]]:
    r"""Read qrels in the format of TREC, BEIR, ranx or pytrec_eval, as JSON Lines or Parquet, plain or with ``.gz``.

    Parameters
    ----------
    path
        The file, or a folder or data set of ir_datasets as `load_beir` takes it. BEIR's format has three
        columns separated by tabs; with a header, it says in which order. TREC's has four columns. Lines that begin with
        ``#`` are comments. A JSON line is ``{"query_id": "q1", "document_id": "d1", "relevance": 1}``; ``score`` is
        accepted in place of ``relevance``, and ``{"qid": 0, "answer_pids": [31, 32]}`` of LoTTE. One object
        ``{"q1": {"d1": 1}}`` holds qrels of ranx or pytrec_eval.
    split
        Which qrels of a folder.

    Returns
    -------
    dict
        Query id to document id to relevance.

    Raises
    ------
    InvalidArgumentError
        If the file is empty, a line is malformed, a relevance is not an integer or beyond a million, or a document is
        repeated for a query; the message names the file and the line.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "test.tsv"
    >>> _ = path.write_text("query-id\tcorpus-id\tscore\nq1\td2\t1\n")
    >>> read_qrels(path)
    {'q1': {'d2': 1}}
    """
    qrels: dict[str, dict[str, int]] = {}
    dataset = irds_dataset(path)
    if dataset is not None:
        for number, qrel in enumerate(dataset.qrels_iter(), start=1):
            add_entry(qrels, qrel.query_id, qrel.doc_id, qrel.relevance, f"{path}:{number}")
        return qrels
    path = as_path(path)
    paths = [path]
    if is_folder(path):
        paths = find_split(path, split)
    for file in paths:
        for entry in judgements(file, str(file)):
            if isinstance(entry, Fault):
                raise InvalidArgumentError(f"{entry.place}: {entry.reason.removesuffix('.')}.")
            add_entry(qrels, entry.query, entry.document, entry.relevance, entry.place)
    return qrels


def excluded_ids(record: Mapping[str, Any]) -> list[str]:
    """Return the ids of the documents that do not count for a query, which BRIGHT and MM-BRIGHT have in its record."""
    lists = [record[name] for name in NAMES["excluded"] if isinstance(record.get(name), list)]
    return [str(id_) for ids in lists for id_ in ids]


def read_excluded(path: str | Path) -> dict[str, list[str]]:
    r"""Read which documents do not count for which query: lines of a query and a document, plain or with ``.gz``.

    Parameters
    ----------
    path
        The file, whose two ids stand between white space, or a tab if they have white space themselves; or a folder as
        `load_beir` takes it, whose queries have ``excluded_ids`` in BRIGHT.

    Returns
    -------
    dict
        Query id to document ids, as `evaluate` and `Retriever.run` take it.

    Raises
    ------
    InvalidArgumentError
        If a line has not two ids; the message names the file and the line.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "excluded.txt"
    >>> _ = path.write_text("q1 d2\nq1 d3\n")
    >>> read_excluded(path)
    {'q1': ['d2', 'd3']}
    """
    path = as_path(path)
    excluded: dict[str, list[str]] = {}
    if is_folder(path):
        files = [path / name for name in ("queries.jsonl", "queries.jsonl.gz") if is_file(path / name)]
        for file in files[:1]:
            for place, values in checked_rows(_rows(file, _run_header)):
                if isinstance(values, dict) and (ids := excluded_ids(values)):
                    excluded[_id(values, place, "id", "query_id")] = ids
        return excluded
    for _, values in checked_rows(read_rows(Source(path, str(path), has_comments=True), ("columns",), _pair_header)):
        excluded.setdefault(values["query"], []).append(values["document"])
    return excluded


_FORMATS: tuple[RowFormat, ...] = ("parquet", "columns", "jsonl", "csv", "columns")


def _rows(path: Path, header_of: HeaderOf, name: str = "") -> Rows:
    return read_rows(Source(path, name or str(path), has_comments=True), _FORMATS, header_of)


_QUERY = ("query_id", "judged_query")
_DOCUMENT = ("document_id", "judged_document")
# Columns of lines without a header.
_CANDIDATE = ("query id", "document id", "query", "text")
_RUNS = {
    3: ("query_id", "document_id", "rank"),
    4: ("query_id", "document_id", "rank", "score"),
    6: ("query_id", "Q0", "document_id", "rank", "score", "name"),
}
_JUDGED = {3: ("query_id", "document_id", "relevance"), 4: ("query_id", "0", "document_id", "relevance")}


def _run_header(cells: list[str]) -> Header:
    """Return the columns of a run, by their names or by their number."""
    names = [cell.lower() for cell in cells]
    query = next((name for name in names_of("query_id", "id", "judged_query") if name in names), None)
    document = next((name for name in names_of(*_DOCUMENT) if name in names), None)
    if None not in (query, document) and query != document and {"score", "rank"} & {*names}:
        return Header(names)
    if len(cells) not in _RUNS:
        raise InvalidArgumentError(
            f"{len(cells)} columns; expected query, Q0, document, rank, score and name (TREC), or query, document, "
            "rank, score (ColBERT) or query, document, rank (MS MARCO), or a first line that names query_id, "
            "document_id and score."
        )
    return Header(_RUNS[len(cells)], is_row=True)


def _candidates_header(cells: list[str]) -> Header:
    if len(cells) == 4 and _to_float(cells[2]) is None and "0" != cells[1] != "Q0":
        return Header(_CANDIDATE, is_row=True)
    return _run_header(cells)


def _judged_header(cells: list[str]) -> Header:
    """Return the columns of judgements, by their names or by their number."""
    names = [cell.lower() for cell in cells]
    columns = _JUDGED.get(len(cells))
    if len(names) > 2 and (columns is None or _to_float(cells[columns.index("relevance")]) is None):
        found = [[name for name in names if name in names_of(*each)] for each in (_QUERY, _DOCUMENT, ("relevance",))]
        if [len(each) for each in found] == [1, 1, 1]:
            return Header(names)
    if columns is None:
        raise InvalidArgumentError(
            f"{len(cells)} columns; expected query, document and relevance, separated by tabs, or query, 0, document "
            "and relevance."
        )
    return Header(columns, is_row=True)


def _pair_header(cells: list[str]) -> Header:
    if len(cells) != 2:
        raise InvalidArgumentError(f"{len(cells)} columns; expected a query id and a document id.")
    return Header(("query", "document"), is_row=True)


class Judgement(NamedTuple):
    """How relevant a document is for a query, and where that stands."""

    place: str
    query: str
    document: str
    relevance: int


def judgements(path: Path, name: str) -> Iterator[Judgement | Fault]:
    """Yield the judgements of a file, which messages call `name`."""
    rows = _rows(path, _judged_header, name)
    has_relevance = rows.columns is None or bool({*rows.columns} & {*NAMES["relevance"]})
    is_empty = True
    for row in rows:
        is_empty = False
        if isinstance(row, Fault):
            yield row
            continue
        values = row.values
        if not has_relevance:  # a table of those that are relevant
            values = {**values, "relevance": 1}
        try:
            for query, document, value in _entries(values, row.place, "relevance"):
                yield _judgement(row.place, query, document, value)
        except InvalidArgumentError as error:
            yield Fault(row.place, error.fact.removeprefix(f"{row.place}: "))
    if is_empty:
        raise InvalidArgumentError(f"{name} is empty.")


def _judgement(place: str, query: str, document: str, value: Any) -> Judgement | Fault:
    relevance = _to_float(value)
    if relevance is None:
        return Fault(place, f"relevance {short(value)} is not an integer")
    if fault := relevance_fault(relevance):
        return Fault(place, f"relevance {short(value)} {fault}")
    return Judgement(place, query, document, int(relevance))


def _run(rows: Rows) -> dict[str, dict[str, float]]:
    """Return the run of some rows."""
    run: dict[str, dict[str, float]] = {}
    for place, values in checked_rows(rows):
        if rows.columns is None:
            entries = [*_entries(values, place, "score")]
        else:
            query = _id(values, place, "query_id", "id", "judged_query")
            document = _id(values, place, *_DOCUMENT)
            entries = [(query, document, _score(values, rows, len(run.get(query, ())) + 1, place))]
        for query, document, value in entries:
            score = _to_float(value)
            if score is None:
                raise InvalidArgumentError(f"{place}: the score is {describe(value)}; expected a number.")
            add_entry(run, query, document, score, place)
    return run


def _score(values: dict[str, Any], rows: Rows, rank: int, place: str) -> Any:
    """Return the score of a row of a run, in whose place it may have a rank; without a header, ranks are in order."""
    columns = rows.columns or []
    if not rows.has_header and len(columns) < 6:
        if str(values["rank"]).strip() != str(rank):
            raise InvalidArgumentError(
                f"{place}: the third of {len(columns)} columns is {values['rank']!r}; expected the rank, {rank}, as in "
                "runs of ColBERT and MS MARCO, where each query's documents are in order."
            )
        return values.get("score", 1 / rank)
    if "score" in columns:
        return values.get("score")
    value = _to_float(values.get("rank"))
    if value is not None:
        value = -value
    return value


def _to_float(value: Any) -> float | None:
    """Return what is a number, or spells one, as a float; None for null, NaN, a bool and everything else."""
    try:
        if value is None or isinstance(value, bool):
            number = None
        else:
            number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if number is None or number != number:
        return None
    return number


def _entries(values: Any, place: str, role: str) -> Iterator[tuple[str, str, Any]]:
    """Yield query id, document id and value of a row, which may hold all documents of a query or all queries.

    The value is that of a `role`: a score or a relevance.
    """
    if not isinstance(values, dict):
        raise InvalidArgumentError(f"{place}: expected a JSON object, received {type(values).__name__}.")
    if values and all(isinstance(each, dict) for each in values.values()):
        for query, judged in _of_mteb(values, place).items():
            for document, value in judged.items():
                yield query, document, value
        return
    relevant = value_of(values, "relevant")
    if isinstance(relevant, list) and role == "relevance":
        query = _id(values, place, "query_id", "id")
        yield from ((query, str(document), 1) for document in relevant)
        return
    query = _id(values, place, *_QUERY)
    results = values.get("results", [values])
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise InvalidArgumentError(f"{place}: results is {describe(results)}; expected a list of JSON objects.")
    for result in results:
        yield query, _id(result, place, *_DOCUMENT), _field(result, place, role)


def _of_mteb(record: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the only run of mteb's predictions, ``{subset: {split: run}}`` beside the model's; others as they are."""
    parts = {
        f"{subset} {split}": table
        for subset, splits in record.items()
        for split, table in splits.items()
        if isinstance(table, dict) and table and all(isinstance(row, dict) for row in table.values())
    }
    if not parts:
        return record
    if len(parts) > 1:
        raise InvalidArgumentError(
            f"{place}: it holds {len(parts)} runs of mteb, of the subsets and splits {', '.join(parts)}; write the one "
            "to read to a file of its own: {query id: {document id: score}}."
        )
    return next(iter(parts.values()))


def _id(record: dict[str, Any], place: str, *roles: str) -> str:
    id_ = _field(record, place, *roles)
    if isinstance(id_, bool) or not isinstance(id_, (str, int)) or id_ == "":
        raise InvalidArgumentError(f"{place}: the id is {describe(id_)}; expected a string that is not empty.")
    return str(id_)


def _field(record: dict[str, Any], place: str, *roles: str) -> Any:
    names = names_of(*roles)
    for name in names:
        if name in record:
            return record[name]
    present = ", ".join(map(short, list(record)[:10])) or "none"
    raise InvalidArgumentError(f"{place}: no {roles[0]!r} field; its fields are {present}.")


def write_run(run: Run, path: str | Path, name: str = "latelier") -> None:
    r"""Write a run: as JSON Lines if the file's name ends in ``.jsonl``, otherwise in TREC's format; plain or ``.gz``.

    Parameters
    ----------
    run
        Query id to document id to score.
    path
        The file; an existing one is replaced, after the whole run has been checked. With a further ``.gz`` at the end
        of its name, it is compressed.
    name
        The run's name, the last column in TREC's format.

    Raises
    ------
    InvalidArgumentError
        If a score is NaN, an id is empty, or it has white space and cannot be written in TREC's format.
    StorageError
        If the file cannot be written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> write_run({"q1": {"a document": 0.5}}, path)
    >>> print(path.read_text(), end="")
    {"query_id": "q1", "document_id": "a document", "score": 0.5}
    """
    path = as_path(path)
    is_json = _is_json_lines(path)
    if is_json:
        check_ids = _check_not_empty
    else:
        check_ids = check_trec_ids
    check_evaluated(run, "run")
    check_scores(run, "the run")
    check_ids("query id", run)
    if not is_json:
        check_trec_ids("run name", [name])
    lines = []
    for query, scores in run.items():
        check_ids("document id", scores)
        for rank, (document, score) in enumerate(ranking(scores), start=1):
            entry = {"query_id": query, "document_id": document, "score": score}
            lines.append(json.dumps(entry) + "\n" if is_json else f"{query} Q0 {document} {rank} {score!r} {name}\n")
    write_lines(path, lines)


def _is_json_lines(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".jsonl")


def _check_not_empty(what: str, ids: Iterable[str]) -> None:
    """Check that no id is empty: `read_run` would reject it."""
    if "" in ids:
        raise InvalidArgumentError(f"{what} '' cannot be written, as readers of runs expect an id; give one.")


def check_run_file(path: str | Path, queries: Iterable[str], documents: Iterable[str]) -> None:
    """Check what can be known of `write_run` before there is a run; nothing is written."""
    path = as_path(path)
    # a file, a device or a pipe in a folder that is read-only
    if os.path.lexists(path):
        place = path
    else:
        place = path.parent
    if is_folder(path) or not os.access(place, os.W_OK):
        if is_folder(path):
            reason = "it is a folder"
        else:
            reason = f"there is no folder, or no permission to write, {place}"
        raise StorageError(f"cannot write {path}: {reason}; name a file that can be written.")
    if _is_json_lines(path):
        check = _check_not_empty
    else:
        check = check_trec_ids
    check("query id", queries)
    check("document id", documents)


def add_entry(table: dict[str, dict[str, Any]], query: str, document: str, value: float, place: str) -> None:
    """Put one number into a run or qrels, in place; a document that the query already has is an error."""
    row = table.setdefault(query, {})
    if document in row:
        raise InvalidArgumentError(f"{place}: document {document!r} is repeated for query {query!r}.")
    row[document] = value


def write_trec_qrels(qrels: Qrels, path: str | Path) -> None:
    """Write qrels: ``query-id 0 document-id relevance``, one line per document.

    Parameters
    ----------
    qrels
        Query id to document id to relevance.
    path
        The file; an existing one is replaced, after all qrels have been checked. ``.gz`` is compressed.

    Raises
    ------
    InvalidArgumentError
        If an id is empty or has white space, or a relevance is not an integer or beyond a million.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "qrels.txt"
    >>> write_trec_qrels({"q1": {"d1": 1, "d2": 0}}, path)
    >>> read_qrels(path)
    {'q1': {'d1': 1, 'd2': 0}}
    """
    check_evaluated(qrels, "qrels")
    check_trec_ids("query id", qrels)
    check_relevance(qrels)
    lines = []
    for query, judged in qrels.items():
        check_trec_ids("document id", judged)
        lines += [f"{query} 0 {document} {int(relevance)}\n" for document, relevance in judged.items()]
    write_lines(as_path(path), lines)


def check_trec_ids(what: str, ids: Iterable[str]) -> None:
    """Check that ids can be written to a TREC file."""
    for id_ in ids:
        if not isinstance(id_, str) or not id_ or id_[0] == "#" or any(character.isspace() for character in id_):
            raise InvalidArgumentError(
                f"{what} {id_!r} cannot be written to a TREC file, as white space separates its columns and # "
                "begins a comment; give a str without them, or write JSON Lines: to a file whose name ends in .jsonl."
            )
