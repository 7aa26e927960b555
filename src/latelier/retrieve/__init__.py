"""Searching documents by text: a model and an index behind one interface."""

from typing import TYPE_CHECKING

from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.retrieve.explanation import Explanation, Span, TokenMatch, WordMatch
    from latelier.retrieve.passages import Passages, Result, Results
    from latelier.retrieve.readers import read_documents
    from latelier.retrieve.retriever import Retriever
    from latelier.retrieve.workers import EncodingWorkers

__all__ = [
    "EncodingWorkers",
    "Explanation",
    "Passages",
    "Result",
    "Results",
    "Retriever",
    "Span",
    "TokenMatch",
    "WordMatch",
    "read_documents",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    explanation=("Explanation", "Span", "TokenMatch", "WordMatch"),
    passages=("Passages", "Result", "Results"),
    readers=("read_documents",),
    retriever=("Retriever",),
    workers=("EncodingWorkers",),
)
