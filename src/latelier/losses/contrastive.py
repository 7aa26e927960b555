"""Losses that learn from positives and negatives: `Contrastive`, and `CachedContrastive` for large batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from latelier.losses.base import (
    EmbeddedBatch,
    Loss,
    LossOptions,
    MiniBatches,
    ScoreMetric,
    false_negatives,
    gather_documents,
    reduce_total,
    score_all,
)
from latelier.scores import colbert_scores
from latelier.utils.checks import check_count, check_number


class Contrastive(Loss):
    """Contrastive loss: cross-entropy of the positive among all documents of the batch.

    Each of ``b`` queries is scored against all ``b * (1 + n)`` documents of the batch: its positive, its ``n`` hard
    negatives, and every document of the other queries. The positive of query ``i`` is column ``i * (1 + n)``. Labels
    are ignored.

    Parameters
    ----------
    model
        A late-interaction model.
    score_metric
        Scores every query against every document: ``(queries, documents, *, queries_mask, documents_mask)`` to
        ``(b, b * (1 + n))``, as in `latelier.scores` or sentence-transformers.
    size_average
        Mean over the queries of the batch; False sums.
    temperature
        Divisor of the scores. 1 suits MaxSim, a sum over ``t`` query tokens; for a mean over them, about ``1 / t``.
    mask_duplicates
        Exclude texts that equal the query's positive, and positives of other rows with the same query.
    gather_across_devices
        With several processes, use the documents of all as negatives. The gradient, averaged over the processes as
        trainers do, is that of the whole batch.
    dims
        Train for several sizes at once, such as ``(128, 64, 32)``: the mean of the losses of vectors truncated to their
        first dimensions (Kusupati et al., 2022, Matryoshka, https://arxiv.org/abs/2205.13147). None: whole vectors.
    mini_batch_tokens
        Maximum number of tokens of a forward pass, padding included; None: a default for the device. Changes time and
        memory, not the value.

    Raises
    ------
    InvalidArgumentError
        If the temperature is not a positive number, or the model is not a multi-vector model.

    Examples
    --------
    >>> from latelier import models, losses
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> model = models.ColBERT(name, device="cpu")
    >>> contrastive = losses.Contrastive(model)
    >>> anchors = ["are fruits healthy?", "how do planes fly?"]
    >>> positives = ["fruits are good for health.", "wings push air down."]
    >>> negatives = ["fruits are sold by weight.", "planes are made of metal."]
    >>> query = model.tokenize(anchors, is_query=True)
    >>> sides = positives, negatives
    >>> columns = [model.tokenize(side, is_query=False) for side in sides]
    >>> round(contrastive([query, *columns]).item(), 2)
    0.63
    """

    def __init__(
        self,
        model: nn.Module,
        score_metric: ScoreMetric = colbert_scores,
        size_average: bool = True,
        temperature: float = 1.0,
        *,
        mask_duplicates: bool = True,
        gather_across_devices: bool = False,
        dims: Sequence[int] | None = None,
        mini_batch_tokens: int | None = None,
    ) -> None:
        options = LossOptions(size_average, dims, gather_across_devices, MiniBatches(mini_batch_tokens))
        super().__init__(model, score_metric, options)
        self.temperature = check_number("temperature", temperature)
        self.mask_duplicates = mask_duplicates

    def _compute(self, batch: EmbeddedBatch, labels: Any) -> Tensor:
        gathered = gather_documents(batch, across_devices=self.options.gather_across_devices)
        self._warn_of_too_few(len(gathered.documents))
        scores = score_all(self.score_metric, batch, gathered)
        positives = gathered.first + torch.arange(len(batch.queries), device=scores.device) * batch.per_query
        if self.mask_duplicates:
            are_positives = torch.arange(len(gathered.documents)) % batch.per_query == 0
            excluded = false_negatives(batch, gathered, positives, are_positives)
            scores = scores.masked_fill(excluded.to(scores.device), -torch.inf)
        total = nn.functional.cross_entropy(scores / self.temperature, positives, reduction="sum")
        return reduce_total(total, gathered, self.options)

    def _warn_of_too_few(self, documents: int) -> None:
        if documents == 1:
            self._warn_once(
                "the batch holds one query and one document, so the loss is 0 and nothing is learned; use larger "
                "batches, add hard negatives, or drop the last batch (dataloader_drop_last=True)."
            )

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        return {
            **super().get_config_dict(),
            "temperature": self.temperature,
            **({} if self.mask_duplicates else {"mask_duplicates": False}),
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


class CachedContrastive(Contrastive):
    """Contrastive loss of batches that do not fit into memory (Gao et al., 2021, GradCache).

    Value and gradient are those of `Contrastive` for any mini-batch size: the forward pass keeps only the token
    vectors, and the backward pass repeats each mini-batch's forward pass, with the same dropout. Training needs the
    memory of one mini-batch and a third more time; a larger batch has more negatives.

    Parameters
    ----------
    model, score_metric, size_average, temperature, mask_duplicates, gather_across_devices, dims
        As in `Contrastive`.
    mini_batch_size
        Maximum number of texts of a forward pass.

    Examples
    --------
    >>> from latelier import models, losses
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> model = models.ColBERT(name, device="cpu")
    >>> query = model.tokenize(["are fruits healthy?"], is_query=True)
    >>> texts = ["they are good.", "they are red."]
    >>> documents = model.tokenize(texts, is_query=False)
    >>> batch = [query, documents]
    >>> cached = losses.CachedContrastive(model, mini_batch_size=1)(batch)
    >>> whole = losses.Contrastive(model)(batch)
    >>> abs(cached.item() - whole.item()) < 1e-4
    True
    """

    def __init__(
        self,
        model: nn.Module,
        score_metric: ScoreMetric = colbert_scores,
        size_average: bool = True,
        temperature: float = 1.0,
        *,
        mini_batch_size: int = 32,
        mask_duplicates: bool = True,
        gather_across_devices: bool = False,
        dims: Sequence[int] | None = None,
    ) -> None:
        mini_batches = MiniBatches(max_rows=check_count("mini_batch_size", mini_batch_size), recompute=True)
        super().__init__(
            model,
            score_metric,
            size_average,
            temperature,
            mask_duplicates=mask_duplicates,
            gather_across_devices=gather_across_devices,
            dims=dims,
        )
        self.options = self.options._replace(mini_batches=mini_batches)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        return {**super().get_config_dict(), "mini_batch_size": self.options.mini_batches.max_rows}

    @property
    def citation(self) -> str:
        """The papers in BibTeX, for the model card."""
        return (
            super().citation
            + """
@inproceedings{gao-etal-2021-scaling,
    title = "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup",
    author = "Gao, Luyu and Zhang, Yunyi and Han, Jiawei and Callan, Jamie",
    booktitle = "Proceedings of RepL4NLP 2021",
    year = "2021",
    url = "https://aclanthology.org/2021.repl4nlp-1.31",
}
"""
        )
