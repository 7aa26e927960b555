"""Modules that this library adds to pipelines of sentence-transformers; `ColBERT` needs no ``trust_remote_code``."""

from __future__ import annotations

from sentence_transformers.base.modules import Module
from sentence_transformers.util import fullname

from latelier.models.text_encoder import TextEncoder
from latelier.modules import AttentionPooling

__all__ = ["OWN_MODULES"]

_CLASSES: tuple[type[Module], ...] = (AttentionPooling, TextEncoder)

# By the name that a saved model's modules.json has for them.
OWN_MODULES: dict[str, type[Module]] = {fullname(each): each for each in _CLASSES}
