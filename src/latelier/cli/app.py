"""The ``latelier`` command: its options and sub-commands, whose modules import slow packages only inside functions."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from latelier.cli.evaluate import compare, evaluate
from latelier.cli.folders import remove
from latelier.cli.index import copy, index
from latelier.cli.info import check, demo, info
from latelier.cli.output import messages, prepare_streams
from latelier.cli.rerank import rerank
from latelier.cli.search import explain, search, why_not
from latelier.cli.serve import mcp, serve
from latelier.cli.train import train
from latelier.utils.misc import exits_on_signals


class _Commands(TyperGroup):
    """A group of commands that prints exceptions as one message, or with ``--debug`` as a traceback."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with messages(debug=False):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with messages(ctx.params.get("debug", False)):
            return super().invoke(ctx)


# The help of a command: what people use first, then the others in groups with names.

# Commands with more options than this have groups; all that no group names stand first.
_MANY = 12
_GROUPS = {
    "Fields and forms of records": ("id", "text", "title", "metadata", "encoding", "delimiter"),
    "Passages and vectors": ("overlap", "pool_factor", "precision"),
    "Sources that change": ("remove", "moved_from"),
    "Hybrid and rerank": ("fusion", "weights", "depth"),
    "Inverted lists": ("nprobe", "candidates", "rerank"),
    "Queries, filters and scores": ("filter_timeout", "min_score", "whole_query"),
    "Without an index": ("max_length_query", "max_length_document"),
    "What counts": ("ignore_identical_ids", "exclude", "split"),
    "Learning": (
        *("start", "dims", "neighbours", "learning_rate", "temperature", "validation_queries", "seed"),
        "head_only",
    ),
    "Requests": ("origin", "log", "link_prefix"),
    "Model and machine": (
        *("same_space", "trust_remote_code", "backend", "compute_dtype", "device", "max_memory", "workers", "shards"),
        "batch_size",
    ),
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names}
_FIRST = "Options"
# How types are shown that have no name of their own: as typer and click write them, and what people read.
_TYPES = (
    (re.compile(r"<(int|int range)>|\bINTEGER( RANGE)?\b"), "N"),
    (re.compile(r"<(float|float range)>|\bFLOAT( RANGE)?\b"), "NUMBER"),
    (re.compile(r"<str>"), "TEXT"),
    (re.compile(r"<path>"), "PATH"),
)
_TYPE_OF_ARGUMENT = re.compile(r" <.*>$")


class _Command(TyperCommand):
    """A command whose help has groups of options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options that people use first, and each group of the others."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], _FIRST: []}
        sections |= {group: [] for group in _GROUPS}
        parameters = self.get_params(ctx)
        has_groups = sum(each.param_type_name == "option" for each in parameters) > _MANY
        for parameter in parameters:
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            names, help = record
            if parameter.param_type_name == "argument":
                sections["Arguments"].append((_TYPE_OF_ARGUMENT.sub("", names), help))
                continue
            for pattern, shown in _TYPES:
                names = pattern.sub(shown, names)
            group = _GROUP_OF.get(parameter.name or "", _FIRST) if has_groups else _FIRST
            sections[group].append((names, help))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 done, 1 failed (the message on standard error says why), 2 wrong usage, 130 interrupted "
    "(143 by SIGTERM).",
)
_COMMANDS = (
    index,
    search,
    explain,
    why_not,
    serve,
    mcp,
    train,
    evaluate,
    compare,
    rerank,
    info,
    check,
    copy,
    remove,
    demo,
)
for _command in _COMMANDS:
    _name = _command.__name__.replace("_", "-")
    app.command(_name, cls=_Command, no_args_is_help=_command not in (demo, info))(_command)


def _print_version(asked: bool) -> None:
    if asked:
        import latelier

        typer.echo(f"latelier {latelier.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Late-interaction (ColBERT) retrieval: index your documents, search them by meaning.

    \b
    Search a folder of yours, or the documentation of Python:
      latelier search ./notes "when does the lease end?"
      latelier demo
    """  # noqa: D301 (\b keeps the lines of a block apart)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Parameters
    ----------
    arguments
        Default: the arguments of the process.

    Examples
    --------
    >>> main(["--version"])
    Traceback (most recent call last):
    SystemExit: 0
    """
    prepare_streams()
    with exits_on_signals():
        app(args=arguments, prog_name="latelier")
