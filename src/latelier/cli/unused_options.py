"""Options that have no effect beside the others: an error, so that nobody takes them to have worked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

__all__ = ["is_given", "refuse_unused", "refuse_unused_in_mode", "refuse_unused_split"]

# The modes of a search that use an option; other options have an effect in every mode.
_MODES = {
    "fusion": ("hybrid",),
    "weights": ("hybrid",),
    "depth": ("hybrid", "rerank"),
    "effort": ("vectors", "hybrid", "rerank"),
    "nprobe": ("vectors", "hybrid", "rerank"),
    "candidates": ("vectors", "hybrid", "rerank"),
    "rerank": ("vectors", "hybrid", "rerank"),
}


def is_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter is on the command line; a default or a variable of the environment is not.

    Parameters
    ----------
    context
        The call of the command.
    name
        Name of its parameter.
    """
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_unused(context: typer.Context, names: Iterable[str], cure: str) -> None:
    """Raise an error if one of some options is on the command line; defaults and variables are not checked.

    Parameters
    ----------
    context
        The call of the command.
    names
        Names of its parameters.
    cure
        The rest of the message after the name of the option, such as "has no effect without --http".

    Raises
    ------
    typer.BadParameter
        If one of them is on the command line.
    """
    spelled = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name in names:
        if is_given(context, name):
            raise typer.BadParameter(f"it {cure}; leave it out.", param_hint=spelled[name])


def refuse_unused_in_mode(context: typer.Context, mode: str) -> None:
    """Raise an error if the mode of a search does not use an option that is on the command line.

    Parameters
    ----------
    context
        The call of a command that searches.
    mode
        The mode of the search.

    Raises
    ------
    typer.BadParameter
        If there is such an option.
    """
    for name, modes in _MODES.items():
        if name in context.params and mode not in modes:
            refuse_unused(context, [name], f"has no effect on --mode {mode}, only on {', '.join(modes)}")


def refuse_unused_split(context: typer.Context, qrels: Path) -> None:
    """Raise an error if ``--split`` is on the command line and the qrels are those of a file, which has no splits.

    Parameters
    ----------
    context
        The call of a command that reads qrels.
    qrels
        A file, or a folder in BEIR's layout.

    Raises
    ------
    typer.BadParameter
        If they are a file.
    """
    if qrels.exists() and not qrels.is_dir():
        refuse_unused(context, ("split",), f"has no effect on {qrels}, which is a file, not a folder with splits")
