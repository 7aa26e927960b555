"""CPU kernels compiled by numba on first use and cached on disk; scoring and indexes share them."""

from latelier.scores.kernels.segment_max import segment_max_sum

__all__ = ["segment_max_sum"]
