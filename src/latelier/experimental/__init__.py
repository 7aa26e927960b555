"""Experiments: anything here may change or go in any release, and the rest of the library does not use it.

Multi-step retrieval: a search reads the document that it found, changes its query by what it read, and searches again.
"""

from latelier.experimental.multi_step import MultiStepResult, MultiStepRetriever, Step, merge_hits
from latelier.experimental.query_dynamics import QueryDynamics, QueryState
from latelier.experimental.query_training import ReadingExample, train_query_dynamics

__all__ = [
    "MultiStepResult",
    "MultiStepRetriever",
    "QueryDynamics",
    "QueryState",
    "ReadingExample",
    "Step",
    "merge_hits",
    "train_query_dynamics",
]
