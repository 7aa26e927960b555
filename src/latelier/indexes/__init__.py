"""Indexes: documents as token vectors, added, removed and found by MaxSim, in memory or on disk."""

from typing import TYPE_CHECKING

from latelier.indexes.base import Index, Parameters
from latelier.indexes.flat import Flat
from latelier.indexes.ivf import IVF
from latelier.indexes.opening import open
from latelier.indexes.results import CheckReport, Damage, Hit, Id, Record, VerifyReport
from latelier.indexes.statistics import IndexStatistics
from latelier.indexes.why_not_report import Cause, Change, TokenDifference, WhyNotReport
from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.indexes.qdrant import Qdrant
    from latelier.indexes.sharded import Sharded
    from latelier.indexes.single_vectors import (
        FixedDimensionalEncodings,
        MeanVectors,
        SingleVectors,
        single_vectors_from_dict,
    )
    from latelier.indexes.transfer import Export, TransferReport, copy_documents, export_documents, import_documents

__all__ = [
    "IVF",
    "Cause",
    "Change",
    "CheckReport",
    "Damage",
    "Export",
    "FixedDimensionalEncodings",
    "Flat",
    "Hit",
    "Id",
    "Index",
    "IndexStatistics",
    "MeanVectors",
    "Parameters",
    "Qdrant",
    "Record",
    "Sharded",
    "SingleVectors",
    "TokenDifference",
    "TransferReport",
    "VerifyReport",
    "WhyNotReport",
    "copy_documents",
    "export_documents",
    "import_documents",
    "open",
    "single_vectors_from_dict",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    qdrant=("Qdrant",),
    sharded=("Sharded",),
    single_vectors=("FixedDimensionalEncodings", "MeanVectors", "SingleVectors", "single_vectors_from_dict"),
    transfer=("Export", "TransferReport", "copy_documents", "export_documents", "import_documents"),
)
