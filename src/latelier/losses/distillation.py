"""Learn the scores that a teacher, usually a cross-encoder, gave to the candidates of each query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from latelier.errors import InvalidArgumentError
from latelier.losses.base import Loss, Options, ScoreMetric, check_score_metric, raw_score
from latelier.losses.columns import Embedded
from latelier.losses.distributed import gather
from latelier.losses.negatives import false_negatives, score_all
from latelier.losses.passes import MiniBatches, at_least_float32
from latelier.losses.stretching import computing_dtype, relative_rounding, row_weights, stretch
from latelier.scores import colbert_kd_scores, colbert_scores
from latelier.utils import check_number
from latelier.utils.describing import describe

__all__ = ["Distillation", "as_numbers", "read_labels"]


class Distillation(Loss):
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
        and 1 whatever the model says; the loss warns then. Unlike in the published loss, whose gradient is as large
        as the range is small, a query counts only as far as its candidates' scores differ (see *Notes*).
    temperature, teacher_temperature
        Student scores and teacher scores are divided by them before the softmax, and the loss is multiplied by the
        square of the first, which keeps its gradient as large (Hinton et al., 2015). The teacher's is the student's
        where it is not given.
    in_batch_weight
        More than 0 adds, times this weight, the cross-entropy of the candidate that the teacher likes best among all
        documents of the *other* queries in the batch, at the student's temperature: candidates alone do not teach what
        everything else looks like. Texts that equal the best candidate are left out, as in `Contrastive`.
    in_batch_metric
        Function that scores every query against every document for it.
    dims, mini_batch_tokens
        As in `Contrastive`.

    Raises
    ------
    InvalidArgumentError
        If the model is none, or has one vector per text.

    Notes
    -----
    With normalised scores, a query's loss ``L`` (temperature ``T``) has a gradient of 1-norm up to ``4 T / r`` at its
    scores, ``r = max - min``: equal scores, which rounding sets apart by a last digit, would outweigh all others. So
    ``L`` is multiplied by a weight without gradient, ``clip((r - tolerance) / (full - tolerance), 0, 1)``:

    * ``tolerance`` is what rounding can do to two scores of one text: the largest absolute score times
      ``(dim + query tokens) eps`` of the sums, plus ``2 eps / sqrt(dim)`` of the numbers that the model computes in,
      plus ``eps`` of scores that come in half precision. Up to it, and where all candidates are the same text, a query
      teaches nothing: loss and gradient are 0.
    * ``full`` is 1/256 of the largest absolute score (or twice the tolerance), from where on the loss is the published
      one. Below it the gradient stays within ``4 T / full``, and the loss falls to 0 without a jump.

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
        *,
        temperature: float = 1.0,
        teacher_temperature: float | None = None,
        in_batch_weight: float = 0.0,
        in_batch_metric: ScoreMetric = colbert_scores,
        dims: Sequence[int] | None = None,
        mini_batch_tokens: int | None = None,
    ) -> None:
        super().__init__(model, score_metric, Options(size_average, dims, parts=MiniBatches(mini_batch_tokens)))
        check_number("temperature", temperature)
        self.normalize_scores = normalize_scores
        self.temperature = temperature
        self.teacher_temperature = temperature if teacher_temperature is None else teacher_temperature
        check_number("teacher_temperature", self.teacher_temperature)
        check_number("in_batch_weight", in_batch_weight, zero=True)
        check_score_metric(in_batch_metric, "in_batch_metric")
        self.in_batch_weight = in_batch_weight
        self.in_batch_metric = in_batch_metric

    def _compute(self, batch: Embedded, labels: Any) -> Tensor:
        """``labels``: the teacher's scores ``(b, n)``, in the order of the candidates."""
        n = batch.per_query
        raw = raw_score(self.score_metric, batch.queries, batch.documents, n, "latelier.scores.colbert_kd_scores")
        scores = at_least_float32(raw)
        teacher = read_labels(labels, scores)
        self._warn_of_too_few(n)
        divergence = nn.functional.kl_div(
            nn.functional.log_softmax((stretch(scores) if self.normalize_scores else scores) / self.temperature, dim=1),
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

    def _weigh(self, batch: Embedded, scores: Tensor, precision: torch.dtype) -> Tensor:
        """Weigh queries ``(b,)``: 0 for those whose candidates are one text, or score the same up to rounding."""
        vectors = computing_dtype(self.model, scores.device.type)
        tokens = int(batch.queries.lengths.max())
        weights = row_weights(scores, relative_rounding(precision, vectors, batch.documents.dim, tokens))
        if batch.document_keys is not None:  # with dropout, one text has several scores
            candidates = batch.document_keys.view(len(scores), -1)
            weights = weights.masked_fill((candidates == candidates[:, :1]).all(dim=1).to(weights.device), 0)
        if batch.per_query > 1 and not weights.any():
            self._warn_once(
                "all candidates of a query score the same up to rounding, for every query of a batch, which teaches "
                "nothing with normalize_scores=True: see that the candidates are different texts. Where they are, the "
                "model's vectors are all alike; start with Distillation(..., normalize_scores=False)."
            )
        return weights

    def _in_batch(self, batch: Embedded, teacher: Tensor) -> Tensor:
        """Sum over queries of the cross-entropy of the best candidate among the documents of other queries."""
        everyone = gather(batch, across_devices=False)
        n, scores = batch.per_query, score_all(self.in_batch_metric, batch, everyone)
        rows = torch.arange(len(batch.queries))
        positives = rows * n + teacher.argmax(dim=1).cpu()
        columns = torch.arange(len(everyone.documents))
        own = (columns // n == rows[:, None]) & (columns != positives[:, None])
        left_out = (own | false_negatives(batch, everyone, positives)).to(scores.device)
        scores = scores.masked_fill(left_out, -torch.inf) / self.temperature
        return nn.functional.cross_entropy(scores, positives.to(scores.device), reduction="sum")

    def _warn_of_too_few(self, n: int) -> None:
        if n == 1 and not self.in_batch_weight:
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


def read_labels(labels: Any, scores: Tensor) -> Tensor:
    """Return the teacher's scores as a tensor like `scores`, or say what is wrong with them."""
    expected = f"expected the teacher's scores of shape {tuple(scores.shape)} (queries, candidates of each)"
    if labels is None:
        raise InvalidArgumentError(
            f"received no labels; {expected}. In a trainer, they are the dataset's column 'scores' (or 'label')."
        )
    teacher = as_numbers(labels).detach().to(scores)
    if teacher.shape != scores.shape:
        raise InvalidArgumentError(f"received labels of shape {tuple(teacher.shape)}; {expected}.")
    if not teacher.isfinite().all():
        raise InvalidArgumentError(f"labels hold NaN or infinity: {teacher[~teacher.isfinite()].tolist()}; {expected}.")
    return teacher


def as_numbers(labels: Any) -> Tensor:
    """Return labels as a tensor, or say that they hold no numbers."""
    try:
        numbers = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidArgumentError(f"received {describe(labels)} as labels; expected numbers: {error}.") from error
    if numbers.is_complex():
        raise InvalidArgumentError("received complex labels; expected real numbers.")
    return numbers
