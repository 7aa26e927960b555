"""Helpers that know nothing of retrieval; `batching`, `checks`, `files` and `misc`."""

from latelier.utils.batching import CPU_BATCH_TOKENS, batch_by_tokens, encoder_limit, resolve_length, tokens_per_batch
from latelier.utils.checks import resolve_device

__all__ = [
    "CPU_BATCH_TOKENS",
    "batch_by_tokens",
    "encoder_limit",
    "resolve_device",
    "resolve_length",
    "tokens_per_batch",
]
