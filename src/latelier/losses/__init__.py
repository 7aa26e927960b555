"""Losses that train late-interaction models, inside the sentence-transformers trainer or by hand."""

from latelier.losses.cached_contrastive import CachedContrastive
from latelier.losses.contrastive import Contrastive
from latelier.losses.distillation import Distillation
from latelier.losses.margin_mse import MarginMSE

__all__ = ["CachedContrastive", "Contrastive", "Distillation", "MarginMSE"]
