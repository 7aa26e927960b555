"""`order_by_neighbours`: batches of pairs whose positives are hard negatives of one another.

In contrastive training the documents of a batch are negatives for all of its queries. In batches of random pairs these
in-batch negatives are easy. If a pair is grouped with pairs whose positives were mined as its hard negatives, they are
hard, and no more texts are encoded.
"""

from __future__ import annotations

import random

from latelier.data.training_set import TrainingSet, check_training_set
from latelier.errors import InvalidArgumentError
from latelier.utils import check_count

__all__ = ["order_by_neighbours"]


def order_by_neighbours(
    mined: TrainingSet, neighbours: int = 7, *, negatives: int = 0, passes: int = 1, seed: int = 0
) -> TrainingSet:
    """Group each row with rows whose positives are among its mined hard negatives.

    Train in this order (`latelier.data.samplers.InOrder`), with several groups per batch.

    Parameters
    ----------
    mined
        Rows from `mine_hard_negatives`, with more negatives per row (such as 10) than are trained on.
    neighbours
        Maximum number of rows to group with a row. Candidates are rows whose positive is one of its negatives, hardest
        first; rows that are in a group already are left out.
    negatives
        Number of mined negatives that each row keeps, drawn at random.
    passes
        Number of times that each row occurs, each time in a new group; one pass per epoch, for example.
    seed
        Seed of the random choices.

    Returns
    -------
    TrainingSet
        ``passes * len(mined)`` rows.

    Raises
    ------
    InvalidArgumentError
        If a number is out of range, the rows have fewer negatives than `negatives`, or they have a teacher's scores,
        which do not say which document is the positive.

    Examples
    --------
    >>> documents = [["A", "C"], ["B", "D"], ["C", "A"], ["D", "B"]]
    >>> mined = TrainingSet(["a", "b", "c", "d"], documents)
    >>> ordered = order_by_neighbours(mined, neighbours=1)
    >>> ordered.queries, ordered.documents
    (['d', 'b', 'a', 'c'], [['D'], ['B'], ['A'], ['C']])
    """
    check_training_set(mined, "mined")
    if mined.scores is not None:
        raise InvalidArgumentError("the rows have a teacher's scores; give rows from mine_hard_negatives.")
    for name, value, least in (("neighbours", neighbours, 0), ("negatives", negatives, 0), ("passes", passes, 1)):
        check_count(name, value, least)
    seed = check_count("seed", seed, 0)  # an int: random takes no integer of numpy
    if len(mined) and negatives > mined.width - 1:
        raise InvalidArgumentError(f"received negatives={negatives}, but the rows have {mined.width - 1} each.")
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
        # The last rows form small groups, as most of their neighbours are in groups already. Shuffled, these groups are
        # spread over all batches; otherwise the last batches would be easy.
        rng.shuffle(groups)
        rows += [row for group in groups for row in group]
    documents = [[mined.documents[i][0], *rng.sample(mined.documents[i][1:], negatives)] for i in rows]
    return TrainingSet([mined.queries[i] for i in rows], documents)
