"""Run and qrels files.

The format is that of the first line, so names do not matter, and pipes can be read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from latelier.errors import InvalidArgumentError, StorageError
from latelier.evaluation.collection import find_split
from latelier.evaluation.trec import (
    Run,
    add_entry,
    check_evaluated,
    check_scores,
    check_trec_ids,
    is_header,
    numbered_lines,
    qrels_from_lines,
    ranking,
    relevance_fault,
    run_from_lines,
    write_trec,
)
from latelier.utils.checks import describe, short
from latelier.utils.files import as_path, is_folder, parse_json, write_lines

_QUERY = ("query_id", "query-id", "qid")
_DOCUMENT = ("document_id", "corpus_id", "corpus-id", "docid", "id")


def read_run(path: str | Path) -> dict[str, dict[str, float]]:
    r"""Read a run in TREC's format or as JSON Lines, plain or with ``.gz``.

    Parameters
    ----------
    path
        The file. A JSON line is ``{"query_id": "q1", "document_id": "d1", "score": 1.5}``, or holds all documents of a
        query: ``{"query_id": "q1", "results": [{"corpus_id": "d1", "score": 1.5}]}``, as the evaluators of
        sentence-transformers write it. ``query-id`` and ``corpus-id`` are accepted too.

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
    source = str(as_path(path))
    first, lines = _lines(as_path(path))
    if not _is_json(first):
        return run_from_lines(lines, source)
    run: dict[str, dict[str, float]] = {}
    for number, query, document, score in _json_entries(lines, source, ("score",)):
        add_entry(run, query, document, score, f"{source}:{number}")
    return run


def read_qrels(path: str | Path, split: str = "test") -> dict[str, dict[str, int]]:
    r"""Read qrels in TREC's format, BEIR's or as JSON Lines, plain or with ``.gz``.

    Parameters
    ----------
    path
        The file, or a folder in BEIR's layout, of which ``qrels/<split>.tsv`` is read. BEIR's format has three columns
        separated by tabs, with or without a header. A JSON line is
        ``{"query_id": "q1", "document_id": "d1", "relevance": 1}``; ``score`` is accepted in place of ``relevance``.
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
    path = as_path(path)
    if is_folder(path):
        path = find_split(path, split)
    source = str(path)
    first, lines = _lines(path)
    is_json = _is_json(first)
    if not is_json and first.count("\t") != 2:
        return qrels_from_lines(lines, source)
    entries = _json_entries(lines, source, ("relevance", "score")) if is_json else _tab_entries(lines, source)
    qrels: dict[str, dict[str, int]] = {}
    for number, query, document, relevance in entries:
        if fault := relevance_fault(relevance):
            raise InvalidArgumentError(f"{source}:{number}: relevance {relevance!r} {fault}.")
        add_entry(qrels, query, document, int(relevance), f"{source}:{number}")
    return qrels


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
    if not _is_json_lines(path):
        write_trec(run, path, name)
        return
    check_evaluated(run, "run")
    check_scores(run, "the run")
    _check_not_empty("query id", run)
    lines = []
    for query, scores in run.items():
        _check_not_empty("document id", scores)
        for document, score in ranking(scores):
            lines.append(json.dumps({"query_id": query, "document_id": document, "score": score}) + "\n")
    write_lines(path, lines)


def check_run_file(path: str | Path, queries: Iterable[str], documents: Iterable[str]) -> None:
    """Check what can be known of `write_run` before there is a run; nothing is written.

    Raises `StorageError` if the path is a folder, its folder does not exist, or it may not be written.
    """
    path = as_path(path)
    if is_folder(path):
        raise StorageError(f"cannot write {path}: it is a folder; name a file.")
    if not is_folder(path.parent):
        raise StorageError(
            f"cannot write {path}: there is no folder {str(path.parent)!r}; make it, or name another file."
        )
    place = path if os.path.lexists(path) else path.parent  # a file, a device or a pipe in a folder that is read-only
    if not os.access(place, os.W_OK):
        raise StorageError(f"cannot write {path}: no permission to write {place}; name another file.")
    check = _check_not_empty if _is_json_lines(path) else check_trec_ids
    check("query id", queries)
    check("document id", documents)


def _is_json_lines(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".jsonl")


def _check_not_empty(what: str, ids: Iterable[str]) -> None:
    """Check that no id is empty: `read_run` would reject it."""
    if "" in ids:
        raise InvalidArgumentError(f"{what} '' cannot be written, as readers of runs expect an id; give one.")


def _lines(path: Path) -> tuple[str, Iterator[tuple[int, str]]]:
    """Return the first line that is not blank, and all of them with their numbers."""
    lines = numbered_lines(path)
    first = next(lines, None)
    if first is None:
        raise InvalidArgumentError(f"{path} is empty.")
    return first[1].lstrip(), chain([first], lines)


def _is_json(first: str) -> bool:
    """Whether a first line is JSON, rather than a line of the other formats whose query id begins with a brace."""
    return first.startswith("{") and first.count("\t") != 2 and first.split(maxsplit=2)[1:2] not in (["0"], ["Q0"])


def _tab_entries(lines: Iterator[tuple[int, str]], source: str) -> Iterator[tuple[int, str, str, float]]:
    for row, (number, line) in enumerate(lines):
        columns = line.split("\t")
        if len(columns) != 3:
            raise InvalidArgumentError(
                f"{source}:{number}: {len(columns)} columns; expected query id, document id and relevance, separated "
                "by tabs."
            )
        query, document, value = columns
        try:
            relevance = float(int(value))
        except (ValueError, OverflowError) as error:
            if not row and is_header(value):
                continue  # the header
            raise InvalidArgumentError(f"{source}:{number}: relevance {short(value)} is not an integer.") from error
        yield number, query, document, relevance


def _json_entries(
    lines: Iterator[tuple[int, str]], source: str, values: tuple[str, ...]
) -> Iterator[tuple[int, str, str, float]]:
    """Yield line number, query id, document id and the number in the first of the fields `values` that is there."""
    for number, line in lines:
        place = f"{source}:{number}"
        try:
            record = parse_json(line)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{place}: {error}") from error
        if not isinstance(record, dict):
            raise InvalidArgumentError(f"{place}: expected a JSON object, received {type(record).__name__}.")
        query = _id(record, _QUERY, place)
        results = record.get("results", [record])
        if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
            raise InvalidArgumentError(f"{place}: results is {describe(results)}; expected a list of JSON objects.")
        for result in results:
            yield number, query, _id(result, _DOCUMENT, place), _value(result, values, place)


def _id(record: dict[str, Any], names: tuple[str, ...], place: str) -> str:
    id_ = _field(record, names, place)
    if isinstance(id_, bool) or not isinstance(id_, (str, int)) or id_ == "":
        raise InvalidArgumentError(f"{place}: the id is {describe(id_)}; expected a string that is not empty.")
    return str(id_)


def _value(record: dict[str, Any], names: tuple[str, ...], place: str) -> float:
    value = _field(record, names, place)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
        try:
            return float(value)
        except OverflowError:
            pass
    raise InvalidArgumentError(f"{place}: {names[0]} is {describe(value)}; expected a number.")


def _field(record: dict[str, Any], names: tuple[str, ...], place: str) -> Any:
    for name in names:
        if name in record:
            return record[name]
    present = ", ".join(map(short, list(record)[:10])) or "none"
    raise InvalidArgumentError(f"{place}: no {names[0]!r} field; its fields are {present}.")
