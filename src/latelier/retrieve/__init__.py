"""Text in, ranked documents out: a model and an index together."""

from latelier.retrieve.explanation import Explanation, TokenMatch, WordMatch
from latelier.retrieve.retriever import Result, Retriever

__all__ = ["Explanation", "Result", "Retriever", "TokenMatch", "WordMatch"]
