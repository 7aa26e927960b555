"""Checkpoints of Stanford's ColBERT: the head among the encoder's weights, the settings in ``artifact.metadata``."""

from __future__ import annotations

from latelier.models.checkpoints.layout import Layout, is_complete

__all__ = ["STANFORD"]

STANFORD = Layout(lambda loaded: loaded.inserts_markers and not loaded.has_modules_json, is_complete)
