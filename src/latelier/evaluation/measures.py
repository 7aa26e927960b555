"""`evaluate`: retrieval measures of a run over all queries with relevance judgements, computed by ir-measures.

Unlike ir-measures itself, `evaluate` orders each query's documents once, by `latelier.evaluation.files.ranking` (the
tools that ir-measures wraps break ties in different ways), and counts a judged query without results as zero.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import re
from collections.abc import Container, Iterable, Mapping
from subprocess import SubprocessError
from types import ModuleType
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.evaluation.checks import (
    Excluded,
    Qrels,
    Run,
    check_evaluated,
    check_excluded,
    check_relevance,
    check_same_documents,
    check_scores,
    without,
)
from latelier.evaluation.files import ranking
from latelier.utils.checks import describe
from latelier.utils.misc import bar, fragment, needs_extra, table, warn_caller

DEFAULT_MEASURES = ("nDCG@10", "RR@10", "Success@1", "R@100")
_GDEVAL_HIGHEST = 4
_COMPUTED_APART = ("NumRet", "NumQ", "IPrec")
_FORM = re.compile(r"(?P<name>\w+)(?:\((?P<arguments>.*)\))?(?:@(?P<cutoff>\S+))?")


class Evaluation(dict[str, float]):
    """Measure name to its mean over all judged queries; prints as a table.

    Parameters
    ----------
    means
        Measure name to mean.
    per_query
        Query id to measure name to value, for significance tests and for finding the queries that fail.
    settings
        What the run was made with, by name, as JSON values: model, lengths, index, ...; printed below the table.
        Default: nothing.

    Examples
    --------
    >>> Evaluation({"RR": 0.5}, {"q1": {"RR": 0.25}, "q2": {"RR": 0.75}})
    RR  0.5000
    (mean of 2 queries)
    """

    def __init__(
        self,
        means: Mapping[str, float],
        per_query: Mapping[str, Mapping[str, float]],
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(means)
        self.settings = dict(settings or {})
        self.per_query = {query: dict(values) for query, values in per_query.items()}

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        rows = [f"{name:{width}}  {value:.4f}" for name, value in self.items()]
        shown = [f"{name} {value}" for name, value in self.settings.items() if value not in (None, "")]
        return "\n".join([*rows, f"({self._caption()})", *([", ".join(shown)] if shown else [])])

    def _repr_html_(self) -> str:
        rows = [(name, bar(f"{value:.4f}", value)) for name, value in self.items()]
        return fragment(table(["measure", "value"], rows, caption=self._caption()))

    def _caption(self) -> str:
        count = len(self.per_query)
        return f"mean of {count:,} quer{'y' if count == 1 else 'ies'}"


def evaluate(
    run: Run,
    qrels: Qrels,
    measures: Iterable[str] = DEFAULT_MEASURES,
    *,
    ignore_identical_ids: bool | None = None,
    excluded: Excluded | None = None,
) -> Evaluation:
    """Compute retrieval measures over all queries that have relevance judgements.

    Parameters
    ----------
    run
        Query id to document id to score, as `Retriever.run` and `read_run` return it. Queries without qrels are
        ignored. Only the order of the scores counts; equal scores are ordered by descending id, as in ``trec_eval``.
    qrels
        Query id to document id to relevance, an integer (``1.0`` is one too) from minus a million to a million.
    measures
        Names in ir-measures' spelling: ``"nDCG@10"``, ``"RR@10"``, ``"R@100"``, ``"P(rel=2)@5"``, ``"AP"``,
        ``"Success@1"``, ...
    ignore_identical_ids
        Leave out the document with the id of its query, as BEIR does: in collections such as ArguAna, the queries stand
        among the documents. Default: where a query found such a document, no query has it as a relevant one, and such
        ids are not numbers, which two lists share by chance: then a warning says that they are kept. The settings say
        so. `Collection.identical_ids` knows it from the texts.
    excluded
        Query id to the ids of documents that do not count for it, such as ``excluded`` of a `Collection` of BRIGHT:
        they are left out of the run. Default: none.

    Returns
    -------
    Evaluation
        A dict from measure name to mean, in the given order, with ``.per_query``, and with the ``.settings`` of a run
        of `Retriever.run`.

    Raises
    ------
    InvalidArgumentError
        If the run or the qrels are empty, or share no query or no document, an id is not a str, a score is NaN, a
        relevance is not an integer or beyond a million, or a measure is unknown (the message suggests the nearest name)
        or undefined for a query.
    MissingExtraError
        If ir-measures is not installed.

    Warns
    -----
    UserWarning
        If judged queries have no results in the run: they count as 0.

    Examples
    --------
    >>> run = {"q1": {"d1": 0.9, "d2": 0.8}, "q2": {"d1": 0.3, "d3": 0.2}}
    >>> qrels = {"q1": {"d1": 1}, "q2": {"d3": 1}}
    >>> evaluation = evaluate(run, qrels, ["nDCG@10", "RR@10"])
    >>> evaluation
    nDCG@10  0.8155
    RR@10    0.7500
    (mean of 2 queries)
    >>> evaluation["RR@10"], evaluation.per_query["q2"]["RR@10"]
    (0.75, 0.5)
    """
    return evaluate_named(run, qrels, measures, "the run", ignore_identical_ids, excluded=excluded)


def evaluate_named(
    run: Run,
    qrels: Qrels,
    measures: Iterable[str],
    label: str,
    ignore_identical_ids: bool | None,
    documents: Container[str] = (),
    excluded: Excluded | None = None,
) -> Evaluation:
    """Do what `evaluate` does, and call the run by a label in messages; warnings name the caller's caller.

    `documents`: ids of what was searched, if known; a run may then miss all judged ones.
    """
    ir_measures = _ir_measures()
    parsed = _parse_all(measures, ir_measures)
    settings = dict(getattr(run, "settings", {}))
    check_evaluated(run, label.removeprefix("the "))
    check_evaluated(qrels, "qrels")
    qrels = {query: judged for query, judged in qrels.items() if judged}
    _check(run, qrels, label)
    check_same_documents(run, qrels, label, documents)
    if ignore_identical_ids is None:
        ignore_identical_ids = _has_identical_ids(run, qrels, label)
    if ignore_identical_ids:
        run = without_own(run)
        settings["ignore_identical_ids"] = True
    if excluded:
        run = without(run, check_excluded(excluded))
        settings["excluded"] = sum(map(len, excluded.values()))
    # Negated ranks as scores: every measure sees the same order.
    ranked = {
        query: {id_: float(-rank) for rank, (id_, _) in enumerate(ranking(run[query]))}
        for query in qrels
        if run.get(query)
    }
    per_query = _values(ir_measures, list(parsed.values()), qrels, ranked)
    means: dict[str, float] = {}
    for name, measure in parsed.items():
        aggregate = measure.aggregator()
        for values in per_query.values():
            aggregate.add(values[str(measure)])
        means[name] = aggregate.result()
    return Evaluation(
        means,
        {q: {name: values[str(m)] for name, m in parsed.items()} for q, values in per_query.items()},
        settings,
    )


def _has_identical_ids(run: Run, qrels: Qrels, label: str) -> bool:
    """Whether the ids of queries and documents are those of one list; of numbers, nobody can know by the ids alone."""
    own = [query for query, row in run.items() if query in qrels and query in row]
    if not own or any(judged.get(query, 0) > 0 for query, judged in qrels.items()):
        return False
    if all(query.isdecimal() for query in own):
        warn_caller(
            f"{len(own):,} queries of {label} found a document with their id, such as {own[0]!r}; these ids are "
            "numbers, so the documents are kept. If they are the queries themselves, give ignore_identical_ids=True "
            "(--ignore-identical-ids); if not, False.",
        )
        return False
    return True


def without_own(run: Run) -> dict[str, dict[str, float]]:
    """Return a run without the documents with the ids of their queries."""
    return {query: {id_: score for id_, score in row.items() if id_ != query} for query, row in run.items()}


def default_measures(k: int) -> list[str]:
    """Return the default measures for a run of `k` documents per query: larger cutoffs become `k`."""
    pairs = (name.split("@") for name in DEFAULT_MEASURES)
    return [f"{name}@{min(int(cutoff), k)}" for name, cutoff in pairs]


def largest_cutoff(measures: Iterable[str] = DEFAULT_MEASURES) -> tuple[str, int] | None:
    """Return name and cutoff of the measure that needs the most documents of each query; None if none has a cutoff."""
    cutoffs = {name: measure.params.get("cutoff") for name, measure in _parse_all(measures, _ir_measures()).items()}
    return max(((name, cutoff) for name, cutoff in cutoffs.items() if cutoff), key=lambda pair: pair[1], default=None)


def _ir_measures() -> ModuleType:
    with needs_extra("Computing retrieval measures", "eval"):
        import ir_measures
    return ir_measures


def _parse_all(measures: Iterable[str], ir_measures: ModuleType) -> dict[str, Any]:
    """Build measures from their names."""
    if isinstance(measures, str):
        names = [measures]
    else:
        names = list(measures)
    if not names:
        raise InvalidArgumentError(f"received no measure; expected names such as {', '.join(DEFAULT_MEASURES)}.")
    return {name: _parse(name, ir_measures) for name in names}


def _parse(name: str, ir_measures: ModuleType) -> Any:
    """Build a measure from its name; ir-measures' own parser needs Python < 3.14."""
    if isinstance(name, str):
        form = _FORM.fullmatch(name.strip())
    else:
        form = None
    if form is None:
        raise InvalidArgumentError(
            f"cannot read measure {name!r}; expected Name, Name@cutoff or Name(key=value)@cutoff."
        )
    known = ir_measures.measures.registry
    lowered = {key.lower(): key for key in reversed(known)}  # of two spellings, the first in ir-measures
    spelled = form["name"]
    if spelled not in known:
        spelled = lowered.get(spelled.lower())
    if spelled is None:
        near = difflib.get_close_matches(form["name"].lower(), lowered, n=1, cutoff=0.5)
        if near:
            hint = f"did you mean {lowered[near[0]]!r}?"
        else:
            hint = f"known are {', '.join(known)}."
        raise InvalidArgumentError(f"unknown measure {name!r}; {hint}")
    kind = known[spelled]
    try:
        call = ast.parse(f"f({form['arguments'] or ''})", mode="eval").body
        arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}  # type: ignore[attr-defined]
        at = kind.AT_PARAM  # what stands after @: the cutoff, or the recall of IPrec@0.1
        if form["cutoff"] is not None:
            arguments[at] = ast.literal_eval(form["cutoff"])
        if at == "cutoff" and arguments.get(at, 1) < 1:
            raise ValueError("the cutoff must be at least 1")  # with 0, pytrec_eval ends the process
        if at == "recall" and at in arguments:
            arguments[at] = float(arguments[at])
            if arguments[at] not in {round(0.01 * part, 2) for part in range(101)}:  # ir-measures rounds it
                raise ValueError("the recall must be from 0 to 1, with at most two decimals")
        missing = [key for key, info in kind.SUPPORTED_PARAMS.items() if info.required and key not in arguments]
        if missing:
            raise ValueError(f"{' and '.join(missing)} must be given{' after @' * (missing == [at])}")
        measure = kind(**arguments)
        measure.validate_params()
    except (SyntaxError, ValueError, TypeError, AssertionError) as error:
        raise InvalidArgumentError(f"cannot read measure {name!r}: {error}.") from error
    return measure


