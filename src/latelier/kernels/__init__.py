"""CPU kernels in C, shared by scoring, pooling and indexes, and the threads that call them."""
