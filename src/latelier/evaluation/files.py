"""Files of runs and of relevance judgements (qrels): TREC's format, BEIR's, those of other tools, and JSON Lines.

The format of a file is that of its first line, so names do not matter and pipes can be read. ir_measures' own readers
name neither the file nor the line of a fault, and need its extra; so these are our own.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from glob import escape
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError, StorageError
from latelier.evaluation.checks import Qrels, Run, check_evaluated, check_relevance, check_scores, relevance_fault
from latelier.reading.tables import parquet_rows
from latelier.utils.checks import describe, short
from latelier.utils.files import as_path, is_file, is_folder, open_binary, parse_json, text_lines, write_lines
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
        ``qid``, ``docno`` and ``score``, else ``rank``.

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
    path = as_path(path)
    run: dict[str, dict[str, float]] = {}
    for number, query, document, value in _run_entries(path):
        score = _to_float(value)
        if score is None:
            raise InvalidArgumentError(f"{path}:{number}: the score is {describe(value)}; expected a number.")
        add_entry(run, query, document, score, f"{path}:{number}")
    return run


class Candidates(NamedTuple):
    """A run to rerank, and the texts of its queries and documents if its file holds them."""

    run: dict[str, dict[str, float]]
    queries: dict[str, str]
    documents: dict[str, str]


def read_candidates(path: str | Path) -> Candidates:
    """Read a run, or lines of query id, document id, query and text, as MS MARCO's top1000.dev, best first."""
    path = as_path(path)
    first, lines = _lines(path)
    cells = first.split("\t")
    if len(cells) != 4 or _to_float(cells[2]) is not None or _is_json(first):
        return Candidates(read_run(path), {}, {})
    run: dict[str, dict[str, float]] = {}
    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) != 4 or not all(cell.strip() for cell in cells):
            raise InvalidArgumentError(
                f"{path}:{number}: {len(cells)} columns, or an empty one; expected the ids of query and document, and "
                "their texts."
            )
        query, document, query_text, text = cells
        for kind, texts, id_, own in (("query", queries, query, query_text), ("document", documents, document, text)):
            if texts.setdefault(id_, own) != own:
                raise InvalidArgumentError(
                    f"{path}:{number}: the {kind} {id_!r} has another text than in a line before it."
                )
        add_entry(run, query, document, -float(len(run.get(query, ()))), f"{path}:{number}")
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
        for number, entry in qrels_entries(file):
            if isinstance(entry, str):
                raise InvalidArgumentError(f"{file}:{number}: {entry}.")
            query, document, relevance = entry
            add_entry(qrels, query, document, relevance, f"{file}:{number}")
    return qrels


# Fields of a query with the ids of documents that do not count for it, in BRIGHT and MM-BRIGHT.
_EXCLUDED = ("excluded_ids", "negative_ids")


def excluded_ids(record: Mapping[str, Any]) -> list[str]:
    """Return the ids of the documents that do not count for a query."""
    lists = [record[name] for name in _EXCLUDED if isinstance(record.get(name), list)]
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
        for number, line in (numbered for file in files[:1] for numbered in numbered_lines(file)):
            if not any(name in line for name in _EXCLUDED):
                continue
            record = parse_json(line)
            if isinstance(record, dict) and (ids := excluded_ids(record)):
                excluded[_id(record, ("_id", *_QUERY_OF_TEXTS), f"{files[0]}:{number}")] = ids
        return excluded
    for number, line in _lines(path)[1]:
        ids = line.split("\t")
        if len(ids) == 1:
            ids = line.split()
        if len(ids) != 2 or not all(ids):
            raise InvalidArgumentError(f"{path}:{number}: {len(ids)} columns; expected a query id and a document id.")
        excluded.setdefault(ids[0], []).append(ids[1])
    return excluded


_QUERY = ("query_id", "query-id", "qid", "q_id", "query", "topic", "q")
_DOCUMENT = (
    "document_id",
    "document-id",
    "corpus_id",
    "corpus-id",
    "docid",
    "doc_id",
    "doc-id",
    "docno",
    "pid",
    "id",
    "document",
    "doc",
    "d",
)
_RELEVANT = ("answer_pids", "gold_ids")  # lists of the relevant documents of a query: LoTTE, BRIGHT
_QUERY_OF_TEXTS = ("qid", "query_id", "query-id", "id", "_id")  # where the query is a text
_RELEVANCE = ("relevance", "score", "rel", "label", "grade")
_RUN_FORMS = (
    "query, Q0, document, rank, score and name (TREC), or separated by tabs query, document, rank, score (ColBERT) or "
    "query, document, rank (MS MARCO)"
)