def _check(run: Run, qrels: Qrels, label: str) -> None:
    if not qrels:
        raise InvalidArgumentError("received no qrels; expected {query id: {document id: integer}}.")
    check_relevance(qrels)
    if not any(run.values()):
        if run:
            found = f"none of its {len(run):,} queries has a document"
        else:
            found = "it has no query"
        raise InvalidArgumentError(f"{label} is empty: {found}; expected {{query id: {{document id: score}}}}.")
    check_scores(run, label)
    missing = [query for query in qrels if not run.get(query)]
    if len(missing) == len(qrels):
        raise InvalidArgumentError(
            f"{label} and the qrels share no query: {label} has {next(iter(run))!r}, ..., the qrels {missing[0]!r}, "
            "...; do they belong to the same collection?"
        )
    if missing:
        shown = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
        warn_caller(
            f"{len(missing):,} of {len(qrels):,} judged queries have no results in {label} and count as 0: {shown}"
        )


def _values(ir_measures: ModuleType, measures: list[Any], qrels: Qrels, run: Run) -> dict[str, dict[str, float]]:
    """Return query id to measure to value; a query without results gets the measure's default."""
    _check_gdeval(ir_measures, measures, qrels, run)
    values = {query: {str(measure): float(measure.DEFAULT) for measure in measures} for query in qrels}
    # gdeval takes only numbers as query ids.
    queries = {str(number): query for number, query in enumerate(qrels)}
    found = {n: run[query] for n, query in queries.items() if query in run}
    judged = {n: _judged(qrels[query], found.get(n, {})) for n, query in queries.items()}
    try:
        for group in _compatible(measures):
            for metric in ir_measures.iter_calc(group, judged, found):
                values[queries[metric.query_id]][str(metric.measure)] = float(metric.value)
    except (TypeError, ValueError, RuntimeError, ArithmeticError, LookupError, OSError, SubprocessError) as error:
        raise InvalidArgumentError(f"ir-measures cannot compute {measures}: {error}") from error
    return values


