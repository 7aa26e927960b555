"""Training data: loading it from files and data sets, mining hard negatives, and a teacher's scores."""

from typing import TYPE_CHECKING

from latelier.data.loading import TrainingSet, load_training_set
from latelier.data.negatives import mine_hard_negatives, order_by_neighbours, teacher_scores
from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.data.samplers import InOrder

__all__ = [
    "InOrder",
    "TrainingSet",
    "load_training_set",
    "mine_hard_negatives",
    "order_by_neighbours",
    "teacher_scores",
]
__getattr__, __dir__ = lazy_names(__name__, samplers=("InOrder",))
