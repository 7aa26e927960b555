"""Fitting the PCA projection of an untrained model on a sample of texts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

import torch
from sentence_transformers.base.modules import Dense

from latelier.errors import InvalidArgumentError
from latelier.models.projection import SecondMoment
from latelier.utils.progress import progress_bar

if TYPE_CHECKING:
    from latelier.models.colbert import ColBERT

__all__ = ["fit_pca"]


def fit_pca(model: ColBERT, texts: Iterable[str], batch_size: int, show_progress_bar: bool) -> None:
    """Replace the weight of the model's last linear layer by the principal directions of what it receives.

    Parameters
    ----------
    model
        A model whose last `Dense` is the projection to fit.
    texts
        Documents, consumed batch by batch.
    batch_size
        Texts per batch.
    show_progress_bar
        Show a progress bar on standard error.

    Raises
    ------
    InvalidArgumentError
        If the texts have fewer tokens than the projection has dimensions.
    """
    position, projection = [(i, module) for i, module in enumerate(model) if isinstance(module, Dense)][-1]
    moment = SecondMoment(projection.in_features)
    model.eval()
    remaining = iter([texts] if isinstance(texts, str) else texts)
    with torch.inference_mode(), progress_bar(shown=show_progress_bar, desc="Fitting projection", unit="text") as bar:
        while batch := list(islice(remaining, batch_size)):
            features = model.tokenize(batch, is_query=False)
            features = {key: v.to(model.device) if hasattr(v, "to") else v for key, v in features.items()}
            for module in list(model)[:position]:
                features = module(features)
            moment.add(features["token_embeddings"][features["attention_mask"].bool()])
            bar.update(len(batch))
    if moment.count < projection.out_features:
        raise InvalidArgumentError(
            f"the texts have {moment.count} tokens, too few to fit {projection.out_features} dimensions; "
            "give more texts."
        )
    with torch.no_grad():
        projection.linear.weight.copy_(moment.directions(projection.out_features))
