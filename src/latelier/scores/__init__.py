"""Late-interaction scores.

`inputs` reads what users pass, and an `engine` computes MaxSim for it (`colbert` chooses one). A scoring variant other
than MaxSim is a module like `xtr`: it reads the same inputs and computes its own scores, for all pairs, for pairs and
for distillation.
"""

from typing import TYPE_CHECKING

from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.scores.colbert import (
        colbert_kd_scores,
        colbert_scores,
        colbert_scores_pairwise,
        top_k,
        xtr_kd_scores,
        xtr_scores,
        xtr_scores_pairwise,
    )

__all__ = [
    "colbert_kd_scores",
    "colbert_scores",
    "colbert_scores_pairwise",
    "top_k",
    "xtr_kd_scores",
    "xtr_scores",
    "xtr_scores_pairwise",
]

__getattr__, __dir__ = lazy_names(__name__, colbert=tuple(__all__))
