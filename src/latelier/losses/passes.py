"""Running texts through a model in mini-batches of similar length, so that a batch costs what its texts cost.

Padded to its longest document, a batch of real texts is two thirds padding, all of which an encoder computes with.
Here the rows are sorted by length, and each mini-batch is cut to its own longest row. The collator's padding is only
token ids, so the trainer's own collator will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from latelier.embeddings import TokenEmbeddings
from latelier.utils import batch_by_tokens, check_count

__all__ = ["MiniBatches", "at_least_float32", "run_rows", "run_whole"]

# Tokens of a mini-batch, padding included. On a CPU what fits its caches is fastest, and large products gain nothing;
# a GPU wants enough rows to be busy.
_CPU_TOKENS = 1024
_ACCELERATOR_TOKENS = 32768


class MiniBatches(NamedTuple):
    """How the texts of a batch are shared out among passes through the model.

    Parameters
    ----------
    max_tokens
        Most tokens of a pass, padding included; None: what suits the device.
    max_rows
        Most texts of a pass; None: as many as fit the tokens.
    recompute
        Keep nothing of a pass but its token vectors, and run it again for its gradient (Gao et al., 2021, GradCache,
        https://aclanthology.org/2021.repl4nlp-1.31): memory is that of one pass, for a third more time.
    """

    max_tokens: int | None = None
    max_rows: int | None = None
    recompute: bool = False

    def check(self) -> MiniBatches:
        """Return itself, or refuse sizes that are none."""
        for name, value in (("mini_batch_tokens", self.max_tokens), ("mini_batch_size", self.max_rows)):
            check_count(name, value, optional=True)
        return self


def run_rows(model: nn.Module, features: dict[str, Any], parts: MiniBatches) -> TokenEmbeddings:
    """Embed the rows of features whose tensors are all ``(rows, tokens)``, in mini-batches of similar length.

    Parameters
    ----------
    model
        A late-interaction model, or a wrapper around one.
    features
        The features; left as they are.
    parts
        How to share them out.

    Returns
    -------
    TokenEmbeddings
        The scored tokens of each row, in the order of the rows, with gradients; at least float32.
    """
    used = _used(features)
    lengths = used.sum(dim=1).cpu().numpy()
    budget = parts.max_tokens or (_CPU_TOKENS if used.device.type == "cpu" else _ACCELERATOR_TOKENS)
    texts: list[Tensor | None] = [None] * len(lengths)
    for rows in batch_by_tokens(lengths, budget, parts.max_rows):
        if len(rows) == len(lengths):  # all at once: as they are
            return TokenEmbeddings.from_list(_pass(model, features, parts.recompute))
        passed = _pass(model, _select(features, used, rows), parts.recompute)
        for row, text in zip(rows.tolist(), passed, strict=True):
            texts[row] = text
    return TokenEmbeddings.from_list([text for text in texts if text is not None])


def run_whole(model: nn.Module, features: dict[str, Any], parts: MiniBatches) -> TokenEmbeddings:
    """Embed features of any kind (images, say) in one pass."""
    return TokenEmbeddings.from_list(_pass(model, features, parts.recompute))


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return half precision as float32, anything wider as it is."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _pass(model: nn.Module, features: dict[str, Any], recompute: bool) -> list[Tensor]:
    """Run one pass: one ``(tokens, dim)`` matrix per row, of the tokens that are scored."""
    if not (recompute and torch.is_grad_enabled()):
        vectors, lengths = _forward(model, features)
    else:
        vectors, lengths = checkpoint(_first_with_wrapper(model), features, use_reentrant=False)
    return list(vectors.split(lengths.tolist()))


def _forward(model: nn.Module, features: dict[str, Any]) -> tuple[Tensor, Tensor]:
    out = model(dict(features), task=features.get("task"))  # a copy, since the model's modules write into the dict
    mask = out["attention_mask"].bool()
    vectors = out["token_embeddings"].flatten(0, 1).index_select(0, mask.flatten().nonzero().squeeze(1))
    return at_least_float32(vectors), mask.sum(dim=1)


def _first_with_wrapper(model: nn.Module) -> Callable[[dict[str, Any]], tuple[Tensor, Tensor]]:
    """Return `_forward`, whose second run, in the midst of a backward pass, is not one of the parallel wrapper's.

    That would start a new round of its gradient exchange before the present one has ended.
    """
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    models = iter([model])
    return lambda features: _forward(next(models, inner), features)


def _used(features: dict[str, Any]) -> Tensor:
    """Bool ``(rows, width)``: positions that hold a token of the text or of its query expansion."""
    used = features["attention_mask"].bool()
    expansion = features.get("query_expansion_positions")
    return used | expansion.bool() if isinstance(expansion, Tensor) else used


def _select(features: dict[str, Any], used: Tensor, rows: np.ndarray) -> dict[str, Any]:
    """Cut out rows, without the columns that only longer rows need."""
    index = torch.from_numpy(rows).to(used.device)
    columns = used[index].any(dim=0).nonzero()
    first, last = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, used.shape[1])
    return {k: v[index, first:last] if isinstance(v, Tensor) else v for k, v in features.items()}
