"""`Sharded`: an index divided among the processes of a Ray cluster."""

from latelier.indexes.sharded.index import PartialHits, Sharded

__all__ = ["PartialHits", "Sharded"]
