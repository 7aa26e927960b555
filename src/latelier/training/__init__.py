"""Training from a file to a saved model in one call; ``latelier train`` is the same on the command line.

`train` loads the data, splits off validation queries, mines hard negatives, chooses a loss, runs the trainer of
sentence-transformers, and measures before and after. For anything else, use that trainer with `latelier.losses`.
`distill_pooling` trains the pooling of a model that compresses its documents, `distill_head` a layer to fewer
dimensions.
"""

from latelier.training.distilling import distill_head, distill_pooling
from latelier.training.run import TrainingOptions, TrainingReport, train

__all__ = ["TrainingOptions", "TrainingReport", "distill_head", "distill_pooling", "train"]
