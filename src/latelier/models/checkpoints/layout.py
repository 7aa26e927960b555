"""A checkpoint layout: how it is recognised, and which of its linear layers were trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sentence_transformers.base.modules import Dense
from torch import nn

__all__ = ["Layout", "LoadedModules", "is_complete"]


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


class Layout(NamedTuple):
    """A checkpoint layout.

    Parameters
    ----------
    recognises
        Whether a checkpoint has this layout.
    trained_heads
        Its trained linear layers, which the recipe is built around; None if the pipeline is complete.
    """

    recognises: Callable[[LoadedModules], bool]
    trained_heads: Callable[[LoadedModules], list[Dense] | None]


def is_complete(loaded: LoadedModules) -> None:
    """Return None, as `Layout.trained_heads` of a complete late-interaction checkpoint."""
