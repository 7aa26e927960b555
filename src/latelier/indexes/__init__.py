"""Indexes: documents as token vectors, added, removed and found by MaxSim, in memory or on disk."""

from typing import TYPE_CHECKING

from latelier.indexes.base import Index, Parameters
from latelier.indexes.flat import Flat
from latelier.indexes.ivf import IVF
from latelier.indexes.opening import open
from latelier.indexes.results import (
    Cause,
    Change,
    CheckReport,
    Damage,
    Hit,
    Id,
    IndexStatistics,
    Record,
    TokenDifference,
    VerifyReport,
    WhyNotReport,
)
from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.indexes.qdrant import Qdrant
    from latelier.indexes.sharded import PartialHits, Sharded
    from latelier.indexes.single_vectors import (
        FixedDimensionalEncodings,
        MeanVectors,
        SingleVectors,
        single_vectors_from_dict,
    )
    from latelier.indexes.transfer.exported import Export
    from latelier.indexes.transfer.exporting import export_documents
    from latelier.indexes.transfer.importing import copy_documents, import_documents
    from latelier.indexes.transfer.report import TransferReport

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
    "PartialHits",
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
    sharded=("PartialHits", "Sharded"),
    single_vectors=("FixedDimensionalEncodings", "MeanVectors", "SingleVectors", "single_vectors_from_dict"),
    **{"transfer.exported": ("Export",)},
    **{"transfer.exporting": ("export_documents",)},
    **{"transfer.importing": ("copy_documents", "import_documents")},
    **{"transfer.report": ("TransferReport",)},
)
