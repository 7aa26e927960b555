"""Late-interaction models: texts in, one vector per token out.

`colbert` is the model, whose files sentence-transformers reads. `encoding` is its loop over texts; on a CPU it computes
with a copy of the model that `frozen` makes, or with ONNX Runtime (`onnx` exports, `exported` runs the export).
"""

from typing import TYPE_CHECKING

from latelier.utils.misc import lazy_names

if TYPE_CHECKING:
    from latelier.models.arguments import UNTRAINED, Recipe
    from latelier.models.colbert import ColBERT
    from latelier.models.exported_encoder import ExportedEncoder
    from latelier.models.loading import load
    from latelier.models.location import DEFAULT_MODEL
    from latelier.models.pooling import pool_tokens
    from latelier.models.text_encoder import TextEncoder, train_tokenizer

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
    arguments=("Recipe", "UNTRAINED"),
    colbert=("ColBERT",),
    exported_encoder=("ExportedEncoder",),
    location=("DEFAULT_MODEL",),
    pooling=("pool_tokens",),
    text_encoder=("TextEncoder", "train_tokenizer"),
    loading=("load",),
)
