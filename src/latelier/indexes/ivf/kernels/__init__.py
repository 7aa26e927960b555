"""CPU kernels that only the IVF index uses."""
