"""Late-interaction (ColBERT) retrieval: encode, train, index and search with multi-vector models.

Sub-packages load on first use, and so do `ColBERT` and `Retriever`: ``import latelier`` is fast and loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latelier.models import ColBERT
    from latelier.retrieve import Retriever

__version__ = "0.1.0"
__all__ = [
    "ColBERT",
    "Retriever",
    "cli",
    "data",
    "demo",
    "embeddings",
    "errors",
    "evaluation",
    "indexes",
    "integrations",
    "losses",
    "models",
    "modules",
    "rank",
    "retrieve",
    "scores",
    "serve",
    "training",
    "utils",
]


_CLASSES = {"ColBERT": "models", "Retriever": "retrieve"}


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        return getattr(importlib.import_module(f"{__name__}.{_CLASSES[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
