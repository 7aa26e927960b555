"""TREC files, faulty lines.

A run is a plain dict, ``run[query id][document id] = score``; qrels have the same form with integers. `ranking` is the
one place that orders documents: by descending score, equal scores by descending id as in ``trec_eval``, so the ranks in
a written run are those that other tools compute from it.

Real collections have faulty lines, and a reader that stops at the first one makes repairing them slow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from latelier.errors import InvalidArgumentError, StorageError
from latelier.utils.checks import check_choice, describe, short
from latelier.utils.files import as_path, open_binary, text_lines, write_lines
from latelier.utils.misc import warn_caller

OnProblem = Literal["error", "warn"]
_LISTED = 10


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number (from 1) and the text of every line that is not blank.

    ``.gz`` is decompressed, and a byte order mark dropped. Yields: ``(line number, text)``.
    """
    try:
        lines = text_lines(open_binary(path), str(path), compressed=path.suffix == ".gz")
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line.rstrip("\r\n")
    except StorageError as error:
        raise InvalidArgumentError(str(error)) from error


def is_header(relevance: str) -> bool:
    """Whether the first line of qrels in BEIR's format is a header, given its third column."""
    try:
        float(relevance)
    except ValueError:
        return bool(relevance.strip())
    return False


class Problems:
    """The faulty lines found so far; `settle` raises one error or issues one warning about them."""

    def __init__(self, on_problem: OnProblem) -> None:
        check_choice("on_problem", on_problem, get_args(OnProblem))
        self.on_problem = on_problem
        self.total = 0
        self._first: list[str] = []

    def add(self, file: str, line: int, what: str) -> None:
        """Record one faulty line."""
        self.total += 1
        if len(self._first) < _LISTED:
            self._first.append(f"  {file}:{line}: {what}")

    def settle(self, source: str) -> None:
        """Raise or warn if any line was recorded; the message begins with ``source``."""
        if not self.total:
            return
        hidden = self.total - len(self._first)
        places = "\n".join([*self._first, *([f"  and {hidden:,} more"] if hidden else [])])
        found = f"{source} has {self.total:,} problem{'s' if self.total > 1 else ''}"
        if self.on_problem == "warn":
            warn_caller(f"{found}; these lines are skipped:\n{places}")
            return
        raise InvalidArgumentError(f"{found}:\n{places}\n", advice="skip-faulty")


Run: TypeAlias = Mapping[str, Mapping[str, float]]
"""Query id to document id to score."""

Qrels: TypeAlias = Mapping[str, Mapping[str, int]]
"""Query id to document id to relevance."""

_TABLE = "{query id: {document id: number}}"
# trec_eval allocates arrays as long as the largest relevance, and holds it in a C integer: larger ones take gigabytes,
# are cut off, or end the process.
_LARGEST_RELEVANCE = 1_000_000
_KINDS = {int: "an integer", float: "a number"}


