"""Late-interaction (ColBERT) retrieval: encode, train, index and search with multi-vector models.

Sub-packages load on first use, so ``import latelier`` is fast and loads no torch.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__version__ = "0.1.0"
__all__ = [
    "cli",
    "data",
    "demo",
    "embeddings",
    "errors",
    "evaluation",
    "experimental",
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


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its sub-packages are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
