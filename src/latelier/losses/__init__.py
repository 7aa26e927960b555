"""Losses that train late-interaction models, inside the sentence-transformers trainer or by hand."""

from latelier.losses.contrastive import Contrastive
from latelier.losses.distillation import Distillation

__all__ = ["Contrastive", "Distillation"]
