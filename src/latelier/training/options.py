"""`TrainingOptions`: how `train` builds the model, mines negatives, trains and validates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from latelier.utils import check_choice, check_count, check_number

__all__ = ["TrainingOptions"]

_MAX_EPOCHS = _MAX_LEARNING_RATE = 1e6  # more epochs overflow the trainer's number of steps
_MAX_SEED = 2**32 - 1  # the largest seed of numpy


@dataclass(frozen=True)
class TrainingOptions:
    """Options of `train`; those of the command ``latelier train`` have the same names.

    Parameters
    ----------
    start
        How a dense model or a bare encoder that is given by name becomes a late-interaction model. ``"dense"``: its
        token vectors are used unchanged (`ColBERT.from_dense`). ``"colbert"``: markers, query expansion and a new
        linear head are added (`ColBERT`).
    dims
        Dimensions per token of a model that is given by name; None: the model's own, or 128 for a new head.
    device
        Where a model that is given by name is loaded; None: the best available device.
    mine
        Number of hard negatives to mine for each pair, among all documents of the data.
    neighbours
        Group each pair with up to `neighbours` pairs whose positives are its mined hard negatives. These positives are
        then in-batch negatives of the pair, at no extra cost.
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
        Seed of the validation split, of a new head, of the order of the rows and of the drawn negatives.

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
        check_choice("start", self.start, ["dense", "colbert"])
        checked: dict[str, int | float | None] = {
            "dims": check_count("dims", self.dims, optional=True),
            "mine": check_count("mine", self.mine, 0),
            "neighbours": check_count("neighbours", self.neighbours, 0),
            "validation_queries": check_count("validation_queries", self.validation_queries, 0),
            "batch_size": check_count("batch_size", self.batch_size),
            "seed": check_count("seed", self.seed, 0, _MAX_SEED),
            "epochs": check_number("epochs", self.epochs, zero=True, most=_MAX_EPOCHS),
            "learning_rate": check_number("learning_rate", self.learning_rate, zero=True, most=_MAX_LEARNING_RATE),
            "temperature": check_number("temperature", self.temperature),
        }
        # Numbers of Python in place of those of numpy: neither JSON nor `random` takes integers of numpy.
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def passes(self) -> int:
        """How often the rows are repeated for training: with neighbours once per epoch, each time in new groups."""
        return max(1, math.ceil(self.epochs)) if self.neighbours else 1
