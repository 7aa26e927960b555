"""Runs and relevance judgements, what they must be, and what becomes of the faulty lines of their files.

A run is a plain dict, ``run[query id][document id] = score``; qrels have the same form with integers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Mapping
from itertools import islice
from typing import TypeAlias, get_args

from latelier.errors import InvalidArgumentError
from latelier.reading.rows import OnProblem
from latelier.utils.checks import check_choice, describe, short
from latelier.utils.misc import warn_caller

Run: TypeAlias = Mapping[str, Mapping[str, float]]
"""Query id to document id to score."""

Qrels: TypeAlias = Mapping[str, Mapping[str, int]]
"""Query id to document id to relevance."""

Excluded: TypeAlias = Mapping[str, Collection[str]]
"""Query id to the ids of documents that do not count for it."""

_LISTED = 10


class Problems:
    """The faulty lines found so far; `settle` raises one error or issues one warning about them."""

    def __init__(self, on_problem: OnProblem) -> None:
        check_choice("on_problem", on_problem, get_args(OnProblem))
        self.on_problem = on_problem
        self.total = 0
        self._first: list[str] = []

    def add(self, place: str, what: str) -> None:
        """Record one faulty line."""
        self.total += 1
        if len(self._first) < _LISTED:
            self._first.append(f"  {place}: {what.removesuffix('.')}")

    def settle(self, source: str) -> None:
        """Raise or warn if any line was recorded; the message begins with ``source``."""
        if not self.total:
            return
        hidden = self.total - len(self._first)
        places = "\n".join([*self._first, *([f"  and {hidden:,} more"] if hidden else [])])
        found = f"{source} has {self.total:,} problem{'s' if self.total > 1 else ''}"
        if self.on_problem == "skip":
            warn_caller(f"{found}; these lines are skipped:\n{places}")
            return
        raise InvalidArgumentError(f"{found}:\n{places}\n", advice="skip-faulty")


_TABLE = "{query id: {document id: number}}"


def check_table(table: object, name: str) -> None:
    """Check that a run or qrels are ``{query id: {document id: number}}``."""
    if not isinstance(table, Mapping):
        raise InvalidArgumentError(f"received {describe(table)} as {name}; expected {_TABLE}.")
    for query, row in table.items():
        if not isinstance(row, Mapping):
            raise InvalidArgumentError(
                f"received {describe(row)} as query {short(query)} of the {name}; expected {_TABLE}."
            )
        for document, value in row.items():
            try:
                float("a text" if isinstance(value, (str, bytes)) else value)
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidArgumentError(
                    f"query {short(query)} of the {name}: document {short(document)} has {describe(value)}, which is "
                    "not a number."
                ) from error


def check_evaluated(table: Mapping[str, Mapping[str, float]], name: str) -> None:
    """Check what `check_table` checks, and that all ids are str."""
    check_table(table, name)
    check_str_ids("query id", table, name)
    for row in table.values():
        check_str_ids("document id", row, name)


def check_excluded(excluded: Excluded) -> Excluded:
    """Return what is left out, checked: ``{query id: [document id, ...]}``."""
    for query, ids in excluded.items():
        if isinstance(ids, str) or not isinstance(ids, Collection):
            raise InvalidArgumentError(
                f"received {describe(ids)} as excluded documents of query {short(query)}; expected a list of ids."
            )
        check_str_ids("document id", ids, "excluded documents")
    check_str_ids("query id", excluded, "excluded documents")
    return excluded


def without(run: Run, excluded: Excluded) -> dict[str, dict[str, float]]:
    """Return a run without the documents that do not count for its queries."""
    left_out = {query: frozenset(ids) for query, ids in excluded.items()}
    return {
        query: {id_: score for id_, score in row.items() if id_ not in left_out.get(query, ())}
        for query, row in run.items()
    }


def check_str_ids(what: str, ids: Iterable[object], name: str) -> None:
    """Check that ids are str: the tools of evaluation take no others, and 1 and ``"1"`` would not match."""
    for id_ in ids:
        if not isinstance(id_, str):
            raise InvalidArgumentError(
                f"received {describe(id_)} as a {what} of the {name}; evaluation takes ids as str: give str(id). "
                "Retriever.run returns such ids."
            )


def check_scores(run: Run, label: str) -> None:
    """Check that the documents of a run can be ranked."""
    for query, scores in run.items():
        for document, score in scores.items():
            if math.isnan(score):
                raise InvalidArgumentError(
                    f"document {document!r} of query {query!r} in {label} has score NaN, which cannot be ranked."
                )


def check_same_documents(run: Run, qrels: Qrels, label: str, documents: Container[str] = ()) -> None:
    """Check that a judged document was found by some query or is one of `documents`: else all measures would be 0."""
    found = dict.fromkeys(id for scores in run.values() for id in scores)
    judged = dict.fromkeys(id for row in qrels.values() for id in row)
    if any(id in found or id in documents for id in judged):
        return
    raise InvalidArgumentError(
        f"none of the {len(judged):,} judged documents, such as {_listed(judged)}, is in {label}, which "
        f"{f'has {_listed(found)}' if found else 'is empty'}: do they belong to the same collection, and have its ids?"
    )


def _listed(ids: Iterable[str]) -> str:
    """Return the first ids, as samples of what they look like."""
    return ", ".join(short(id) for id in islice(ids, 3))


def check_relevance(qrels: Qrels) -> None:
    """Check that each relevance is an integer, of whatever type, and not too large: see `relevance_fault`."""
    for query, judged in qrels.items():
        for document, relevance in judged.items():
            if fault := relevance_fault(float(relevance)):
                raise InvalidArgumentError(
                    f"the relevance of document {document!r} for query {query!r} {fault}: received "
                    f"{describe(relevance)}; give grades such as 0, 1 and 2."
                )


# trec_eval allocates arrays as long as the largest relevance, and holds it in a C integer: larger ones take gigabytes,
# are cut off, or end the process.
_LARGEST_RELEVANCE = 1_000_000


def relevance_fault(relevance: float) -> str | None:
    """Return what is wrong with a relevance; None if it is an integer from minus a million to a million.

    A fraction would be cut off without a word, and a very large integer too, or take all memory.
    """
    if -_LARGEST_RELEVANCE <= relevance <= _LARGEST_RELEVANCE:
        if float(relevance).is_integer():
            return None
        return "is not an integer"
    if relevance != relevance or abs(relevance) == math.inf:
        return "is not an integer"
    return f"is not from {-_LARGEST_RELEVANCE:,} to {_LARGEST_RELEVANCE:,}"
