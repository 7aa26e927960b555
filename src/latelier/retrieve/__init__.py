"""Searching documents by text: a model and an index behind one interface."""

from typing import TYPE_CHECKING

from latelier.reading.folders import read_documents
from latelier.reading.records import Skipped, SkipReason
from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.retrieve.documents import Documents
    from latelier.retrieve.drawing import PageMap
    from latelier.retrieve.explanation import Explanation, Span, TokenMatch, WordMatch
    from latelier.retrieve.passages import Passages
    from latelier.retrieve.results import Excerpt, Result, Results
    from latelier.retrieve.retriever import Retriever
    from latelier.retrieve.synchronisation import Synchronised
    from latelier.retrieve.thresholds import Threshold
    from latelier.retrieve.weak import WeakBar, WeakBars
    from latelier.retrieve.workers import EncodingWorkers

__all__ = [
    "Documents",
    "EncodingWorkers",
    "Excerpt",
    "Explanation",
    "PageMap",
    "Passages",
    "Result",
    "Results",
    "Retriever",
    "SkipReason",
    "Skipped",
    "Span",
    "Synchronised",
    "Threshold",
    "TokenMatch",
    "WeakBar",
    "WeakBars",
    "WordMatch",
    "read_documents",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    documents=("Documents",),
    drawing=("PageMap",),
    explanation=("Explanation", "Span", "TokenMatch", "WordMatch"),
    passages=("Passages",),
    results=("Excerpt", "Result", "Results"),
    retriever=("Retriever",),
    synchronisation=("Synchronised",),
    thresholds=("Threshold",),
    weak=("WeakBar", "WeakBars"),
    workers=("EncodingWorkers",),
)
