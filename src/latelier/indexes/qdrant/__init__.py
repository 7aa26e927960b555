"""`Qdrant`: an index whose documents are the points of a Qdrant collection."""

from latelier.indexes.qdrant.index import Qdrant

__all__ = ["Qdrant"]
