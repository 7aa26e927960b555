"""The fast approximate index: cells to find documents by, signs to choose among them, codes to score them."""

from latelier.indexes.ivf.index import IVF

__all__ = ["IVF"]
