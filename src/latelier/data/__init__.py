"""Training data: loading it from files and data sets, mining hard negatives, and a teacher's scores."""

from latelier.data.hard_batches import order_by_neighbours
from latelier.data.hard_negatives import mine_hard_negatives
from latelier.data.loading import load_training_set
from latelier.data.teachers import teacher_scores
from latelier.data.training_set import TrainingSet

__all__ = ["TrainingSet", "load_training_set", "mine_hard_negatives", "order_by_neighbours", "teacher_scores"]