def qrels_entries(path: Path) -> Iterator[tuple[int, tuple[str, str, int] | str]]:
    """Yield line number, and query id, document id and relevance, or what is wrong with the line."""
    entries: Iterator[tuple[int, str, str | None, Any]]
    if path.suffix == ".parquet":
        entries = _parquet_entries(path)
    else:
        first, lines = _lines(path)
        if _is_json(first):
            entries = _json_entries(lines, str(path), _RELEVANCE)
        else:
            entries = _column_entries(first, lines)
    for number, query, document, value in entries:
        relevance = _to_float(value)
        if document is None:
            yield number, str(value)
        elif relevance is None:
            yield number, f"relevance {short(value)} is not an integer"
        elif fault := relevance_fault(relevance):
            yield number, f"relevance {short(value)} {fault}"
        else:
            yield number, (query, document, int(relevance))


def _parquet_entries(path: Path) -> Iterator[tuple[int, str, str, Any]]:
    """Yield number, query, document and relevance of rows, which without a column of it is 1."""
    for number, row in parquet_rows(path):
        if isinstance(row, InvalidArgumentError):
            raise InvalidArgumentError(f"{path}:{number}: {row}") from row
        place = f"{path}:{number}"
        relevance = 1
        if {*_RELEVANCE} & {*row}:
            relevance = _field(row, _RELEVANCE, place)
        yield number, _id(row, _QUERY, place), _id(row, _DOCUMENT, place), relevance


def _column_entries(
    first: str, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, str, str, Any] | tuple[int, str, None, str]]:
    """Yield number, query, document and relevance of lines of columns; with None as document, a fault."""
    columns = first.rstrip("\n").split("\t")
    by_tabs = len(columns) in (3, 4)
    columns = columns if by_tabs else first.split()
    places = (0, 1, 2) if len(columns) == 3 else (0, 2, 3)
    count = len(columns)
    is_header = len(columns) == count and count > 2 and _to_float(columns[places[2]]) is None
    if is_header:
        names = [column.strip().lower() for column in columns]
        found = [[i for i, name in enumerate(names) if name in known] for known in (_QUERY, _DOCUMENT, _RELEVANCE)]
        is_header = [len(each) for each in found] == [1, 1, 1]
        if is_header:
            places = (found[0][0], found[1][0], found[2][0])
    form = "query, document and relevance, separated by tabs, or query, 0, document and relevance"
    for row, (number, line) in enumerate(lines):
        cells = line.split("\t") if by_tabs else line.split()
        if is_header and not row:
            continue
        if len(cells) != count or count not in (3, 4) or (count == 3 and not by_tabs):
            yield number, "", None, f"{len(cells)} columns; expected {form}"
        elif not (cells[places[0]] and cells[places[1]]):
            yield number, "", None, "an id is empty"
        else:
            yield number, cells[places[0]], cells[places[1]], cells[places[2]]


def _run_entries(path: Path) -> Iterator[tuple[int, str, str, Any]]:
    """Yield line number, query id, document id and score of the lines of a run."""
    first, lines = _lines(path)
    if _is_json(first):
        yield from _json_entries(lines, str(path), ("score",))
        return
    columns = _named_columns(first)
    if columns is not None:
        yield from _named_entries(path, columns, lines)
        return
    tabs = first.count("\t")
    ranks: dict[str, int] = {}
    for number, line in lines:
        if tabs in (2, 3):
            cells = line.split("\t")
        else:
            cells = line.split()
        if len(cells) != (tabs + 1 if tabs in (2, 3) else 6):
            raise InvalidArgumentError(f"{path}:{number}: {len(cells)} columns; expected {_RUN_FORMS}.")
        if len(cells) == 6:
            yield number, cells[0], cells[2], cells[4]
            continue
        query, document, rank = cells[:3]
        ranks[query] = ranks.get(query, 0) + 1
        if rank.strip() != str(ranks[query]):
            raise InvalidArgumentError(
                f"{path}:{number}: the third of {len(cells)} columns is {rank!r}; expected the rank, "
                f"{ranks[query]}, as in runs of ColBERT and MS MARCO, where each query's documents are in order."
            )
        yield number, query, document, cells[3] if tabs == 3 else 1 / ranks[query]


class _RunColumns(NamedTuple):
    """The places of the columns of a run with a header."""

    delimiter: str
    width: int
    query: int
    document: int
    score: int | None
    rank: int | None


