"""What several sub-packages share: argument checks, ranges of packed documents, batches, lengths, devices."""

from latelier.utils.batching import CPU_BATCH_TOKENS, batch_by_tokens, encoder_limit, resolve_length, tokens_per_batch
from latelier.utils.checks import check_choice, check_count, check_flag, check_number, count_entries, is_count
from latelier.utils.devices import resolve_device

__all__ = [
    "CPU_BATCH_TOKENS",
    "batch_by_tokens",
    "check_choice",
    "check_count",
    "check_flag",
    "check_number",
    "count_entries",
    "encoder_limit",
    "is_count",
    "resolve_device",
    "resolve_length",
    "tokens_per_batch",
]
