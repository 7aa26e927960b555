"""Losses that train late-interaction models, inside the sentence-transformers trainer or by hand."""

from latelier.losses.contrastive import CachedContrastive, Contrastive
from latelier.losses.distillation import Distillation, MarginMSE

__all__ = ["CachedContrastive", "Contrastive", "Distillation", "MarginMSE"]