def _named_columns(header: str) -> _RunColumns | None:
    """Return the columns of a run if its first line names them; beside ``docno``, ``docid`` is a number."""
    for delimiter in (",", "\t"):
        names = [name.strip().strip('"').lower() for name in header.split(delimiter)]
        places = {name: place for place, name in reversed([*enumerate(names)])}
        query = next((places[name] for name in (*_QUERY_OF_TEXTS, *_QUERY) if name in places), None)
        document = next((places[name] for name in ("docno", *_DOCUMENT) if name in places), None)
        score = places.get("score")
        rank = places.get("rank")
        if query is not None and document is not None and query != document and (score, rank) != (None, None):
            return _RunColumns(delimiter, len(names), query, document, score, rank)
    return None


def _named_entries(
    path: Path, columns: _RunColumns, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, str, str, Any]]:
    """Yield number, query, document and score, or the negative rank, of rows with a header."""
    next(lines)
    for number, line in lines:
        cells = next(csv.reader([line], delimiter=columns.delimiter))
        if len(cells) != columns.width:
            raise InvalidArgumentError(f"{path}:{number}: {len(cells)} columns; the header has {columns.width}.")
        if columns.score is not None:
            value: Any = cells[columns.score]
        else:
            value = _to_float(cells[columns.rank or 0])
            if value is not None:
                value = -value
        yield number, cells[columns.query], cells[columns.document], value


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


def _lines(path: Path) -> tuple[str, Iterator[tuple[int, str]]]:
    """Return the first line that is neither blank nor a comment, and all of these lines with their numbers."""
    lines = ((number, line) for number, line in numbered_lines(path) if not line.lstrip().startswith("#"))
    first = next(lines, None)
    if first is None:
        raise InvalidArgumentError(f"{path} is empty.")
    return first[1].lstrip(), chain([first], lines)


def _is_json(first: str) -> bool:
    """Whether a first line is JSON, rather than a line of the other formats whose query id begins with a brace."""
    return first.startswith("{") and first.count("\t") != 2 and first.split(maxsplit=2)[1:2] not in (["0"], ["Q0"])


def _json_entries(
    lines: Iterator[tuple[int, str]], source: str, values: tuple[str, ...]
) -> Iterator[tuple[int, str, str, float]]:
    """Yield line number, query id, document id and the value of the first of the fields `values` that is there.

    The lines are an object each, or all of them are one object: query id to document id to value.
    """
    number, line = next(lines)
    with suppress(InvalidArgumentError):
        parse_json(line)
        lines = chain([(number, line)], lines)
        line = ""
    if line:  # an object of several lines
        lines = iter([(number, "\n".join([line, *(text for _, text in lines)]))])
    for number, line in lines:
        place = f"{source}:{number}"
        try:
            record = parse_json(line)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{place}: {error}") from error
        if not isinstance(record, dict):
            raise InvalidArgumentError(f"{place}: expected a JSON object, received {type(record).__name__}.")
        if record and all(isinstance(row, dict) for row in record.values()):
            table = _of_mteb(record, place)
            yield from ((number, query, id_, value) for query, row in table.items() for id_, value in row.items())
            continue
        relevant = next((record[name] for name in _RELEVANT if isinstance(record.get(name), list)), None)
        if relevant is not None and values == _RELEVANCE:
            query = _id(record, _QUERY_OF_TEXTS, place)
            yield from ((number, query, str(id_), 1) for id_ in relevant)
            continue
        query = _id(record, _QUERY, place)
        results = record.get("results", [record])
        if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
            raise InvalidArgumentError(f"{place}: results is {describe(results)}; expected a list of JSON objects.")
        for result in results:
            yield number, query, _id(result, _DOCUMENT, place), _field(result, values, place)


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


def _id(record: dict[str, Any], names: tuple[str, ...], place: str) -> str:
    id_ = _field(record, names, place)
    if isinstance(id_, bool) or not isinstance(id_, (str, int)) or id_ == "":
        raise InvalidArgumentError(f"{place}: the id is {describe(id_)}; expected a string that is not empty.")
    return str(id_)


def _field(record: dict[str, Any], names: tuple[str, ...], place: str) -> Any:
    for name in names:
        if name in record:
            return record[name]
    present = ", ".join(map(short, list(record)[:10])) or "none"
    raise InvalidArgumentError(f"{place}: no {names[0]!r} field; its fields are {present}.")


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


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number (from 1) and the text of every line that is not blank; ``.gz`` is decompressed."""
    try:
        lines = text_lines(open_binary(path), str(path), compressed=path.suffix == ".gz")
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line.rstrip("\r\n")
    except StorageError as error:
        raise InvalidArgumentError(str(error)) from error