def ranking(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return one query's documents, best first; equal scores are ordered by descending id, as in ``trec_eval``.

    Parameters
    ----------
    scores
        Document id to score.

    Returns
    -------
    list of tuple
        ``(document id, score)``.

    Examples
    --------
    >>> ranking({"a": 1.0, "b": 2.0, "c": 1.0})
    [('b', 2.0), ('c', 1.0), ('a', 1.0)]
    """
    try:
        return sorted(((id_, float(score)) for id_, score in scores.items()), key=lambda p: (p[1], p[0]), reverse=True)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        _check_row(scores, "the scores")
        raise InvalidArgumentError(
            f"cannot order documents of equal score: {error}; give ids that are all str."
        ) from error


def write_trec(run: Run, path: str | Path, name: str = "latelier") -> None:
    """Write a run: ``query-id Q0 document-id rank score name``, one line per document, ranks from 1.

    Parameters
    ----------
    run
        Query id to document id to score. A query without documents is not written.
    path
        The file; an existing one is replaced, after the whole run has been checked. ``.gz`` is compressed.
    name
        The run's name, the last column.

    Raises
    ------
    InvalidArgumentError
        If an id or the name is empty or has white space, which the format cannot represent, or a score is NaN.
    StorageError
        If the file cannot be written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.trec"
    >>> write_trec({"q1": {"d1": 0.5, "d2": 1.25}}, path)
    >>> print(path.read_text(), end="")
    q1 Q0 d2 1 1.25 latelier
    q1 Q0 d1 2 0.5 latelier
    >>> read_trec(path)
    {'q1': {'d2': 1.25, 'd1': 0.5}}
    """
    check_evaluated(run, "run")
    check_scores(run, "the run")
    check_trec_ids("run name", [name])
    check_trec_ids("query id", run)
    lines = []
    for query, scores in run.items():
        check_trec_ids("document id", scores)
        for rank, (document, score) in enumerate(ranking(scores), start=1):
            lines.append(f"{query} Q0 {document} {rank} {score!r} {name}\n")
    write_lines(as_path(path), lines)


def read_trec(path: str | Path) -> dict[str, dict[str, float]]:
    """Read a run, plain or with ``.gz``; ranks and the run's name are dropped.

    Parameters
    ----------
    path
        The file, with six columns per line.

    Returns
    -------
    dict
        Query id to document id to score, in the order of the file.

    Raises
    ------
    InvalidArgumentError
        If a line does not have six columns, a score is not a number, or a document is repeated for a query; the
        message names the file and the line.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.trec"
    >>> _ = path.write_text("q1 Q0 d2 1 1.25 bm25")
    >>> read_trec(path)
    {'q1': {'d2': 1.25}}
    """
    return run_from_lines(numbered_lines(as_path(path)), str(path))


def run_from_lines(lines: Iterable[tuple[int, str]], source: str) -> dict[str, dict[str, float]]:
    """Return the run that numbered lines of a TREC file hold."""
    run: dict[str, dict[str, float]] = {}
    for number, columns in _rows(lines, source, "query-id Q0 document-id rank score name"):
        query, _, document, _, score, _ = columns
        add_entry(run, query, document, _number(float, score, source, number), f"{source}:{number}")
    return run


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
    StorageError
        If the file cannot be written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "qrels.txt"
    >>> write_trec_qrels({"q1": {"d1": 1, "d2": 0}}, path)
    >>> read_trec_qrels(path)
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


def read_trec_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """Read qrels, plain or with ``.gz``.

    Parameters
    ----------
    path
        The file, with four columns per line.

    Returns
    -------
    dict
        Query id to document id to relevance.

    Raises
    ------
    InvalidArgumentError
        If a line does not have four columns, a relevance is not an integer or beyond a million, or a document is
        repeated for a query; the message names the file and the line.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "qrels.txt"
    >>> _ = path.write_text("q1 0 d2 1")
    >>> read_trec_qrels(path)
    {'q1': {'d2': 1}}
    """
    return qrels_from_lines(numbered_lines(as_path(path)), str(path))


def qrels_from_lines(lines: Iterable[tuple[int, str]], source: str) -> dict[str, dict[str, int]]:
    """Return the qrels that numbered lines of a TREC file hold."""
    qrels: dict[str, dict[str, int]] = {}
    for number, columns in _rows(lines, source, "query-id 0 document-id relevance"):
        query, _, document, text = columns
        relevance = _number(int, text, source, number)
        if fault := relevance_fault(relevance):
            raise InvalidArgumentError(f"{source}:{number}: relevance {short(relevance)} {fault}.")
        add_entry(qrels, query, document, relevance, f"{source}:{number}")
    return qrels


def add_entry(table: dict[str, dict[str, Any]], query: str, document: str, value: float, place: str) -> None:
    """Put one number into a run or qrels.

    `table`: the run or qrels, changed in place; raises `InvalidArgumentError` if the document is there already for this
    query.
    """
    row = table.setdefault(query, {})
    if document in row:
        raise InvalidArgumentError(f"{place}: document {document!r} is repeated for query {query!r}.")
    row[document] = value


def check_table(table: object, name: str) -> None:
    """Check that a run or qrels are ``{query id: {document id: number}}``.

    Raises `InvalidArgumentError` if they have another form.
    """
    if not isinstance(table, Mapping):
        raise InvalidArgumentError(f"received {describe(table)} as {name}; expected {_TABLE}.")
    for query, row in table.items():
        _check_row(row, f"query {short(query)} of the {name}")


def check_evaluated(table: Mapping[str, Mapping[str, float]], name: str) -> None:
    """Check what `check_table` checks, and that all ids are str.

    Raises `InvalidArgumentError` if they have another form, or an id is not a str.
    """
    check_table(table, name)
    check_str_ids("query id", table, name)
    for row in table.values():
        check_str_ids("document id", row, name)


def check_scores(run: Run, label: str) -> None:
    """Check that the documents of a run can be ranked."""
    for query, scores in run.items():
        for document, score in scores.items():
            if math.isnan(score):
                raise InvalidArgumentError(
                    f"document {document!r} of query {query!r} in {label} has score NaN, which cannot be ranked."
                )


def check_str_ids(what: str, ids: Iterable[object], name: str) -> None:
    """Check that ids are str: the tools of evaluation take no others, and 1 and ``"1"`` would not match.

    `name`: what the message calls what holds them.
    """
    for id_ in ids:
        if not isinstance(id_, str):
            raise InvalidArgumentError(
                f"received {describe(id_)} as a {what} of the {name}; evaluation takes ids as str: give str(id). "
                "Retriever.run returns such ids."
            )


def _check_row(row: object, name: str) -> None:
    if not isinstance(row, Mapping):
        raise InvalidArgumentError(f"received {describe(row)} as {name}; expected {{document id: number}}.")
    for document, value in row.items():
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError("it is a text")
            float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(
                f"{name}: document {short(document)} has {describe(value)}, which is not a number: {error}."
            ) from error


def check_relevance(qrels: Qrels) -> None:
    """Check that each relevance is an integer, of whatever type, and not too large: see `relevance_fault`.

    `qrels`: query id to document id to relevance, checked by `check_table`.
    """
    for query, judged in qrels.items():
        for document, relevance in judged.items():
            if fault := relevance_fault(float(relevance)):
                raise InvalidArgumentError(
                    f"the relevance of document {document!r} for query {query!r} {fault}: received "
                    f"{describe(relevance)}; give grades such as 0, 1 and 2."
                )


def relevance_fault(relevance: float) -> str | None:
    """Return what is wrong with a relevance; None if it is an integer from minus a million to a million.

    A fraction would be cut off without a word, and a very large integer too, or take all memory.
    """
    if -_LARGEST_RELEVANCE <= relevance <= _LARGEST_RELEVANCE:
        return None if float(relevance).is_integer() else "is not an integer"
    if relevance != relevance or abs(relevance) == math.inf:
        return "is not an integer"
    return f"is not from {-_LARGEST_RELEVANCE:,} to {_LARGEST_RELEVANCE:,}"


def check_trec_ids(what: str, ids: Iterable[str]) -> None:
    """Check that ids can be written to a TREC file."""
    for id_ in ids:
        if not isinstance(id_, str) or not id_ or any(character.isspace() for character in id_):
            raise InvalidArgumentError(
                f"{what} {id_!r} cannot be written to a TREC file, as white space separates its columns; give a str "
                "without white space, or write JSON Lines: to a file whose name ends in .jsonl."
            )


def _rows(lines: Iterable[tuple[int, str]], source: str, form: str) -> Iterable[tuple[int, list[str]]]:
    for number, line in lines:
        columns = line.split()
        if len(columns) != len(form.split()):
            raise InvalidArgumentError(f'{source}:{number}: {len(columns)} columns; expected "{form}".')
        yield number, columns


def _number(kind: type, text: str, source: str, line: int) -> Any:
    try:
        value = kind(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{source}:{line}: {text!r} is not {_KINDS[kind]}.") from error
    if value != value:
        raise InvalidArgumentError(f"{source}:{line}: the score is NaN, which cannot be ranked.")
    return value
