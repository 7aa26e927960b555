"""CPU kernels compiled by numba on first use and cached on disk; scoring, pooling and indexes share them."""
