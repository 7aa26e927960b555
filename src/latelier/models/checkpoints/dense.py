"""Dense sentence-transformers models: they pool to one vector per text, which late interaction leaves out."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import nn

from latelier.models.checkpoints.layout import Layout, LoadedModules

__all__ = ["DENSE", "without_conversion_warning"]


def _token_heads(loaded: LoadedModules) -> list[Dense]:
    """Return the linear layers that can be applied to each token, with their activations.

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
        warnings.warn(f"the {kind} of {loaded.name} is left out: it {reason}.", stacklevel=2)
    return heads


DENSE = Layout(lambda loaded: loaded.has_modules_json and not loaded.inserts_markers, _token_heads)


@contextmanager
def without_conversion_warning() -> Iterator[None]:
    """Drop sentence-transformers' warning "Converting SentenceTransformer model ...": it is intended here."""
    logger = logging.getLogger("sentence_transformers.base.model")

    def keep(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Converting ")

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