def _compatible(measures: list[Any]) -> list[list[Any]]:
    """Divide measures into groups of which each can be computed in one call."""
    apart = [m for m in measures if m.NAME in _COMPUTED_APART or "gains" in m.params]
    together = [measure for measure in measures if measure not in apart]
    return [[measure] for measure in apart] + ([together] if together else [])


def _judged(judged: Mapping[str, float], found: Mapping[str, float]) -> dict[str, int]:
    """Return the judgements of a query, as pytrec_eval takes them.

    It reads outside of its memory where all relevances are negative. One more document that is not relevant, and not in
    the run, changes no measure of such a query, which has no relevant document.
    """
    relevances = {id_: int(relevance) for id_, relevance in judged.items()}
    if max(relevances.values()) < 0:
        unknown = (f"not-relevant-{number}" for number in itertools.count())
        relevances[next(id_ for id_ in unknown if id_ not in relevances and id_ not in found)] = 0
    return relevances


def _check_gdeval(ir_measures: ModuleType, measures: list[Any], qrels: Qrels, run: Run) -> None:
    """Check what the script gdeval.pl takes: it reads text files, and no relevance above 4."""
    gdeval = ir_measures.providers.registry["gdeval"]
    measure = next((measure for measure in measures if gdeval.supports(measure)), None)
    if measure is None:
        return
    for query, judged in qrels.items():
        for document in (*judged, *run.get(query, {})):
            if document.split() != [document]:
                raise InvalidArgumentError(
                    f"{measure} cannot be computed with document id {document!r}; it takes ids without white space."
                )
        highest = max(judged.values())
        if highest > _GDEVAL_HIGHEST:
            raise InvalidArgumentError(
                f"{measure} takes relevances up to {_GDEVAL_HIGHEST}; query {query!r} has {describe(highest)}. Map the "
                "grades to 0 to 4, or leave the measure out."
            )
