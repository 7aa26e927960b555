"""Tell each query's own document from those of the other queries in the batch, and from hard negatives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from sentence_transformers.util import similarity_fct_name
from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.losses.base import ScoreMetric, WarnOnce, check_parts, score
from latelier.losses.columns import embed_columns
from latelier.scores import colbert_scores

__all__ = ["Contrastive"]


class Contrastive(nn.Module):
    """Contrastive loss: cross-entropy of the positive among all documents of the batch.

    Each of ``b`` queries is scored against all ``b * (1 + n)`` documents of the batch: its positive, its ``n`` hard
    negatives, and every document of the other queries. Documents stand in the order of the queries, the positive of
    query ``i`` at column ``i * (1 + n)``.

    Parameters
    ----------
    model
        A late-interaction model.
    score_metric
        Function that scores every query against every document:
        ``(queries, documents, *, queries_mask, documents_mask)`` to ``(b, b * (1 + n))``, as in `latelier.scores` or
        sentence-transformers.
    size_average
        Mean over the queries of the batch; False sums.
    temperature
        Scores are divided by it. 1 suits MaxSim, whose scores grow with the number of query tokens; a score that is
        divided by that number wants about 1 over it.

    Raises
    ------
    InvalidArgumentError
        If the temperature is not a positive number, or the model is none, or has one vector per text.

    Examples
    --------
    >>> from latelier import models, losses

    >>> model = models.ColBERT("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
    >>> contrastive = losses.Contrastive(model)

    >>> anchors = model.tokenize(["are fruits healthy?", "how do planes fly?"], is_query=True)
    >>> positives = model.tokenize(["fruits are good for health.", "wings push air down."], is_query=False)
    >>> negatives = model.tokenize(["fruits are sold by weight.", "planes are made of metal."], is_query=False)

    >>> loss = contrastive([anchors, positives, negatives])
    >>> round(loss.item(), 2)
    0.63
    """

    def __init__(
        self,
        model: nn.Module,
        score_metric: ScoreMetric = colbert_scores,
        size_average: bool = True,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        check_parts(model, score_metric)
        if not 0 < temperature < math.inf:
            raise InvalidArgumentError(f"temperature={temperature!r}; expected a positive number, such as 1.0.")
        self.model = model  # by this name trainers find it, to put a wrapped model in its place
        self.score_metric = score_metric
        self.size_average = size_average
        self.temperature = temperature
        self._warn_once = WarnOnce()

    def forward(self, sentence_features: Iterable[Mapping[str, Any]], labels: Any = None) -> Tensor:
        """Compute the loss of a batch.

        Parameters
        ----------
        sentence_features
            Features of the ``b`` queries, of their positives, and of hard negatives: one dict of ``b`` rows for each
            column, as the trainer passes them; or one dict of ``b * (1 + n)`` rows, each positive followed by its
            negatives; or both.
        labels
            Not looked at: the positive is the first document of each query.

        Returns
        -------
        torch.Tensor
            Scalar, float32 whatever the model computes in.

        Raises
        ------
        InvalidArgumentError
            If features or the scoring function's result have the wrong shape.
        """
        batch = embed_columns(self.model, sentence_features, self._warn_once)
        b, n = batch.documents.shape[:2]
        if b * n == 1:
            self._warn_once(
                "the batch holds one query and one document, so the loss is 0 and nothing is learned; use larger "
                "batches, add hard negatives, or drop the last batch (dataloader_drop_last=True)."
            )
        scores = score(self.score_metric, batch, b * n, "latelier.scores.colbert_scores")
        positives = torch.arange(b, device=scores.device) * n
        reduction = "mean" if self.size_average else "sum"
        return nn.functional.cross_entropy(scores / self.temperature, positives, reduction=reduction)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        return {
            "score_metric": similarity_fct_name(self.score_metric),
            "size_average": self.size_average,
            "temperature": self.temperature,
        }

    @property
    def citation(self) -> str:
        """The paper in BibTeX, for the model card."""
        return """
@inproceedings{khattab-zaharia-2020-colbert,
    title = "{C}ol{BERT}: Efficient and Effective Passage Search via Contextualized Late Interaction over {BERT}",
    author = "Khattab, Omar and Zaharia, Matei",
    booktitle = "Proceedings of SIGIR 2020",
    year = "2020",
    url = "https://arxiv.org/abs/2004.12832",
}
"""
