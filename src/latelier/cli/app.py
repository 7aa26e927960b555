"""The ``latelier`` command: its options and sub-commands, whose modules import slow packages only inside functions."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from latelier.cli.evaluate import compare, evaluate
from latelier.cli.index import copy, index, remove
from latelier.cli.info import check, demo, info
from latelier.cli.output import messages, prepare_streams
from latelier.cli.rerank import rerank
from latelier.cli.search import explain, search, why_not
from latelier.cli.serve import mcp, serve
from latelier.cli.train import train


class _Commands(TyperGroup):
    """A group of commands that prints exceptions as one message, or with ``--debug`` as a traceback."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with messages(debug=False):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with messages(ctx.params.get("debug", False)):
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 done, 1 failed (the message on standard error says why), 2 wrong usage, 130 interrupted.",
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
    app.command(_command.__name__.replace("_", "-"), no_args_is_help=_command is not demo)(_command)


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
    Try it on the documentation of Python:
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
    app(args=arguments, prog_name="latelier")
