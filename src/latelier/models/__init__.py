"""Late-interaction models: texts in, one vector per token out."""

from latelier.models.checkpoints.location import DEFAULT_MODEL
from latelier.models.colbert import ColBERT
from latelier.models.loading import load
from latelier.models.pooling import pool_tokens
from latelier.models.recipe import UNTRAINED, Recipe

__all__ = ["DEFAULT_MODEL", "UNTRAINED", "ColBERT", "Recipe", "load", "pool_tokens"]
