"""Loading any model for search, whatever it was trained as."""

from __future__ import annotations

from typing import Any

import torch

from latelier.models.colbert import ColBERT
from latelier.models.names import DEFAULT_MODEL
from latelier.models.recipe import UNTRAINED

__all__ = ["load"]


def load(model_name_or_path: str = DEFAULT_MODEL, device: str | torch.device | None = None, **kwargs: Any) -> ColBERT:
    """Load a model that is ready to search with.

    Parameters
    ----------
    model_name_or_path
        A late-interaction checkpoint, loaded as it was trained; or a dense model or bare encoder, used without
        training as `ColBERT.from_dense` does.
    device
        As in `ColBERT`.
    **kwargs
        Further parameters of `ColBERT`.

    Returns
    -------
    ColBERT
        The model.

    Examples
    --------
    >>> load(device="cpu").embedding_size
    384
    """
    return ColBERT(model_name_or_path, device=device, recipe=UNTRAINED, **kwargs)
