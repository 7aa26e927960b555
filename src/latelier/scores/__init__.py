"""Late-interaction scores: one contract, several engines behind it."""

from latelier.scores.colbert import colbert_kd_scores, colbert_scores, colbert_scores_pairwise
from latelier.scores.topk import top_k
from latelier.scores.xtr import xtr_kd_scores, xtr_scores, xtr_scores_pairwise

__all__ = [
    "colbert_kd_scores",
    "colbert_scores",
    "colbert_scores_pairwise",
    "top_k",
    "xtr_kd_scores",
    "xtr_scores",
    "xtr_scores_pairwise",
]
