"""`MarginMSE`: learn the margins between a teacher's scores of each query's positive and of its negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.losses.base import Loss, LossOptions, ScoreMetric, score
from latelier.losses.batch import EmbeddedBatch
from latelier.losses.labels import as_numbers, read_scores
from latelier.losses.mini_batches import MiniBatches
from latelier.scores import colbert_kd_scores

__all__ = ["MarginMSE"]


class MarginMSE(Loss):
    """Margin loss: the squared difference between the model's and the teacher's margins.

    With student scores ``s`` and teacher scores ``t``, both ``(b, 1 + n)`` with the positive first, the loss is the
    mean over queries and negatives of ``((s_0 - s_i) - (t_0 - t_i)) ** 2`` (Hofstätter et al., 2020,
    https://arxiv.org/abs/2010.02666). Margins are not rescaled: for teacher scores between 0 and 1 use `Distillation`,
    which normalises the student's scores.

    Labels are the teacher's scores ``(b, 1 + n)``, or its margins ``(b, n)`` (``(b,)`` for one negative).

    Parameters
    ----------
    model
        A late-interaction model.
    score_metric
        As in `Distillation`.
    size_average
        Mean over queries and negatives; False sums.
    dims, mini_batch_tokens
        As in `Contrastive`.

    Raises
    ------
    InvalidArgumentError
        If the model is not a multi-vector model, or `score_metric` is not callable.

    Examples
    --------
    >>> from latelier import models, losses
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> model = models.ColBERT(name, device="cpu")
    >>> margin_mse = losses.MarginMSE(model)
    >>> query = model.tokenize(["are fruits healthy?"], is_query=True)
    >>> documents = model.tokenize(
    ...     ["fruits are good for health.", "fruits are sold by weight."],
    ...     is_query=False,
    ... )
    >>> from_scores = margin_mse([query, documents], labels=[[9.0, 4.0]])
    >>> from_margins = margin_mse([query, documents], labels=[5.0])
    >>> from_scores.item() == from_margins.item() > 0
    True
    """

    def __init__(
        self,
        model: nn.Module,
        score_metric: ScoreMetric = colbert_kd_scores,
        size_average: bool = True,
        *,
        dims: Sequence[int] | None = None,
        mini_batch_tokens: int | None = None,
    ) -> None:
        super().__init__(
            model, score_metric, LossOptions(size_average, dims, mini_batches=MiniBatches(mini_batch_tokens))
        )

    def _compute(self, batch: EmbeddedBatch, labels: Any) -> Tensor:
        n = batch.per_query
        if n < 2:
            raise InvalidArgumentError(
                "each query has one document; expected a positive and at least one negative, so that there is a margin."
            )
        scores = score(self.score_metric, batch.queries, batch.documents, n, "latelier.scores.colbert_kd_scores")
        margins = scores[:, :1] - scores[:, 1:]
        reduction = "mean" if self.options.size_average else "sum"
        return nn.functional.mse_loss(margins, _read_margins(labels, scores), reduction=reduction)

    @property
    def citation(self) -> str:
        """The paper in BibTeX, for the model card."""
        return """
@misc{hofstaetter-etal-2020-margin-mse,
    title = "Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation",
    author = "Hofst{\\"a}tter, Sebastian and Althammer, Sophia and Schr{\\"o}der, Michael and Sertkan, Mete and
        Hanbury, Allan",
    year = "2020",
    url = "https://arxiv.org/abs/2010.02666",
}
"""


def _read_margins(labels: Any, scores: Tensor) -> Tensor:
    given = None if labels is None else as_numbers(labels).detach()
    b, n = scores.shape
    if given is not None and given.shape in ((b, n - 1), (b,) if n == 2 else (b, n - 1)):
        return read_scores(given.reshape(b, n - 1), scores[:, 1:])
    teacher = read_scores(given, scores)
    return teacher[:, :1] - teacher[:, 1:]
