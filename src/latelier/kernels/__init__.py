"""CPU kernels compiled by numba on first use and cached on disk; scoring and indexes share them.

`fused` and `vnni` hold AVX-512 instructions: they are imported only where `choose_kernel` says so. `dots` has both ways
of multiplying bytes, of which only the processor's own is compiled.
"""

from latelier.kernels.cpu import KERNELS, choose_kernel, multiplies_bfloat16
from latelier.kernels.segment_max import NO_POSITIONS, segment_max_sum

__all__ = ["KERNELS", "NO_POSITIONS", "choose_kernel", "multiplies_bfloat16", "segment_max_sum"]
