"""Indexes: documents as token vectors, added, removed and found by MaxSim, in memory or on disk."""

from typing import TYPE_CHECKING

from latelier.indexes.base import Index
from latelier.indexes.flat import Flat
from latelier.indexes.ivf import IVF
from latelier.indexes.opening import open
from latelier.indexes.options import Parameters
from latelier.indexes.results import (
    Cause,
    Change,
    CheckReport,
    Damage,
    FieldValues,
    Hit,
    IndexStatistics,
    Passage,
    Record,
    TokenDifference,
    ValueCount,
    VerifyReport,
    WhyNotReport,
)
from latelier.utils.misc import lazy_names
from latelier.utils.values import Id

if TYPE_CHECKING:
    from latelier.indexes.copy import TransferReport, copy_documents
    from latelier.indexes.qdrant import Qdrant
    from latelier.indexes.sharded import Sharded
    from latelier.indexes.single_vectors import (
        FixedDimensionalEncodings,
        MeanVectors,
        SingleVectors,
        single_vectors_from_dict,
    )

__all__ = [
    "IVF",
    "Cause",
    "Change",
    "CheckReport",
    "Damage",
    "FieldValues",
    "FixedDimensionalEncodings",
    "Flat",
    "Hit",
    "Id",
    "Index",
    "IndexStatistics",
    "MeanVectors",
    "Parameters",
    "Passage",
    "Qdrant",
    "Record",
    "Sharded",
    "SingleVectors",
    "TokenDifference",
    "TransferReport",
    "ValueCount",
    "VerifyReport",
    "WhyNotReport",
    "copy_documents",
    "open",
    "single_vectors_from_dict",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    copy=("TransferReport", "copy_documents"),
    qdrant=("Qdrant",),
    sharded=("Sharded",),
    single_vectors=("FixedDimensionalEncodings", "MeanVectors", "SingleVectors", "single_vectors_from_dict"),
)
