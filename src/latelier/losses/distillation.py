"""`Distillation`: learn the scores that a teacher, usually a cross-encoder, gave to the candidates of each query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from latelier.arrays import at_least_float32
from latelier.losses.base import Loss, LossOptions, ScoreMetric, check_score_metric, raw_score
from latelier.losses.batch import EmbeddedBatch
from latelier.losses.in_batch_negatives import false_negatives, gather_documents, score_all
from latelier.losses.labels import read_scores
from latelier.losses.mini_batches import MiniBatches
from latelier.losses.normalization import computing_dtype, min_max_normalize, relative_rounding, row_weights
from latelier.scores import colbert_kd_scores, colbert_scores
from latelier.utils import check_flag, check_number

__all__ = ["Distillation"]


class Distillation(Loss):
    """Distillation loss: KL divergence between the teacher's and the model's distributions over a query's candidates.

    With student scores ``s`` and teacher scores ``t``, both ``(b, n)``, the loss is
    ``KL(softmax(t) || softmax(s))`` per query; teacher scores are not normalised (Santhanam et al., 2022, ColBERTv2,
    https://aclanthology.org/2022.naacl-main.272).

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
        Min-max normalise each query's student scores before the softmax: ``(s - min) / (max - min + 1e-8)``. Suits
        teacher scores between 0 and 1. **With two candidates there is no gradient**, since every row becomes 0 and 1;
        the loss warns then. The gradient of the published loss grows without bound as the range shrinks; here, a
        query with almost equal scores has less weight (see *Notes*).
    temperature, teacher_temperature
        Divisors of the student's and the teacher's scores before the softmax. The loss is multiplied by
        ``temperature ** 2``, which keeps the size of its gradient (Hinton et al., 2015). `teacher_temperature` defaults
        to `temperature`.
    in_batch_weight
        Weight of a second term, for in-batch negatives: the cross-entropy of the candidate with the highest teacher
        score among the documents of the *other* queries in the batch, at the student's temperature. Texts that equal
        that candidate are excluded, as in `Contrastive`. 0: no such term.
    in_batch_metric
        Function that scores every query against every document, for the second term.
    dims, mini_batch_tokens
        As in `Contrastive`.

    Raises
    ------
    InvalidArgumentError
        If the model is not a multi-vector model, a score metric is not callable, or a number is out of range.

    Notes
    -----
    With normalised scores, a query's loss ``L`` (temperature ``T``, ``r = max - min`` of its scores) has a gradient of
    1-norm up to ``4 T / r``: scores that differ by rounding alone would outweigh all others. So ``L`` is multiplied by
    a weight without gradient, ``clip((r - tolerance) / (full - tolerance), 0, 1)``:

    * ``tolerance`` bounds the difference that rounding makes between two scores of one text. It is the largest absolute
      score times the sum of ``(dim + query tokens) eps`` of the accumulator, ``2 eps / sqrt(dim)`` of the dtype in
      which the model computes, and, for scores in half precision, their ``eps``. If ``r <= tolerance``, or if all
      candidates are the same text, loss and gradient are 0.
    * ``full`` is 1/256 of the largest absolute score, but at least twice the tolerance. If ``r >= full``, the loss is
      the published one; between, its gradient stays within ``4 T / full``, and it is continuous in ``r``.

    Examples
    --------
    >>> from latelier import models, losses
    >>> import torch

    >>> model = models.ColBERT(
    ...     model_name_or_path="sentence-transformers/all-MiniLM-L6-v2",
    ...     device="cpu",
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

    The untrained head ranks the second document first, and two normalised scores are 0 and 1. With
    ``normalize_scores=False`` the difference of the scores counts, and the loss has a gradient:

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
        *,
        temperature: float = 1.0,
        teacher_temperature: float | None = None,
        in_batch_weight: float = 0.0,
        in_batch_metric: ScoreMetric = colbert_scores,
        dims: Sequence[int] | None = None,
        mini_batch_tokens: int | None = None,
    ) -> None:
        super().__init__(
            model, score_metric, LossOptions(size_average, dims, mini_batches=MiniBatches(mini_batch_tokens))
        )
        self.temperature = check_number("temperature", temperature)
        check_flag("normalize_scores", normalize_scores)
        self.normalize_scores = normalize_scores
        self.teacher_temperature = self.temperature
        if teacher_temperature is not None:
            self.teacher_temperature = check_number("teacher_temperature", teacher_temperature)
        self.in_batch_weight = check_number("in_batch_weight", in_batch_weight, zero=True)
        check_score_metric(in_batch_metric, "in_batch_metric")
        self.in_batch_metric = in_batch_metric

    def _compute(self, batch: EmbeddedBatch, labels: Any) -> Tensor:
        """Return the loss; `labels` are the teacher's scores ``(b, n)``, in the order of the candidates."""
        n = batch.per_query
        raw = raw_score(self.score_metric, batch.queries, batch.documents, n, "latelier.scores.colbert_kd_scores")
        scores = at_least_float32(raw)
        teacher = read_scores(labels, scores)
        self._warn_of_too_few(n)
        student = min_max_normalize(scores) if self.normalize_scores else scores
        divergence = nn.functional.kl_div(
            nn.functional.log_softmax(student / self.temperature, dim=1),
            nn.functional.log_softmax(teacher / self.teacher_temperature, dim=1),
            reduction="none",
            log_target=True,
        ).sum(dim=1)
        if self.normalize_scores:
            divergence = divergence * self._weigh(batch, scores, raw.dtype)
        total = divergence.sum() * self.temperature**2
        if self.in_batch_weight:
            total = total + self.in_batch_weight * self._in_batch(batch, teacher)
        return total / len(batch.queries) if self.options.size_average else total

    def _weigh(self, batch: EmbeddedBatch, scores: Tensor, precision: torch.dtype) -> Tensor:
        """Return query weights ``(b,)``: 0 if all candidates are the same text, or score the same up to rounding."""
        vectors = computing_dtype(self.model, scores.device.type)
        tokens = int(batch.queries.lengths.max())
        weights = row_weights(scores, relative_rounding(precision, vectors, batch.documents.dim, tokens))
        if batch.document_keys is not None:  # with dropout, the same text gets different scores
            candidates = batch.document_keys.view(len(scores), -1)
            weights = weights.masked_fill((candidates == candidates[:, :1]).all(dim=1).to(weights.device), 0)
        if batch.per_query > 1 and not weights.any():
            self._warn_once(
                "all candidates of a query score the same up to rounding, for every query of the batch, so the loss "
                "is 0 with normalize_scores=True. Check that the candidates are different texts; if they are, the "
                "model's vectors are almost equal: start with Distillation(..., normalize_scores=False)."
            )
        return weights

    def _in_batch(self, batch: EmbeddedBatch, teacher: Tensor) -> Tensor:
        """Return the cross-entropy of the best candidate among the documents of other queries, summed over queries."""
        gathered = gather_documents(batch, across_devices=False)
        n, scores = batch.per_query, score_all(self.in_batch_metric, batch, gathered, "in_batch_metric")
        rows = torch.arange(len(batch.queries), device=scores.device)
        positives = rows * n + teacher.argmax(dim=1)
        columns = torch.arange(len(gathered.documents), device=scores.device)
        own = (columns // n == rows[:, None]) & (columns != positives[:, None])
        are_positives = torch.zeros_like(columns, dtype=torch.bool).scatter(0, positives, True)
        excluded = own | false_negatives(batch, gathered, positives, are_positives).to(scores.device)
        scores = scores.masked_fill(excluded, -torch.inf) / self.temperature
        return nn.functional.cross_entropy(scores, positives, reduction="sum")

    def _warn_of_too_few(self, n: int) -> None:
        if n == 1 and not self.in_batch_weight:
            self._warn_once(
                "each query has one candidate, so the loss is always 0 and nothing is learned; give each query two or "
                "more candidates."
            )
        elif n == 2 and self.normalize_scores:
            self._warn_once(
                "each query has two candidates and normalize_scores=True, which makes their scores 0 and 1 for any "
                "model: the loss has no gradient. Use Distillation(..., normalize_scores=False), or give each query "
                "three or more candidates."
            )

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        settings = {**super().get_config_dict(), "normalize_scores": self.normalize_scores}
        if (self.temperature, self.teacher_temperature) != (1.0, 1.0):
            settings |= {"temperature": self.temperature, "teacher_temperature": self.teacher_temperature}
        return settings | ({"in_batch_weight": self.in_batch_weight} if self.in_batch_weight else {})

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
