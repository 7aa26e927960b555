"""Moving documents, with vectors, texts, metadata and settings, between indexes of any kind, and to and from files."""

from latelier.indexes.transfer.exported import Export
from latelier.indexes.transfer.exporting import export_documents
from latelier.indexes.transfer.importing import copy_documents, import_documents
from latelier.indexes.transfer.report import TransferReport

__all__ = ["Export", "TransferReport", "copy_documents", "export_documents", "import_documents"]
