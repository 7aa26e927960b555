"""Statistics of paired differences: the randomisation test, Holm's correction, a bootstrap interval, an effect size.

The numbers are a measure's values for each query, one system's minus another's. None of these assumes a distribution,
which matters for measures such as RR@10 with a few distinct values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_count

__all__ = ["bootstrap_interval", "holm", "paired_effect_size", "randomization_test"]

# Random numbers drawn at once.
_BLOCK = 1 << 22
# Of the bootstrap: with as many, an end has a standard error of 1% of the interval's width.
_RESAMPLES = 10_000
# Relative rounding error of a sum of differences: orders of magnitude above the real one, and below any difference.
_ROUNDING = 1e-12


def randomization_test(differences: Sequence[float] | np.ndarray, trials: int = 100_000, seed: int = 0) -> float:
    """Return the p-value of the paired randomisation (sign-flip) test of a mean difference of zero, two-sided.

    If the systems do not differ, each difference may as well have the other sign. The test compares ``|sum(d)|`` with
    ``|sum(s * d)|`` for random signs ``s``:

        p = (hits + 1) / (trials + 1),    hits = number of trials with |sum(s * d)| >= |sum(d)|

    If all ``2 ** n`` combinations of the signs of the `n` differences that are not zero are at most `trials`, it counts
    in all of them instead, and p is exact.

    Parameters
    ----------
    differences
        One number for each query, ``(queries,)``.
    trials
        Number of random combinations of signs.
    seed
        Seed of the signs: the same differences, trials and seed give the same p-value.

    Returns
    -------
    float
        The p-value; 1.0 if all differences are zero.

    Raises
    ------
    InvalidArgumentError
        If there are no differences, one is not finite, or `trials` or `seed` is out of range.

    References
    ----------
    M. D. Smucker, J. Allan, B. Carterette: A Comparison of Statistical Significance Tests for Information Retrieval
    Evaluation. CIKM 2007. Counting the observed combination as a trial (the two ``+ 1``) is due to B. Phipson,
    G. K. Smyth: Permutation P-values Should Never Be Zero. 2010.

    Examples
    --------
    >>> randomization_test([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])  # 2 of 64
    0.03125
    >>> round(randomization_test([0.5, -0.25] * 20), 2)
    0.06
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
    """Return p-values corrected for several tests by Holm's step-down procedure.

    With ``p[1] <= ... <= p[m]`` the corrected value of ``p[i]`` is ``max over j <= i of min(1, (m - j + 1) * p[j])``.
    Rejecting those up to 0.05 keeps the probability of one or more false rejections among all tests below 0.05.

    Parameters
    ----------
    p_values
        One p-value for each test.

    Returns
    -------
    list of float
        The corrected values, in the order given.

    References
    ----------
    S. Holm: A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6, 1979.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[position]))
        corrected[position] = largest
    return corrected


def paired_effect_size(differences: Sequence[float] | np.ndarray) -> float:
    """Return Cohen's d of paired values, ``mean(d) / sd(d)`` with ``n - 1`` in the standard deviation.

    Parameters
    ----------
    differences
        One number for each query, ``(queries,)``, at least two.

    Returns
    -------
    float
        0.0 if all differences are zero; infinite if they are all equal and not zero.

    Raises
    ------
    InvalidArgumentError
        If there are fewer than two differences, or one is not finite.

    References
    ----------
    J. Cohen: Statistical Power Analysis for the Behavioral Sciences, 1988 (there d' for paired observations, elsewhere
    d_z). About 0.2 is called small, 0.5 medium and 0.8 large.

    Examples
    --------
    >>> paired_effect_size([1.0, 2.0, 3.0])
    2.0
    """
    values = _checked(differences)
    if len(values) < 2:
        raise InvalidArgumentError("received 1 difference; a standard deviation needs at least two.")
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    if deviation <= _ROUNDING * abs(mean):
        return math.copysign(math.inf, mean) if mean else 0.0
    return mean / deviation


def bootstrap_interval(
    differences: Sequence[float] | np.ndarray, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean difference, from 10,000 resamples.

    A resample has as many queries as were given, drawn with replacement.

    Parameters
    ----------
    differences
        One number for each query, ``(queries,)``.
    confidence
        Probability that the interval aims to cover the mean with, between 0 and 1.
    seed
        Seed of the resamples.

    Returns
    -------
    tuple of float
        Lower and upper end.

    Raises
    ------
    InvalidArgumentError
        If there are no differences, one is not finite, or another argument is out of range.

    References
    ----------
    B. Efron, R. J. Tibshirani: An Introduction to the Bootstrap, 1993, section 13.3.

    Examples
    --------
    >>> low, high = bootstrap_interval([0.0, 1.0] * 50)
    >>> round(low, 1), round(high, 1)
    (0.4, 0.6)
    """
    values = _checked(differences)
    if not 0.0 < confidence < 1.0:
        raise InvalidArgumentError(f"received confidence={confidence!r}; expected a number between 0 and 1.")
    rng = _generator(seed)
    means = np.concatenate(
        [values[rng.integers(0, len(values), (rows, len(values)))].mean(axis=1) for rows in _rows(_RESAMPLES, values)]
    )
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _checked(differences: Sequence[float] | np.ndarray) -> np.ndarray:
    values = np.asarray(differences, dtype="float64")
    if values.ndim != 1 or not len(values):
        raise InvalidArgumentError(f"received differences of shape {values.shape}; expected one number for each query.")
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
