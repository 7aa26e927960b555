"""The sharded index: documents divided by their ids among ordinary indexes, each in a process of a Ray cluster."""

from latelier.indexes.sharded.index import Sharded

__all__ = ["Sharded"]
