"""`load`: a model that is ready to search with, by its name or folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latelier.models.arguments import UNTRAINED
from latelier.models.location import DEFAULT_MODEL, check_name

if TYPE_CHECKING:
    import torch

    from latelier.models.colbert import ColBERT


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

    Raises
    ------
    ModelLoadError
        If there is no such model, or it cannot be read.

    Examples
    --------
    >>> load(device="cpu").embedding_size
    384
    """
    check_name(str(model_name_or_path))  # before torch is imported, which takes seconds
    from latelier.models.colbert import ColBERT

    return ColBERT(model_name_or_path, device=device, recipe=UNTRAINED, **kwargs)
