"""`CachedContrastive`: `Contrastive` for batches of any size, in the memory of a mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from latelier.losses.base import ScoreMetric
from latelier.losses.contrastive import Contrastive
from latelier.losses.mini_batches import MiniBatches
from latelier.scores import colbert_scores
from latelier.utils import check_count

__all__ = ["CachedContrastive"]


class CachedContrastive(Contrastive):
    """Contrastive loss of batches that do not fit into memory (Gao et al., 2021, GradCache).

    Value and gradient are those of `Contrastive` for any mini-batch size: the forward pass keeps only the token
    vectors, and the backward pass repeats each mini-batch's forward pass, with the same dropout. Training needs the
    memory of one mini-batch and a third more time; a larger batch has more negatives.

    Parameters
    ----------
    model, score_metric, size_average, temperature
        As in `Contrastive`.
    mini_batch_size
        Maximum number of texts of a forward pass.
    mask_duplicates, gather_across_devices, dims
        As in `Contrastive`.

    Raises
    ------
    InvalidArgumentError
        As in `Contrastive`, or if `mini_batch_size` is not a positive integer.

    Examples
    --------
    >>> from latelier import models, losses
    >>> name = "sentence-transformers/all-MiniLM-L6-v2"
    >>> model = models.ColBERT(name, device="cpu")
    >>> queries = ["are fruits healthy?", "how do planes fly?"]
    >>> documents = ["fruits are good for health.", "wings push air down."]
    >>> batch = [
    ...     model.tokenize(queries, is_query=True),
    ...     model.tokenize(documents, is_query=False),
    ... ]
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
