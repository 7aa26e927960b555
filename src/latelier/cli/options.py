"""Options that commands share, those of a search among them, and options without effect, which are refused."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_type_hints

import typer

from latelier.errors import InvalidArgumentError, UnknownIdError
from latelier.indexes.options import SEARCH_DEFAULTS, SEARCH_OPTIONS, SearchOption, SearchOptions
from latelier.utils.checks import is_count, short
from latelier.utils.files import number_or_text, parse_json

if TYPE_CHECKING:
    from latelier.indexes import Id, Index

QueryBackend: TypeAlias = Literal["auto", "onnx", "torch"]

IndexArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="INDEX", help="Folder of the index, or qdrant:..., see latelier copy --help.")
]
OptionalIndexArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="INDEX", help="Folder of the index, or qdrant:..., see latelier copy --help.")
]
SearchedArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="INDEX", help="An index, or a folder of files, which gets an index in your cache that is kept current."
    ),
]
QueryArgument: TypeAlias = Annotated[str, typer.Argument(metavar="TEXT", help="The query.")]
IdArgument: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="Id of the document.")]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
ModelOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Model name or folder; default: the index's own, or all-MiniLM-L6-v2 untrained.")
]
QueryModelOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Model name or folder, or exported encoder; default: the index's own.")
]
ServedModelOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Model of all these indexes; default: each index's own.")
]
QueryBackendOption: TypeAlias = Annotated[
    QueryBackend, typer.Option(help="What encodes queries; auto: the exported encoder (onnx) if there is one.")
]
DeviceOption: TypeAlias = Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: the best available.")]
TrustOption: TypeAlias = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the code that comes with the model given by --model.")
]
SameSpaceOption: TypeAlias = Annotated[
    bool,
    typer.Option("--same-space", help="The model of --model was made for the vectors of the index's own model."),
]
MemoryOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory budget beside the model, such as 512MB or 1GB; default: no limit."),
]


def _count(given: Any) -> int:
    number = number_or_text(str(given))  # a default is a number
    if not is_count(number, 1):
        raise typer.BadParameter(f"received {given}; expected a whole number from 1 on.")
    return int(number)


def count_option(help: str) -> Any:
    """Return an option ``-k`` of a number of documents."""
    return typer.Option("-k", parser=_count, metavar="N", help=help)


# What a command gets of its search options: those on the command line, as keywords of a search.
SearchKeywords: TypeAlias = dict[str, Any]


def _as_typed(name: str, option: SearchOption) -> Any:
    """Return the type of a search option as a command takes it, with its help."""
    if option.shell_type is None:
        kind = _TYPES[name]
    else:
        kind = option.shell_type
    flag = option.flag or "--" + name.replace("_", "-")
    help = f"{option.help} {option.shell_help}".strip()
    return Annotated[kind, typer.Option(flag, metavar=option.metavar, min=option.least, help=help)]


_TYPES = get_type_hints(SearchOptions)
_SEARCH = {name: _as_typed(name, option) for name, option in SEARCH_OPTIONS.items()}


def takes_search_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options of a search (all, or those named) in place of its parameter `search`."""

    def extended(command: Callable[..., None]) -> Callable[..., None]:
        options = {name: _SEARCH[name] for name in names or _SEARCH}
        plain = inspect.signature(command, eval_str=True)
        parameters = []
        for parameter in plain.parameters.values():
            if parameter.name != "search":
                parameters.append(parameter)
                continue
            for name, annotation in options.items():
                if name == "parameters":
                    default = None
                else:
                    default = SEARCH_DEFAULTS[name]
                parameters.append(
                    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                )

        @wraps(command)
        def run(context: typer.Context, **given: Any) -> None:
            typed = {name: given.pop(name) for name in options}
            command(context, search=_search_keywords(context, typed), **given)

        run.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return extended


def _search_keywords(context: typer.Context, typed: dict[str, Any]) -> SearchKeywords:
    mode = typed["mode"]
    for name in typed:
        modes = SEARCH_OPTIONS[name].modes
        if mode is not None and mode not in modes:
            refuse_unused(context, [name], f"has no effect on --mode {mode}, only on {', '.join(modes)}")
    if not typed.get("filter"):
        refuse_unused(context, ("parameters", "filter_timeout"), "has no effect without --filter")
    search = {name: value for name, value in typed.items() if is_given(context, name)}
    if "effort" in search:
        search["effort"] = number_or_text(search["effort"])
    if "parameters" in search:
        search["parameters"] = [_value(text) for text in search["parameters"]]
    if "filter_timeout" in search:
        search["filter_timeout"] = search["filter_timeout"] or None
    return search


def is_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter is on the command line; a default or a variable of the environment is not."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_unused(context: typer.Context, names: Collection[str], cure: str) -> None:
    """Refuse options that are on the command line; `cure` continues the message: "has no effect without --http"."""
    for parameter in context.command.params:
        if parameter.name in names and is_given(context, parameter.name):
            raise typer.BadParameter(f"it {cure}; leave it out.", param_hint=parameter.opts[0])


def check_same_space(same_space: bool, model: str | None) -> None:
    """Raise an error for ``--same-space`` without ``--model``."""
    if same_space and model is None:
        raise typer.BadParameter("it is about the model of --model; give one.", param_hint="--same-space")


def refuse_unused_split(context: typer.Context, qrels: Path) -> None:
    """Raise an error if ``--split`` is on the command line and the qrels are those of a file or a data set by name."""
    if qrels.as_posix().startswith("irds:"):
        refuse_unused(context, ("split",), f"has no effect on {qrels.as_posix()}, whose name says the split")
    if qrels.exists() and not qrels.is_dir():
        refuse_unused(context, ("split",), f"has no effect on {qrels}, which is a file, not a folder with splits")


def _value(text: str) -> int | float | str:
    """Return the value of a parameter: a number, a text in double quotes as in JSON, or any other text as it is."""
    if not text.startswith('"'):
        return number_or_text(text)
    try:
        value = parse_json(text)
    except InvalidArgumentError:
        return text
    if isinstance(value, str):
        return value
    return text


def document_id(index: Index, text: str) -> Id:
    """Return the id that a text spells: an integer if the index has it, else the text; an error names near ids."""
    number = number_or_text(text)
    if isinstance(number, int) and number in index:
        return number
    if text not in index:
        near = _near_ids(list(map(str, index.ids())), text)
        if near:
            raise UnknownIdError(f"no document has the id {short(text)}; did you mean {near}?")
    return text


_MOST_IDS = 100_000  # that are compared with an unknown one
_NEAR = 3  # that are named


def _near_ids(ids: list[str], text: str) -> str:
    """Return the ids nearest to one that no document has: those that hold it, or are spelled like it."""
    lower = text.lower()
    found = [id for id in ids if lower in id.lower()][:_NEAR]
    if not found:
        found = get_close_matches(text, ids[:_MOST_IDS], _NEAR)
    return " or ".join(map(short, found))


def given_secret(option: str | None, variable: str) -> str | None:
    """Return a secret of an option or a variable; an empty variable is a secret that failed, not a missing one."""
    if option is None:
        return os.environ.get(variable)
    return option
