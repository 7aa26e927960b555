"""Training data: loading it from files and data sets, splitting, mining hard negatives, and a teacher's scores."""

from latelier.data.loading import TrainingSet, load_training_set
from latelier.data.negatives import InOrder, mine_hard_negatives, order_by_neighbours, teacher_scores
from latelier.data.splitting import split_validation

__all__ = [
    "InOrder",
    "TrainingSet",
    "load_training_set",
    "mine_hard_negatives",
    "order_by_neighbours",
    "split_validation",
    "teacher_scores",
]
