"""`InOrder`: a batch sampler that keeps the order of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import cast

from sentence_transformers.base.sampler import DefaultBatchSampler


class InOrder(DefaultBatchSampler):
    """Batches of consecutive rows, for the order that `latelier.data.order_by_neighbours` makes.

    Pass the class in the trainer's arguments: ``batch_sampler=InOrder``.

    Examples
    --------
    >>> list(InOrder(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the positions of each batch."""
        rows = len(cast("Sized", self.sampler))
        for start in range(0, rows, self.batch_size):
            batch = list(range(start, min(start + self.batch_size, rows)))
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch
