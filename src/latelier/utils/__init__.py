"""What several sub-packages share: devices, batches by token budget, length caps, checks of numbers."""

from latelier.utils.batching import batch_by_tokens
from latelier.utils.checks import check_count, count_entries
from latelier.utils.devices import resolve_device
from latelier.utils.lengths import encoder_limit, resolve_length

__all__ = ["batch_by_tokens", "check_count", "count_entries", "encoder_limit", "resolve_device", "resolve_length"]
