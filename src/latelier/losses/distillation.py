"""Learn the scores that a teacher, usually a cross-encoder, gave to the candidates of each query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from sentence_transformers.util import similarity_fct_name
from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.losses.base import ScoreMetric, WarnOnce, check_parts, score
from latelier.losses.columns import embed_columns
from latelier.scores import colbert_kd_scores

__all__ = ["Distillation"]

# Keeps a row of equal scores from dividing by zero; part of the published loss.
_EPSILON = 1e-8


class Distillation(nn.Module):
    """Distillation loss: bring the model's distribution over each query's candidates to the teacher's.

    With student scores ``s`` and teacher scores ``t``, both ``(b, n)``, the loss is
    ``KL(softmax(t) || softmax(s))`` per query; teacher scores are taken as they are (Santhanam et al., 2022,
    ColBERTv2, https://aclanthology.org/2022.naacl-main.272).

    Parameters
    ----------
    model
        A late-interaction model.
    score_metric
        Function that scores each query against its own ``n`` documents:
        ``(queries, documents, *, queries_mask, documents_mask)`` to ``(b, n)``, as in `latelier.scores` or
        sentence-transformers.
    size_average
        Mean over the queries of the batch; False sums.
    normalize_scores
        Stretch each query's student scores to 0 ... 1 before the softmax: ``(s - min) / (max - min + 1e-8)``. Suits
        teacher scores in that range. **With two candidates it leaves nothing to learn**, since every row becomes 0
        and 1 whatever the model says; the loss warns then.

    Raises
    ------
    InvalidArgumentError
        If the model is none, or has one vector per text.

    Examples
    --------
    >>> from latelier import models, losses
    >>> import torch

    >>> model = models.ColBERT(
    ...     model_name_or_path="sentence-transformers/all-MiniLM-L6-v2", device="cpu"
    ... )

    >>> distillation = losses.Distillation(model=model)

    >>> query = model.tokenize([
    ...     "fruits are healthy.",
    ... ], is_query=True)

    >>> documents = model.tokenize([
    ...     "fruits are good for health.",
    ...     "fruits are bad for health."
    ... ], is_query=False)

    >>> sentence_features = [query, documents]

    >>> labels = torch.tensor([
    ...     [0.7, 0.3],
    ... ], dtype=torch.float32)

    >>> loss = distillation(sentence_features=sentence_features, labels=labels)

    >>> assert isinstance(loss.item(), float)

    >>> round(loss.item(), 2)
    0.24

    The new head, not trained yet, finds the second document better, which is all that two stretched scores tell. With
    ``normalize_scores=False`` it matters how much better, and the loss has a gradient:

    >>> distillation = losses.Distillation(model=model, normalize_scores=False)
    >>> loss = distillation(sentence_features=sentence_features, labels=labels)
    >>> round(loss.item(), 2)
    0.04
    """

    def __init__(
        self,
        model: nn.Module,
        score_metric: ScoreMetric = colbert_kd_scores,
        size_average: bool = True,
        normalize_scores: bool = True,
    ) -> None:
        super().__init__()
        check_parts(model, score_metric)
        self.model = model  # by this name trainers find it, to put a wrapped model in its place
        self.score_metric = score_metric
        self.size_average = size_average
        self.normalize_scores = normalize_scores
        self._warn_once = WarnOnce()

    def forward(self, sentence_features: Iterable[Mapping[str, Any]], labels: Any = None) -> Tensor:
        """Compute the loss of a batch.

        Parameters
        ----------
        sentence_features
            Features of the ``b`` queries, then of their ``n`` candidates each: one dict of ``b * n`` rows with the
            candidates of one query next to each other, ``n`` dicts of ``b`` rows as the trainer passes them, or both.
        labels
            The teacher's scores ``(b, n)``, in the order of the candidates.

        Returns
        -------
        torch.Tensor
            Scalar, float32 whatever the model computes in.

        Raises
        ------
        InvalidArgumentError
            If features, labels or the scoring function's result have the wrong shape, or a teacher score is NaN or
            infinite.
        """
        batch = embed_columns(self.model, sentence_features, self._warn_once)
        n = batch.documents.shape[1]
        scores = score(self.score_metric, batch, n, "latelier.scores.colbert_kd_scores")
        teacher = _read_labels(labels, scores)
        if n == 1:
            self._warn_once(
                "each query has one candidate, so the loss is always 0 and nothing is learned; give each query two or "
                "more candidates."
            )
        elif n == 2 and self.normalize_scores:
            self._warn_once(
                "each query has two candidates and normalize_scores=True, which turns their scores into 0 and 1 "
                "whatever the model says: the loss has no gradient. Use Distillation(..., normalize_scores=False), or "
                "give each query three or more candidates."
            )
        if self.normalize_scores:
            low, high = scores.min(dim=1, keepdim=True).values, scores.max(dim=1, keepdim=True).values
            scores = (scores - low) / (high - low + _EPSILON)
        return nn.functional.kl_div(
            nn.functional.log_softmax(scores, dim=1),
            nn.functional.log_softmax(teacher, dim=1),
            reduction="batchmean" if self.size_average else "sum",
            log_target=True,
        )

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        return {
            "score_metric": similarity_fct_name(self.score_metric),
            "size_average": self.size_average,
            "normalize_scores": self.normalize_scores,
        }

    @property
    def citation(self) -> str:
        """The paper in BibTeX, for the model card."""
        return """
@inproceedings{santhanam-etal-2022-colbertv2,
    title = "{C}ol{BERT}v2: Effective and Efficient Retrieval via Lightweight Late Interaction",
    author = "Santhanam, Keshav and Khattab, Omar and Saad-Falcon, Jon and Potts, Christopher and Zaharia, Matei",
    booktitle = "Proceedings of NAACL 2022",
    year = "2022",
    url = "https://aclanthology.org/2022.naacl-main.272",
}
"""


def _read_labels(labels: Any, scores: Tensor) -> Tensor:
    expected = f"expected the teacher's scores of shape {tuple(scores.shape)} (queries, candidates of each)"
    if labels is None:
        raise InvalidArgumentError(
            f"received no labels; {expected}. In a trainer, they are the dataset's column 'scores' (or 'label')."
        )
    teacher = torch.as_tensor(labels).detach().to(scores)
    if teacher.shape != scores.shape:
        raise InvalidArgumentError(f"received labels of shape {tuple(teacher.shape)}; {expected}.")
    if not teacher.isfinite().all():
        raise InvalidArgumentError(f"labels hold NaN or infinity: {teacher[~teacher.isfinite()].tolist()}; {expected}.")
    return teacher
