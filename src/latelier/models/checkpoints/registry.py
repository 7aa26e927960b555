"""The trained linear layers of a checkpoint in any layout, which the recipe is built around.

sentence-transformers reads the files. A checkpoint that lists a complete pipeline (ours, its own, PyLate 3's) is used
unchanged and not passed here. For all others sentence-transformers builds a pipeline, of which we keep the trained
parts. A new layout is a file beside this one and an entry in `LAYOUTS`.
"""

from __future__ import annotations

from sentence_transformers.base.modules import Dense

from latelier.models.checkpoints.dense import DENSE
from latelier.models.checkpoints.encoders import BARE_ENCODER, RETRIEVER
from latelier.models.checkpoints.layout import Layout, LoadedModules
from latelier.models.checkpoints.pylate import PYLATE
from latelier.models.checkpoints.stanford import STANFORD

__all__ = ["LAYOUTS", "trained_heads"]

# The first layout that recognises a checkpoint is taken.
LAYOUTS: tuple[Layout, ...] = (PYLATE, STANFORD, RETRIEVER, DENSE, BARE_ENCODER)


def trained_heads(loaded: LoadedModules) -> list[Dense] | None:
    """Return the trained linear layers that the recipe is built around, or None where the pipeline is complete."""
    layout = next(layout for layout in LAYOUTS if layout.recognises(loaded))
    return layout.trained_heads(loaded)
