"""Forward passes in mini-batches of texts of similar length, each truncated to its own longest text.

A batch of real texts that is padded to its longest document is about two thirds padding, which costs the encoder as
much as tokens do. The trainer's collator can stay: its padding is in the token ids alone and is cut off here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from latelier.arrays import at_least_float32
from latelier.embeddings import TokenEmbeddings
from latelier.utils import batch_by_tokens, check_count
from latelier.utils.features import select_rows, used_positions

__all__ = ["MiniBatches", "run_rows", "run_whole"]

# Tokens of a mini-batch, padding included. A CPU is fastest with activations that fit its caches; a GPU needs large
# matrix products to be busy.
_CPU_TOKENS = 1024
_ACCELERATOR_TOKENS = 32768


class MiniBatches(NamedTuple):
    """How the texts of a batch are split into forward passes.

    Parameters
    ----------
    max_tokens
        Maximum number of tokens, padding included; None: a default for the device.
    max_rows
        Maximum number of texts; None: as many as fit `max_tokens`.
    recompute
        Keep only the token vectors of a pass, and repeat the pass in the backward pass (Gao et al., 2021, GradCache,
        https://aclanthology.org/2021.repl4nlp-1.31): needs the memory of one pass, and a third more time.
    """

    max_tokens: int | None = None
    max_rows: int | None = None
    recompute: bool = False

    def check(self) -> MiniBatches:
        """Return itself; raise `InvalidArgumentError` if a limit is not a positive integer."""
        for name, value in (("mini_batch_tokens", self.max_tokens), ("mini_batch_size", self.max_rows)):
            check_count(name, value, optional=True)
        return self


def run_rows(model: nn.Module, features: dict[str, Any], mini_batches: MiniBatches) -> TokenEmbeddings:
    """Embed the rows of features in mini-batches of similar length; all their tensors must be ``(rows, tokens)``.

    Parameters
    ----------
    model
        A late-interaction model, or a wrapper around one.
    features
        The features; not modified.
    mini_batches
        Limits of a pass.

    Returns
    -------
    TokenEmbeddings
        The scored tokens of each row, in the order of the rows, with gradients; at least float32.
    """
    on_cpu = features["input_ids"].device.type == "cpu"
    used = used_positions(features).cpu()  # once: each mini-batch would wait for a GPU again
    lengths = used.sum(dim=1).numpy()
    budget = mini_batches.max_tokens or (_CPU_TOKENS if on_cpu else _ACCELERATOR_TOKENS)
    texts: list[Tensor | None] = [None] * len(lengths)
    for rows in batch_by_tokens(lengths, budget, mini_batches.max_rows):
        if len(rows) == len(lengths):  # one mini-batch: the features as they are
            return TokenEmbeddings.from_list(_pass(model, features, mini_batches.recompute))
        passed = _pass(model, select_rows(features, used, rows), mini_batches.recompute)
        for row, text in zip(rows.tolist(), passed, strict=True):
            texts[row] = text
    return TokenEmbeddings.from_list([text for text in texts if text is not None])


def run_whole(model: nn.Module, features: dict[str, Any], mini_batches: MiniBatches) -> TokenEmbeddings:
    """Embed features of any kind, such as images, in one pass."""
    return TokenEmbeddings.from_list(_pass(model, features, mini_batches.recompute))


def _pass(model: nn.Module, features: dict[str, Any], recompute: bool) -> list[Tensor]:
    """Run one pass: return the vectors of the scored tokens, one ``(tokens, dim)`` matrix per row."""
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
    """Return `_forward` that calls the parallel wrapper in its first run and the wrapped model in its second.

    The second run is part of the backward pass: the wrapper would start another gradient exchange within the first.
    """
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    models = iter([model])
    return lambda features: _forward(next(models, inner), features)
