"""Late-interaction scores.

`inputs` reads what users pass, and `engines` computes MaxSim for it (`engines.choice` picks one). A scoring variant
other than MaxSim is a module like `xtr`: it reads the same inputs and computes its own scores, for all pairs, for pairs
and for distillation.
"""

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
