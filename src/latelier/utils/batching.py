"""Batches by token budget: what a batch costs is rows times its longest row, not its number of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_count

if TYPE_CHECKING:
    import numpy as np

__all__ = ["batch_by_tokens"]


def batch_by_tokens(
    lengths: Sequence[int] | np.ndarray, max_tokens: int, max_rows: int | None = None
) -> Iterator[np.ndarray]:
    """Group texts of similar length, so that no batch is larger than a budget once padded.

    Parameters
    ----------
    lengths
        Tokens of each text.
    max_tokens
        Budget of a batch: rows times the longest row. A text longer than that is a batch of its own.
    max_rows
        Most rows of a batch; None means only the tokens count.

    Yields
    ------
    numpy.ndarray
        Positions of the texts of one batch, longest first; each position comes once. The first batch is the most
        expensive one, so running out of memory happens at once or not at all.

    Examples
    --------
    >>> [batch.tolist() for batch in batch_by_tokens([3, 9, 1, 2, 10], max_tokens=20)]
    [[4, 1], [0, 3, 2]]
    """
    import numpy as np  # here: `latelier --help` imports this package

    check_count("max_tokens", max_tokens)
    check_count("max_rows", max_rows, optional=True)
    try:
        lengths = np.asarray(lengths, dtype="int64")
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"received lengths that are no integers: {error}.") from error
    if lengths.ndim != 1:
        raise InvalidArgumentError(f"received lengths of shape {lengths.shape}; expected one per text.")
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, max_tokens // max(1, int(lengths[order[start]])))
        rows = rows if max_rows is None else min(rows, max_rows)
        yield order[start : start + rows]
        start += rows
