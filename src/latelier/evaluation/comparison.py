"""`compare`: whether two runs differ beyond chance, query by query.

The numbers are a measure's values for each query, one system's minus another's. None of these assumes a distribution,
which matters for measures such as RR@10 with a few distinct values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.evaluation.checks import Excluded, Qrels, Run
from latelier.evaluation.measures import DEFAULT_MEASURES, Evaluation, evaluate_named
from latelier.utils.checks import check_count
from latelier.utils.misc import Markup, escape, fragment, table

# Random numbers drawn at once.
_BLOCK = 1 << 22
# Of the bootstrap: with as many, an end has a standard error of 1% of the interval's width.
_RESAMPLES = 10_000
# Relative rounding error of a sum of differences: orders of magnitude above the real one, and below any difference.
_ROUNDING = 1e-12


def randomization_test(differences: Sequence[float] | np.ndarray, trials: int = 100_000, seed: int = 0) -> float:
    """Return the two-sided p-value of the paired randomisation test (Smucker, Allan and Carterette, CIKM 2007).

    ``p = (hits + 1) / (trials + 1)``, hits being the trials with ``|sum(s * d)| >= |sum(d)|`` for random signs ``s``
    (the ``+ 1``: Phipson and Smyth, 2010); exact, over all ``2 ** n`` combinations, if these are at most `trials`.
    """
    values = _checked(differences)
    check_count("trials", trials)
    values = values[values != 0.0]
    if not len(values):
        return 1.0
    reached = abs(values.sum()) - _ROUNDING * np.abs(values).sum()
    if len(values) < 63 and 2 ** len(values) <= trials:
        return sum(_hits(block, values, reached) for block in _all_signs(len(values))) / 2 ** len(values)
    blocks = _random_signs(len(values), trials, _generator(seed))
    return (sum(_hits(block, values, reached) for block in blocks) + 1) / (trials + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for several tests by Holm's step-down procedure (Scand. Journal of Statistics 6, 1979).

    With ``p[1] <= ... <= p[m]`` the corrected value of ``p[i]`` is ``max over j <= i of min(1, (m - j + 1) * p[j])``.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[position]))
        corrected[position] = largest
    return corrected


def paired_effect_size(differences: Sequence[float] | np.ndarray) -> float:
    """Return Cohen's d of paired values (d_z): ``mean(d) / sd(d)`` with ``n - 1`` in the standard deviation."""
    values = _checked(differences)
    mean = float(values.mean())
    deviation = float(values.std(ddof=1))
    if deviation <= _ROUNDING * abs(mean):
        if mean:
            return math.copysign(math.inf, mean)
        return 0.0
    return mean / deviation


