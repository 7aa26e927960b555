"""One vector for each document and query, for engines that find candidates by one inner product per document."""

from latelier.indexes.single_vectors.base import SingleVectors
from latelier.indexes.single_vectors.fde import FixedDimensionalEncodings
from latelier.indexes.single_vectors.mean import MeanVectors
from latelier.indexes.single_vectors.settings import single_vectors_from_dict

__all__ = ["FixedDimensionalEncodings", "MeanVectors", "SingleVectors", "single_vectors_from_dict"]
