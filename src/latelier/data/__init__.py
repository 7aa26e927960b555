"""Training data: loading it from files and data sets, mining hard negatives, and a teacher's scores."""

from typing import TYPE_CHECKING

from latelier.data.hard_batches import order_by_neighbours
from latelier.data.hard_negatives import mine_hard_negatives
from latelier.data.loading import load_training_set
from latelier.data.teachers import teacher_scores
from latelier.data.training_set import TrainingSet
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
