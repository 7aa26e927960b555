"""Shared options, refused combinations."""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from latelier.indexes import Id, Index

__all__ = [
    "CandidatesOption",
    "DepthOption",
    "DeviceOption",
    "EffortOption",
    "FilterTimeoutOption",
    "Fusion",
    "IndexArgument",
    "JsonOption",
    "Kind",
    "MemoryOption",
    "Mode",
    "NprobeOption",
    "QueryArgument",
    "QueryBackend",
    "QueryBackendOption",
    "QueryModelOption",
    "RerankOption",
    "ServedModelOption",
    "WeightsOption",
    "document_id",
    "filter_values",
    "given_secret",
    "is_given",
    "refuse_unused",
    "refuse_unused_in_mode",
    "refuse_unused_split",
]


class Kind(str, Enum):
    """Kinds of index in a folder."""

    FLAT = "flat"
    IVF = "ivf"


class Mode(str, Enum):
    """How a search uses vectors and keywords."""

    VECTORS = "vectors"
    KEYWORDS = "keywords"
    HYBRID = "hybrid"
    RERANK = "rerank"


class Fusion(str, Enum):
    """How ``--mode hybrid`` combines vectors and keywords."""

    RELATIVE = "relative"
    RRF = "rrf"


class QueryBackend(str, Enum):
    """What encodes queries."""

    AUTO = "auto"
    ONNX = "onnx"
    TORCH = "torch"


IndexArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="INDEX", help="Folder of the index, or qdrant:..., see latelier copy --help.")
]
QueryArgument: TypeAlias = Annotated[str, typer.Argument(metavar="TEXT", help="The query.")]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print as JSON.")]

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
MemoryOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory budget beside the model, such as 512MB or 1GB.")
]

FilterTimeoutOption: TypeAlias = Annotated[
    float, typer.Option(metavar="SECONDS", min=0, help="Time limit of the filter; 0 is no limit.")
]
WeightsOption: TypeAlias = Annotated[
    tuple[float, float],
    typer.Option(metavar="VECTORS KEYWORDS", show_default=False, help="Weights of hybrid. Default: 0.5 0.5."),
]
DepthOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Of hybrid: documents that each side contributes; of rerank: that keywords find; at least k. "
        "Default: 2k, at least 100.",
    ),
]
EffortOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="EFFORT", help="IVF: fast, balanced, exact, or a factor such as 2.")
]
NprobeOption: TypeAlias = Annotated[int | None, typer.Option(min=1, help="IVF: inverted lists probed per query token.")]
CandidatesOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="IVF: documents that are compared by their sign codes.")
]
RerankOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="IVF: documents of those that are scored by their codes.")
]


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
    """Whether a parameter is on the command line; a default or a variable of the environment is not."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_unused(context: typer.Context, names: Iterable[str], cure: str) -> None:
    """Raise an error if one of some options is on the command line; defaults and variables are not checked.

    `cure`: the rest of the message after the name of the option, such as "has no effect without --http".
    """
    spelled = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name in names:
        if is_given(context, name):
            raise typer.BadParameter(f"it {cure}; leave it out.", param_hint=spelled[name])


def refuse_unused_in_mode(context: typer.Context, mode: str) -> None:
    """Raise an error if the mode of a search does not use an option that is on the command line."""
    for name, modes in _MODES.items():
        if name in context.params and mode not in modes:
            refuse_unused(context, [name], f"has no effect on --mode {mode}, only on {', '.join(modes)}")


def refuse_unused_split(context: typer.Context, qrels: Path) -> None:
    """Raise an error if ``--split`` is on the command line and the qrels are those of a file, which has no splits."""
    if qrels.exists() and not qrels.is_dir():
        refuse_unused(context, ("split",), f"has no effect on {qrels}, which is a file, not a folder with splits")


def filter_values(typed: Iterable[str] | None) -> list[int | float | str]:
    r"""Return the values that texts spell: numbers, texts in double quotes as in JSON, and any other text as it is.

    `typed`: the texts; None if there are none. Returns: values for the ``?`` of a filter, in order.

    Examples
    --------
    >>> filter_values(["2020", '"2020"', "en", '"a \\"b\\""', '"open'])
    [2020, '2020', 'en', 'a "b"', '"open']
    """
    return [_value(text) for text in typed or ()]


def _value(text: str) -> int | float | str:
    from latelier.errors import InvalidArgumentError
    from latelier.utils.files import number_or_text, parse_json

    if not text.startswith('"'):
        return number_or_text(text)
    try:
        value = parse_json(text)
    except InvalidArgumentError:
        return text
    return value if isinstance(value, str) else text


def document_id(index: Index, text: str) -> Id:
    """Return the id that a text spells: an integer if the index has it, else the text.

    Examples
    --------
    >>> import numpy as np
    >>> from latelier import indexes
    >>> index = indexes.Flat()
    >>> index.add([7, "8"], [np.eye(2), np.eye(2)])
    >>> document_id(index, "7"), document_id(index, "8"), document_id(index, "9")
    (7, '8', '9')
    """
    from latelier.retrieve.passages import StoredDocuments
    from latelier.utils.files import number_or_text

    number = number_or_text(text)
    return number if isinstance(number, int) and number in StoredDocuments(index) else text


def given_secret(option: str | None, variable: str) -> str | None:
    """Return a secret as the user gives it, which may be empty.

    Typer takes an empty variable for a missing one. It is empty if the command that makes the secret has failed, and a
    server without a secret is not what was asked for. `option`: the value of the option; None if it is neither on the
    command line nor in the environment.

    Examples
    --------
    >>> import os
    >>> os.environ["FRUIT_TOKEN"] = ""
    >>> given_secret(None, "FRUIT_TOKEN"), given_secret(None, "NO_SUCH_TOKEN")
    ('', None)
    """
    return os.environ.get(variable) if option is None else option
