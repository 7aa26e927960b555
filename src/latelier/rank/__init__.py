"""Second-stage ranking: put the candidates of another retriever in the order of their MaxSim scores."""

from latelier.rank.reranking import rerank

__all__ = ["rerank"]
