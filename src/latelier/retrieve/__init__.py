"""Searching documents by text: a model and an index behind one interface."""

from latelier.retrieve.explanation import Explanation, TokenMatch, WordMatch
from latelier.retrieve.retriever import Result, Retriever

__all__ = ["Explanation", "Result", "Retriever", "TokenMatch", "WordMatch"]
