"""Arguments and options that several commands have."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeAlias

import typer

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
