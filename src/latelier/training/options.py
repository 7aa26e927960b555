"""`TrainingOptions`: how `train` builds the model, mines negatives, trains and validates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from latelier.errors import InvalidArgumentError
from latelier.utils import check_count, check_number
from latelier.utils.describing import short

__all__ = ["TrainingOptions"]

# Larger numbers of epochs overflow the trainer's number of steps.
_MOST = 1e6
_MOST_SEED = 2**32 - 1  # numpy takes no larger one


@dataclass(frozen=True)
class TrainingOptions:
    """Options of `train`; those of the command ``latelier train`` have the same names.

    Parameters
    ----------
    start
        What becomes of a dense model or a bare encoder that is given by name. ``"dense"``: its token vectors are used
        as they are (`ColBERT.from_dense`). ``"colbert"``: markers, query expansion and a new linear head are added
        (`ColBERT`).
    dims
        Dimensions per token of a model that is given by name; None: the model's own, or 128 for a new head.
    device
        Where a model that is given by name is loaded; None: the best available device.
    mine
        Hard negatives to mine for each pair among all documents of the data.
    neighbours
        Group each pair with up to `neighbours` pairs whose positives are its mined hard negatives. They are in-batch
        negatives for it, at no cost in time.
    epochs
        Passes through the data, such as 0.5 or 3.
    batch_size
        Queries per batch. The documents of a batch are negatives for all of its queries.
    learning_rate
        Peak learning rate, after a warm-up over the first tenth of the steps.
    temperature
        Divisor of the scores in the contrastive loss; not used for rows with scores.
    validation_queries
        Maximum number of queries to split off for validation, at most 10% of the data; 0 trains on all. Not used if
        `train` gets a validation set.
    seed
        Seed of the split, the new head, the order of the rows and the negatives that are drawn.

    Raises
    ------
    InvalidArgumentError
        If an option is out of range.

    Examples
    --------
    >>> TrainingOptions(neighbours=7).batch_size
    32
    >>> TrainingOptions(batch_size=0)
    Traceback (most recent call last):
    latelier.errors.InvalidArgumentError: received batch_size=0; expected an integer of at least 1.
    """

    start: Literal["dense", "colbert"] = "dense"
    dims: int | None = None
    device: str | None = None
    mine: int = 0
    neighbours: int = 0
    epochs: float = 1.0
    batch_size: int = 32
    learning_rate: float = 3e-5
    temperature: float = 0.2
    validation_queries: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if self.start not in ("dense", "colbert"):
            raise InvalidArgumentError(f"received start={short(self.start)}; expected 'dense' or 'colbert'.")
        check_count("dims", self.dims, optional=True)
        for name in ("mine", "neighbours", "validation_queries"):
            check_count(name, getattr(self, name), 0)
        check_count("batch_size", self.batch_size)
        check_count("seed", self.seed, 0, _MOST_SEED)
        for name in ("epochs", "learning_rate"):
            check_number(name, getattr(self, name), zero=True, most=_MOST)
        check_number("temperature", self.temperature)

    @property
    def passes(self) -> int:
        """How often neighbours are grouped: once per epoch, as their order is that of the batches."""
        return max(1, math.ceil(self.epochs)) if self.neighbours else 1
