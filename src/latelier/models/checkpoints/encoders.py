"""Checkpoints of transformers itself: encoders without a head, and its late-interaction retrievers (ColPali)."""

from __future__ import annotations

from typing import Any

from latelier.models.checkpoints.layout import Layout, LoadedModules, is_complete

__all__ = ["BARE_ENCODER", "RETRIEVER"]


def _is_retriever(loaded: LoadedModules) -> bool:
    first: Any = loaded.modules[0]
    return not loaded.has_modules_json and bool(first.transformer_task == "retrieval")


RETRIEVER = Layout(_is_retriever, is_complete)
BARE_ENCODER = Layout(lambda loaded: not loaded.has_modules_json, lambda loaded: [])
