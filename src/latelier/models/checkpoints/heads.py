"""The trained linear layers of a checkpoint, which the recipe is built around.

sentence-transformers reads the files. A checkpoint that lists a complete pipeline (ours, its own, PyLate 3's) is used
unchanged and not passed here. For all others sentence-transformers builds a pipeline, of which we keep the trained
parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import nn

from latelier.utils.misc import warn_caller

__all__ = ["LoadedModules", "trained_heads"]


class LoadedModules(NamedTuple):
    """What sentence-transformers made of a checkpoint.

    Parameters
    ----------
    name
        Name or folder of the checkpoint.
    modules
        The pipeline. Around a model without a head, sentence-transformers adds a random one.
    has_modules_json
        Whether the checkpoint lists its modules, as dense models and those of PyLate do.
    inserts_markers
        Whether its settings name markers to insert as tokens, as those of PyLate and Stanford's ColBERT do.
    has_saved_head
        Whether a linear layer was among the listed modules.
    """

    name: str
    modules: Sequence[nn.Module]
    has_modules_json: bool
    inserts_markers: bool
    has_saved_head: bool


def trained_heads(loaded: LoadedModules) -> list[Dense] | None:
    """Return the trained linear layers that the recipe is built around, or None if the pipeline is complete."""
    if loaded.inserts_markers:  # a late-interaction model of PyLate before version 3, or of Stanford
        return None
    if loaded.has_modules_json:
        return _token_heads(loaded)
    first: Any = loaded.modules[0]
    return None if first.transformer_task == "retrieval" else []  # transformers' ColPali and the like, or an encoder


def _token_heads(loaded: LoadedModules) -> list[Dense]:
    """Return the linear layers of a dense model that can be applied to each token, with their activations.

    sentence-transformers and PyLate apply any `Dense` to tokens, whether it stands before the pooling or behind it.
    Other modules behind the pooling have no meaning for a token; they are left out with a warning.
    """
    heads: list[Dense] = []
    width = next(module for module in loaded.modules if isinstance(module, Transformer)).get_embedding_dimension()
    for module in loaded.modules:
        if isinstance(module, (Transformer, MultiVectorMask, Normalize, nn.Dropout)):
            continue
        if isinstance(module, Dense) and not loaded.has_saved_head:
            continue  # added by sentence-transformers, with random weights
        reads = module.in_features if isinstance(module, Dense) else None
        if isinstance(module, Dense) and reads == width:
            heads.append(module)
            width = module.out_features
            continue
        kind = type(module).__name__
        reason = f"reads {reads} numbers, and a token has {width}" if reads else "works on pooled vectors"
        warn_caller(f"the {kind} of {loaded.name} is left out: it {reason}.")
    return heads
