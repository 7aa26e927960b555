"""The multiplication of floats (`floats`), and of integers: a module per kind of instruction, with `multiply_bytes`.

`multiply_bytes` emits the dot products of ``count`` rows ``(words * 4)`` with groups of sixteen packed vectors
``(words, 16, 4)`` int8, and returns sixteen int32 per row: all rows of the first group, then of the next. Numbers of
rows are shifted by 128, to 0 to 255: as bytes, or as 16 bits where that is what is multiplied
(`InstructionSet.wide_rows`). The starting sums, ``(16,)`` int32 per group, are what the shift has to be corrected by.
Integer sums are exact, so all modules give equal results. `latelier.kernels.instruction_sets` holds the table of them.
"""
