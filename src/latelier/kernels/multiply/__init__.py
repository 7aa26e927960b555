"""The multiplication of bytes: one module per instruction set, each with a function `multiply_bytes` of this contract.

It emits the dot products of ``count`` rows ``(words * 4)`` uint8 with each of some groups of sixteen packed vectors
``(words, 16, 4)`` int8, and returns sixteen int32 per row: all rows of the first group, then of the next. The unsigned
bytes are numbers shifted by 128; what the shift adds is subtracted by the starting sums, ``(16,)`` int32 per group.
Integer sums are exact, so all modules give equal results. `latelier.kernels.cpu` holds the table of them.
"""
