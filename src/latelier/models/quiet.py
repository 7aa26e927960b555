"""Keeping sentence-transformers from warning about a conversion that was asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_conversion"]


@contextmanager
def quiet_conversion() -> Iterator[None]:
    """Drop the "Converting SentenceTransformer model ..." warning while a dense model is loaded on purpose."""
    logger = logging.getLogger("sentence_transformers.base.model")

    def keep(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Converting ")

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
