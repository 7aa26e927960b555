"""Second-stage ranking: order the candidates of another retriever by their MaxSim scores."""

from latelier.rank.reranking import rerank

__all__ = ["rerank"]
