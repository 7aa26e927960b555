"""Losses that learn from a teacher's scores: `Distillation` and `MarginMSE`.

`min_max_normalize` divides by the range of a row. Scores that are equal but for rounding have a range of a few last
digits, and dividing by it makes noise as large as a difference. `row_weights` gives such rows less weight:

With ``z = (s - min s) / r``, ``r = max s - min s``, ``p = softmax(z / T)`` and ``L = T^2 KL(t || p)``, the gradient is
``dL/ds = (T / r) (g + <g, z> (e_min - e_max))``, where ``g = p - t``. Since ``|g|_1 <= 2`` and ``|<g, z>| <= 1``, its
1-norm is at most ``4 T / r``, and it does grow as ``1 / r``. A larger denominator does not help: the gradient is then
largest for equal scores. A weight ``w(r)`` without gradient does, 0 up to a tolerance and rising linearly to 1 at
``full``: the gradient's 1-norm is at most ``4 T / full``. (With a gradient, the weight would reward equal scores.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from latelier.arrays import at_least_float32, is_array
from latelier.errors import InvalidArgumentError
from latelier.losses.base import (
    EmbeddedBatch,
    Loss,
    LossOptions,
    MiniBatches,
    ScoreMetric,
    false_negatives,
    gather_documents,
    raw_score,
    score_all,
)
from latelier.scores import colbert_kd_scores, colbert_scores
from latelier.utils.checks import check_number

# Avoids dividing a row of equal scores by zero; part of the published loss.
_EPSILON = 1e-8
# Rows whose range is at least this share of the largest score have weight 1: the relative error of a bfloat16 number,
# which most training computes in. The scores of different documents differ by more, even for an untrained model.
_FULL_SHARE = 1 / 256
_PRECISIONS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)  # lowest precision first


def min_max_normalize(scores: Tensor) -> Tensor:
    """Map each row ``(b, n)`` onto 0 ... 1: ``(s - min) / (max - min + 1e-8)``."""
    low = scores.min(dim=1, keepdim=True).values
    high = scores.max(dim=1, keepdim=True).values
    return (scores - low) / (high - low + _EPSILON)


def row_weights(scores: Tensor, rounding: float) -> Tensor:
    """Return a weight for each row: less than 1 if its scores hardly differ by more than rounding.

    `scores`: ``(b, n)``, before they are normalised. `rounding`: largest difference of two scores that rounding alone
    can make, relative to the scores; see `relative_rounding`. Returns: ``(b,)``, without gradient: with ``size`` the
    largest absolute score of a row, ``tolerance = rounding * size`` and ``full = max(size / 256, 2 * tolerance)``, the
    weight is ``(max - min - tolerance) / (full - tolerance)``, clipped to 0 ... 1. NaN for rows with NaN or infinite
    scores, so that these show in the loss.
    """
    scores = scores.detach()
    span = scores.amax(dim=1) - scores.amin(dim=1)
    size = scores.abs().amax(dim=1)
    tolerance = rounding * size
    full = max(_FULL_SHARE, 2 * rounding) * size
    tiny = torch.finfo(scores.dtype).tiny  # if all scores are 0, so are span, tolerance and full
    return ((span - tolerance) / (full - tolerance).clamp(min=tiny)).clamp(0, 1)


def relative_rounding(scores: torch.dtype, vectors: torch.dtype, dim: int, tokens: int) -> float:
    """Bound the relative difference that rounding makes between two scores of one text.

    ``(dim + tokens) eps`` of the accumulator (each addition is off by half an epsilon, and two scores are compared),
    plus ``eps`` of the scores' dtype, plus ``2 eps / sqrt(dim)`` of the vectors' dtype (independent roundings; 2 allows
    for the encoder's own).
    """
    sums = torch.promote_types(scores, torch.float32)
    of_sums = (dim + tokens) * torch.finfo(sums).eps
    if sums != scores:
        of_scores = torch.finfo(scores).eps
    else:
        of_scores = 0.0
    return of_sums + of_scores + 2 * torch.finfo(vectors).eps / math.sqrt(max(dim, 1))


def computing_dtype(model: nn.Module, device_type: str) -> torch.dtype:
    """Return the dtype of lowest precision among the model's weights and, if it is on, autocast."""
    used = {parameter.dtype for parameter in model.parameters()}
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        used.add(torch.get_autocast_dtype(device_type))
    return next((dtype for dtype in _PRECISIONS if dtype in used), torch.float32)


def read_scores(labels: Any, scores: Tensor) -> Tensor:
    """Return the teacher's scores as a tensor of the shape, dtype and device of the student's `scores`."""
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
    """Return labels, also a list of tensors, as a tensor of real numbers."""
    if isinstance(labels, (list, tuple)) and any(map(is_array, labels)):
        labels = torch.stack([torch.as_tensor(row) for row in labels])  # torch reads no list of tensors
    return torch.as_tensor(labels)


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
        self.normalize_scores = normalize_scores
        self.teacher_temperature = self.temperature
        if teacher_temperature is not None:
            self.teacher_temperature = check_number("teacher_temperature", teacher_temperature)
        self.in_batch_weight = check_number("in_batch_weight", in_batch_weight, zero=True)
        self.in_batch_metric = in_batch_metric

    def _compute(self, batch: EmbeddedBatch, labels: Any) -> Tensor:
        """Return the loss; `labels` are the teacher's scores ``(b, n)``, in the order of the candidates."""
        n = batch.per_query
        raw = raw_score(self.score_metric, batch.queries, batch.documents, n, "latelier.scores.colbert_kd_scores")
        scores = at_least_float32(raw)
        teacher = read_scores(labels, scores)
        self._warn_of_too_few(n)
        if self.normalize_scores:
            student = min_max_normalize(scores)
        else:
            student = scores
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
        if self.options.size_average:
            return total / len(batch.queries)
        return total

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
        n = batch.per_query
        scores = score_all(self.in_batch_metric, batch, gathered, "in_batch_metric")
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


class MarginMSE(Loss):
    """Margin loss: the squared difference between the model's and the teacher's margins.

    With student scores ``s`` and teacher scores ``t``, both ``(b, 1 + n)`` with the positive first, the loss is the
    mean over queries and negatives of ``((s_0 - s_i) - (t_0 - t_i)) ** 2`` (Hofstätter et al., 2020,
    https://arxiv.org/abs/2010.02666). Margins are not rescaled: for teacher scores between 0 and 1 use `Distillation`,
    which normalises the student's scores. Labels are the teacher's scores ``(b, 1 + n)``, or its margins ``(b, n)``
    (``(b,)`` for one negative).

    Parameters
    ----------
    model, score_metric, dims, mini_batch_tokens
        As in `Distillation`.
    size_average
        Mean over queries and negatives; False sums.

    Examples
    --------
    >>> from latelier import models, losses
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> model = models.ColBERT(name, device="cpu")
    >>> margin_mse = losses.MarginMSE(model)
    >>> query = model.tokenize(["are fruits healthy?"], is_query=True)
    >>> texts = ["they are good.", "they are red."]
    >>> documents = model.tokenize(texts, is_query=False)
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
        suggestion = "latelier.scores.colbert_kd_scores"
        scores = at_least_float32(raw_score(self.score_metric, batch.queries, batch.documents, n, suggestion))
        margins = scores[:, :1] - scores[:, 1:]
        if self.options.size_average:
            reduction = "mean"
        else:
            reduction = "sum"
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
    if labels is None:
        given = None
    else:
        given = as_numbers(labels).detach()
    b, n = scores.shape
    if given is not None and given.shape in ((b, n - 1), (b,) if n == 2 else (b, n - 1)):
        return read_scores(given.reshape(b, n - 1), scores[:, 1:])
    teacher = read_scores(given, scores)
    return teacher[:, :1] - teacher[:, 1:]
