"""Latelier inside other packages: one module for each, the only one that imports that package."""

from typing import TYPE_CHECKING

from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.integrations.haystack import HaystackRanker, HaystackRetriever
    from latelier.integrations.langchain import LangChainReranker, LangChainRetriever
    from latelier.integrations.llamaindex import LlamaIndexReranker, LlamaIndexRetriever
    from latelier.integrations.mteb import MTEBSearch
    from latelier.integrations.pyterrier import PyTerrierIndexer, PyTerrierReranker, PyTerrierRetriever

__all__ = [
    "HaystackRanker",
    "HaystackRetriever",
    "LangChainReranker",
    "LangChainRetriever",
    "LlamaIndexReranker",
    "LlamaIndexRetriever",
    "MTEBSearch",
    "PyTerrierIndexer",
    "PyTerrierReranker",
    "PyTerrierRetriever",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    haystack=("HaystackRanker", "HaystackRetriever"),
    langchain=("LangChainReranker", "LangChainRetriever"),
    llamaindex=("LlamaIndexReranker", "LlamaIndexRetriever"),
    mteb=("MTEBSearch",),
    pyterrier=("PyTerrierIndexer", "PyTerrierReranker", "PyTerrierRetriever"),
)
