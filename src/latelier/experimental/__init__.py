"""Experiments: anything here may change or go in any release, and the rest of the library does not use it.

Multi-step retrieval: a search reads the document that it found, changes its query by what it read, and searches again.
"""

from latelier.experimental.multi_step import (
    MultiStepResult,
    MultiStepRetriever,
    ReadingExample,
    Step,
    merge_hits,
    train_query_dynamics,
)
from latelier.experimental.query_dynamics import QueryDynamics, QueryState

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
