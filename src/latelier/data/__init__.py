"""Training data: reading what people have, mining hard negatives, and scores of a teacher."""

from latelier.data.examples import TrainingSet
from latelier.data.loading import load
from latelier.data.mining import mine_hard_negatives
from latelier.data.neighbours import order_by_neighbours
from latelier.data.teaching import teacher_scores

__all__ = ["TrainingSet", "load", "mine_hard_negatives", "order_by_neighbours", "teacher_scores"]
