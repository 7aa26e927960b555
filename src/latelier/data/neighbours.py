"""Batches of rows whose documents are hard for each other: negatives that cost nothing.

In contrastive training the documents of a batch are negatives for all of its queries. Rows drawn by chance make easy
ones; put together with rows whose documents were mined for them, each has hard ones, and no further text is encoded.
"""

from __future__ import annotations

import random

from latelier.data.examples import TrainingSet
from latelier.errors import InvalidArgumentError
from latelier.utils import check_count

__all__ = ["order_by_neighbours"]


def order_by_neighbours(
    mined: TrainingSet, neighbours: int = 7, *, negatives: int = 0, passes: int = 1, seed: int = 0
) -> TrainingSet:
    """Put rows next to each other whose documents are negatives of one another.

    Train in this order (`latelier.data.samplers.InOrder`), with batches of several groups.

    Parameters
    ----------
    mined
        From `mine_hard_negatives`, with some more negatives per row (10) than are trained on.
    neighbours
        At most so many rows follow a row: those whose positive is one of its negatives, hardest first, where they have
        no place yet.
    negatives
        How many of its own negatives each row keeps, drawn by chance.
    passes
        How often each row occurs, each time among other rows: one for each epoch, say.
    seed
        Of all that is drawn.

    Returns
    -------
    TrainingSet
        ``passes * len(mined)`` rows.

    Raises
    ------
    InvalidArgumentError
        If a number is negative, there are fewer negatives than are to be kept, or the rows have a teacher's scores,
        which do not say which document is the right one.

    Examples
    --------
    >>> mined = TrainingSet(["a", "b", "c", "d"], [["A", "C"], ["B", "D"], ["C", "A"], ["D", "B"]])
    >>> ordered = order_by_neighbours(mined, neighbours=1)
    >>> ordered.queries, ordered.documents
    (['d', 'b', 'a', 'c'], [['D'], ['B'], ['A'], ['C']])
    """
    if mined.scores is not None:
        raise InvalidArgumentError("the rows have a teacher's scores; give those of mine_hard_negatives.")
    for name, value, least in (("neighbours", neighbours, 0), ("negatives", negatives, 0), ("passes", passes, 1)):
        check_count(name, value, least)
    if len(mined) and negatives > mined.width - 1:
        raise InvalidArgumentError(f"negatives={negatives}, but the rows have {mined.width - 1} each.")
    rng = random.Random(seed)
    owner = {documents[0]: row for row, documents in enumerate(mined.documents)}
    rows: list[int] = []
    for _ in range(passes):
        placed: set[int] = set()
        groups: list[list[int]] = []
        for row in rng.sample(range(len(mined)), len(mined)):
            if row in placed:
                continue
            near = [owner[text] for text in mined.documents[row][1:] if text in owner]
            free = [other for other in dict.fromkeys(near) if other not in placed and other != row]
            groups.append([row, *free[:neighbours]])
            placed.update(groups[-1])
        # Rows that come late find their neighbours taken: left at the end, they would make easy batches.
        rng.shuffle(groups)
        rows += [row for group in groups for row in group]
    documents = [[mined.documents[i][0], *rng.sample(mined.documents[i][1:], negatives)] for i in rows]
    return TrainingSet([mined.queries[i] for i in rows], documents)