def bootstrap_interval(
    differences: Sequence[float] | np.ndarray, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean difference (Efron and Tibshirani, 1993, section 13.3)."""
    values = _checked(differences)
    rng = _generator(seed)
    means = np.concatenate(
        [values[rng.integers(0, len(values), (rows, len(values)))].mean(axis=1) for rows in _rows(_RESAMPLES, values)]
    )
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _checked(differences: Sequence[float] | np.ndarray) -> np.ndarray:
    values = np.asarray(differences, dtype="float64")
    if not np.isfinite(values).all():
        raise InvalidArgumentError(f"difference {int(np.argmin(np.isfinite(values)))} is not finite.")
    return values


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(check_count("seed", seed, 0))


def _hits(flipped: np.ndarray, values: np.ndarray, reached: float) -> int:
    """Count the rows of `flipped` ``(trials, n)``, 0 or 1, whose sum with these signs is at least the observed one."""
    sums = values.sum() - 2.0 * (flipped @ values)
    return int(np.count_nonzero(np.abs(sums) >= reached))


def _all_signs(n: int) -> Iterator[np.ndarray]:
    step = max(1, _BLOCK // n)
    for start in range(0, 2**n, step):
        codes = np.arange(start, min(start + step, 2**n))
        yield ((codes[:, None] >> np.arange(n)) & 1).astype("float64")


def _random_signs(n: int, trials: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    for rows in _rows(trials, range(n)):
        bits = np.frombuffer(rng.bytes(-(-rows * n // 8)), dtype="uint8")
        yield np.unpackbits(bits, count=rows * n).reshape(rows, n).astype("float64")


def _rows(total: int, width: Sequence[float] | np.ndarray) -> Iterator[int]:
    """Yield numbers of rows that add up to `total`, with at most about `_BLOCK` numbers in each block."""
    step = max(1, _BLOCK // len(width))
    for start in range(0, total, step):
        yield min(step, total - start)


# Smaller differences are rounding, as of an nDCG whose gains were added in another order, and count as ties.
_TIE = 1e-9
_SHOWN = 5
_COLUMNS = ("diff", "95% interval", "d", "p", "p Holm", "W/T/L")


@dataclass(frozen=True)
class MeasureComparison:
    """One measure of two runs.

    Parameters
    ----------
    a, b
        The mean of each run over the judged queries.
    differences
        Query id to the value of `b` minus the value of `a`.
    interval
        95% bootstrap interval of the mean difference.
    effect_size
        Cohen's d of paired values: mean difference / standard deviation of the differences.
    p
        p-value of the paired randomisation test, two-sided.
    p_holm
        `p` corrected for the number of measures.

    Examples
    --------
    >>> differences = {"q1": 0.5, "q2": 0.0, "q3": -0.2}
    >>> tests = ((-0.2, 0.5), 0.28, 1.0, 1.0)
    >>> found = MeasureComparison(0.4, 0.5, differences, *tests)
    >>> found.wins, found.ties, found.losses, found.changed(1)
    (1, 1, 1, {'q1': 0.5})
    """

    a: float
    b: float
    differences: dict[str, float]
    interval: tuple[float, float]
    effect_size: float
    p: float
    p_holm: float

    @property
    def difference(self) -> float:
        """The mean difference."""
        return sum(self.differences.values()) / len(self.differences)

    @property
    def wins(self) -> int:
        """Number of queries that `b` answers better."""
        return sum(value > 0 for value in self.differences.values())

    @property
    def losses(self) -> int:
        """Number of queries that `b` answers worse."""
        return sum(value < 0 for value in self.differences.values())

    @property
    def ties(self) -> int:
        """Number of queries without a difference."""
        return len(self.differences) - self.wins - self.losses

    def changed(self, n: int = 10) -> dict[str, float]:
        """Return the differences of the `n` queries that changed most, largest change first, ties left out.

        Parameters
        ----------
        n
            How many queries, at most.

        Returns
        -------
        dict
            Query id to the value of the second run minus that of the first.
        """
        order = sorted(self.differences.items(), key=lambda item: (-abs(item[1]), item[0]))
        return {query: value for query, value in order[:n] if value}


class Comparison(dict[str, MeasureComparison]):
    """Measure name to `MeasureComparison`; prints as a table, with the queries that changed most by the first measure.

    Parameters
    ----------
    measures
        Measure name to its comparison.
    names
        What to call the runs.
    trials
        Trials of each randomisation test.
    settings
        Those that differ: name to the values of both runs, None where a run does not have it.

    Examples
    --------
    >>> qrels = {"q1": {"a": 1}, "q2": {"b": 1}}
    >>> first = {"q1": {"a": 2.0, "b": 1.0}, "q2": {"a": 2.0, "b": 1.0}}
    >>> second = {"q1": {"a": 2.0, "b": 1.0}, "q2": {"a": 1.0, "b": 2.0}}
    >>> comparison = compare(first, second, qrels, ["RR"])
    >>> list(comparison), comparison["RR"].a, comparison["RR"].b
    (['RR'], 0.75, 1.0)
    """

    def __init__(
        self,
        measures: Mapping[str, MeasureComparison],
        names: tuple[str, str],
        trials: int,
        settings: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> None:
        super().__init__(measures)
        self.names = names
        self.trials = trials
        self.settings = dict(settings or {})

    def __repr__(self) -> str:
        rows = [self._header(), *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        rows = [
            (name, *(Markup(f'<div class="number">{escape(cell)}</div>') for cell in row))
            for name, *row in self._rows()
        ]
        return fragment(table(self._header(), rows), " ".join(self._notes()[:2]), *self._notes()[2:])

    def _header(self) -> tuple[str, ...]:
        return ("measure", *self.names, *_COLUMNS)

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for name, measure in self.items():
            values = f"{measure.a:.4f}", f"{measure.b:.4f}", f"{measure.difference:+.4f}"
            interval = "[{:+.4f}, {:+.4f}]".format(*measure.interval)
            tests = f"{measure.effect_size:+.2f}", _probability(measure.p), _probability(measure.p_holm)
            rows.append((name, *values, interval, *tests, f"{measure.wins}/{measure.ties}/{measure.losses}"))
        return rows

    def _notes(self) -> list[str]:
        """Return what stands below the table."""
        first, measure = next(iter(self.items()))
        changed = ", ".join(f"{query} {value:+.4f}" for query, value in measure.changed(_SHOWN).items())
        a, b = self.names
        differing = ", ".join(f"{name} {first} / {second}" for name, (first, second) in self.settings.items())
        return [
            f"({len(measure.differences):,} queries; diff is {b} minus {a}; W/T/L: {b} wins, ties, losses;",
            f"p of a paired randomisation test, two-sided, {self.trials:,} trials)",
            f"changed most by {first}: {changed or 'no query'}",
            *([f"settings that differ: {differing}"] if differing else []),
        ]


def compare(
    run_a: Run | Evaluation,
    run_b: Run | Evaluation,
    qrels: Qrels | None = None,
    measures: Iterable[str] | None = None,
    *,
    names: tuple[str, str] = ("a", "b"),
    trials: int = 100_000,
    seed: int = 0,
    ignore_identical_ids: bool | None = None,
    excluded: Excluded | None = None,
) -> Comparison:
    """Compare two runs on the same queries: by how much `run_b` differs from `run_a`, and whether by chance.

    Each measure gets a paired randomisation test (Smucker, Allan and Carterette, CIKM 2007); the p-values are corrected
    by Holm's procedure for the number of measures. With a corrected p-value up to 0.05, the runs differ beyond chance.

    Parameters
    ----------
    run_a, run_b
        Query id to document id to score, or the `Evaluation` of a run. `run_a` is the baseline: a positive difference
        means that `run_b` is better.
    qrels, measures
        As in `evaluate`: queries without qrels are ignored, and a judged query without results counts as 0. Two
        evaluations need none, and are compared by the measures that both have.
    names
        What to call the runs in the table and in messages.
    trials
        Trials of the randomisation test. With few queries that differ, it tries all combinations of signs.
    seed
        Seed of the test and of the bootstrap interval: the same arguments give the same result.
    ignore_identical_ids, excluded
        As in `evaluate`; what a run does not hold makes no difference to it.

    Returns
    -------
    Comparison
        A dict from measure name to `MeasureComparison`, in the given order; its `settings` are those that differ.

    Raises
    ------
    InvalidArgumentError
        As in `evaluate`, if two evaluations share no measure or are of other queries, if fewer than two queries have
        qrels, or a measure is not a number for a query.

    Examples
    --------
    >>> qrels = {f"q{i}": {"good": 1} for i in range(8)}
    >>> first = {query: {"bad": 2.0, "good": 1.0} for query in qrels}
    >>> second = {query: {"good": 1.0} for query in qrels} | {"q7": {"bad": 1.0}}
    >>> found = compare(first, second, qrels, ["RR"])["RR"]
    >>> found.difference, found.wins, found.ties, found.losses
    (0.375, 7, 0, 1)
    >>> found.p, found.p_holm  # 18 of the 256 combinations of signs
    (0.0703125, 0.0703125)
    """
    a, b = names
    if not isinstance(measures, (str, type(None))):
        measures = list(measures)  # an iterator could be read only once

    def evaluated(run: Run | Evaluation, name: str) -> Evaluation:
        if isinstance(run, Evaluation):
            return run
        chosen = measures or DEFAULT_MEASURES
        return evaluate_named(run, qrels or {}, chosen, f"run {name}", ignore_identical_ids, excluded=excluded)

    first = evaluated(run_a, a)
    second = evaluated(run_b, b)
    shared = [name for name in first if name in second and (measures is None or name in measures)]
    if not shared or first.per_query.keys() != second.per_query.keys():
        raise InvalidArgumentError(
            f"{a} and {b} cannot be compared: they have the measures {', '.join(first)} and {', '.join(second)}, and "
            f"{len(first.per_query.keys() ^ second.per_query.keys()):,} queries are in one of the two only."
        )
    queries = len(first.per_query)
    if queries < 2:
        raise InvalidArgumentError(
            f"received qrels of {queries} query; a comparison needs at least two, and dozens to tell systems apart."
        )
    differences = {name: _differences(first, second, name) for name in shared}
    p_values = [randomization_test(list(values.values()), trials, seed) for values in differences.values()]
    compared = {}
    for (name, values), p, p_holm in zip(differences.items(), p_values, holm(p_values), strict=True):
        listed = list(values.values())
        interval = bootstrap_interval(listed, seed=seed)
        effect = paired_effect_size(listed)
        compared[name] = MeasureComparison(first[name], second[name], values, interval, effect, p, p_holm)
    used = first.settings, second.settings
    settings = {name: (used[0].get(name), used[1].get(name)) for name in {**used[0], **used[1]} if name != "seconds"}
    differing = {name: pair for name, pair in settings.items() if all(used) and pair[0] != pair[1]}
    return Comparison(compared, (a, b), trials, differing)


def _differences(first: Evaluation, second: Evaluation, measure: str) -> dict[str, float]:
    found = {}
    for query, values in first.per_query.items():
        difference = second.per_query[query][measure] - values[measure]
        if abs(difference) <= _TIE:
            found[query] = 0.0
        else:
            found[query] = difference
    return found


def _probability(p: float) -> str:
    if p >= 0.0001:
        return f"{p:.4f}"
    return f"{p:.0e}"
