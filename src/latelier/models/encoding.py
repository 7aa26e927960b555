"""The encoding loop: tokenise a window of texts once, then run batches of similar length under a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from latelier.utils import batch_by_tokens

if TYPE_CHECKING:
    from latelier.models.encoder import Encoder

__all__ = ["encode_texts"]

# Texts tokenised at once: enough to find partners of equal length, few enough to hold their token ids (17 MB).
_WINDOW = 2048


def encode_texts(
    model: Encoder,
    texts: Sequence[str],
    task: str,
    batch_size: int,
    *,
    prompt: str | None = None,
    device: torch.device | None = None,
    save_to_cpu: bool = False,
    show_progress_bar: bool = False,
    **kwargs: Any,
) -> list[Tensor]:
    """Encode texts without gradients.

    Parameters
    ----------
    model
        The model.
    texts
        The texts.
    task
        ``"query"`` or ``"document"``.
    batch_size
        How many texts of full length make a batch; of shorter texts, as many as make equally many tokens.
    prompt
        What to put before each text.
    device
        Where to compute; default: where the model is.
    save_to_cpu
        Move each batch to the CPU when it is done.
    show_progress_bar
        Show a progress bar on standard error.
    **kwargs
        Arguments of `preprocess` and of the modules.

    Returns
    -------
    list of torch.Tensor
        One ``(tokens, dim)`` matrix per text, in order; those of a batch share memory.
    """
    cap = model.max_length_query if task == "query" else model.max_length_document
    device = device or model.device
    if model.training:
        model.eval()
    encoded: list[Tensor | None] = [None] * len(texts)
    side = "queries" if task == "query" else "documents"
    with torch.no_grad(), tqdm(total=len(texts), desc=f"Encoding {side}", disable=not show_progress_bar) as bar:
        for start in range(0, len(texts), _WINDOW):
            window = model.preprocess(texts[start : start + _WINDOW], prompt=prompt, task=task, **kwargs)
            used = _used_columns(window)
            for rows in batch_by_tokens(used.sum(dim=1).numpy(), batch_size * cap):
                features = _select(window, used, rows, device)
                out = model(features, task=task, **kwargs)
                mask = out["attention_mask"].bool()
                vectors = out["token_embeddings"][mask]  # (tokens of the batch, dim)
                parts = (vectors.cpu() if save_to_cpu else vectors).split(mask.sum(dim=1).tolist())
                for row, part in zip(rows.tolist(), parts, strict=True):
                    encoded[start + row] = part
                bar.update(len(rows))
    return [part for part in encoded if part is not None]


def _used_columns(features: Any) -> Tensor:
    """Bool ``(n, width)``: positions that hold a token of the text or of its query expansion."""
    used = features["attention_mask"].bool()
    expansion = features.get("query_expansion_positions")
    return used if expansion is None else used | expansion.bool()


def _select(features: Any, used: Tensor, rows: np.ndarray, device: torch.device) -> dict[str, Any]:
    """Cut a batch out of a tokenised window, without the columns that only its longer texts need."""
    index = torch.from_numpy(rows)
    columns = torch.nonzero(used[index].any(dim=0)).flatten()
    first, last = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, used.shape[1])
    batch = {}
    for name, value in features.items():
        per_token = isinstance(value, Tensor) and value.shape == used.shape
        batch[name] = value[index, first:last].to(device) if per_token else value
    return batch
