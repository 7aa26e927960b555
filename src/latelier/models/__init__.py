"""Late-interaction models: texts in, one vector per token out."""

from typing import TYPE_CHECKING

from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.models.checkpoints.location import DEFAULT_MODEL
    from latelier.models.colbert import ColBERT
    from latelier.models.exported import ExportedEncoder
    from latelier.models.loading import load
    from latelier.models.pooling import pool_tokens
    from latelier.models.recipe import UNTRAINED, Recipe
    from latelier.models.text_encoder import TextEncoder
    from latelier.models.vocabulary import train_tokenizer

__all__ = [
    "DEFAULT_MODEL",
    "UNTRAINED",
    "ColBERT",
    "ExportedEncoder",
    "Recipe",
    "TextEncoder",
    "load",
    "pool_tokens",
    "train_tokenizer",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    **{"checkpoints.location": ("DEFAULT_MODEL",)},
    colbert=("ColBERT",),
    exported=("ExportedEncoder",),
    loading=("load",),
    pooling=("pool_tokens",),
    recipe=("UNTRAINED", "Recipe"),
    text_encoder=("TextEncoder",),
    vocabulary=("train_tokenizer",),
)
