"""``latelier warmup``: compile the kernels before the first search."""

from __future__ import annotations

import typer

from latelier.cli.options import JsonOption

__all__ = ["warmup"]


def warmup(json_output: JsonOption = False) -> None:
    """Compile the CPU kernels into a cache, for all later processes.

    \b
    Example:
      latelier warmup
    """  # noqa: D301 (\b keeps the lines of a block apart)
    import time

    from latelier.cli.output import print_json
    from latelier.embeddings import TokenEmbeddings
    from latelier.indexes.ivf.warmup import compile_kernels
    from latelier.kernels.instruction_sets import instruction_set
    from latelier.scores import colbert_scores

    begin = time.perf_counter()
    compile_kernels()
    one = TokenEmbeddings.from_list([[[1.0, 0.0], [0.0, 1.0]]])
    for side in (one, one.to("int8")):
        colbert_scores(one, side)
    facts = {"kernels": instruction_set().name, "seconds": round(time.perf_counter() - begin, 2)}
    if json_output:
        print_json(facts)
    else:
        typer.echo(f"compiled the {facts['kernels']} kernels in {facts['seconds']} seconds")
