"""The multiplication of bytes: one module per instruction set, each with a function `multiply_bytes`.

The function emits the dot products of ``count`` rows ``(words * 4)`` uint8 with groups of sixteen packed vectors
``(words, 16, 4)`` int8, and returns sixteen int32 per row: all rows of the first group, then of the next. The unsigned
bytes are numbers shifted by 128; the starting sums, ``(16,)`` int32 per group, subtract what the shift adds. Integer
sums are exact, so all modules give equal results. `latelier.kernels.instruction_sets` holds the table of them.
"""
