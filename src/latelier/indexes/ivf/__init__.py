"""The fast approximate index: inverted lists find documents, binary codes choose among them, codes score them."""

from latelier.indexes.ivf.index import IVF

__all__ = ["IVF"]
