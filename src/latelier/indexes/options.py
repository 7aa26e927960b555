"""Search options: what a search can be told, its defaults and its choices, for every surface."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypeAlias, TypedDict, get_args

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import check_choice, check_count, is_unicode, short

Mode: TypeAlias = Literal["vectors", "keywords", "hybrid", "rerank"]
Fusion: TypeAlias = Literal["relative", "rrf"]
Tokenizer: TypeAlias = Literal["porter", "standard"]

EffortName: TypeAlias = Literal["fast", "balanced", "exact"]
Effort: TypeAlias = EffortName | float

Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""The values of a filter's placeholders: a list for ``?``, a dict for ``:name``."""

# Documents that keywords pass on to MaxSim: at least this many, and a multiple of k, so that the last hits are chosen
# among others too.
_RERANKED = 100
_RERANKED_PER_HIT = 2
# Documents that keywords contribute to a fusion, k at least; and for each of them, those that vectors contribute.
_JOINED = 20
VECTORS_PER_WORD = 2
_NUMBERS = (int, float, np.integer, np.floating)
_EFFORT_FACTORS = {"fast": 0.5, "balanced": 1.0, "exact": 1.0}
_ALL_MODES: tuple[Mode, ...] = get_args(Mode)
_OF_VECTORS: tuple[Mode, ...] = ("vectors", "hybrid", "rerank")


@dataclass(frozen=True)
class SearchOption:
    """What the surfaces need to know of one option of a search; its type and its default are those of the field."""

    help: str
    modes: tuple[Mode, ...] = _ALL_MODES  # those that it has an effect on
    least: int | None = None
    of_some_indexes: bool = False  # accepted only by an index with `search_options` that name it
    for_clients: bool = True  # whether clients of a server may choose it
    shell_type: Any = None  # on a command line, if it is typed in another form
    shell_help: str = ""  # more help about that form
    flag: str | None = None
    metavar: str | None = None


def _option(help: str, **more: Any) -> dict[str, SearchOption]:
    return {"option": SearchOption(help, **more)}


class SearchKeywords(TypedDict, total=False):
    """The keywords of `Index.search`: the fields of `SearchOptions`."""

    mode: Mode | None
    fusion: Fusion
    weights: Sequence[float]
    depth: int | None
    filter: str | Sequence[str] | None
    parameters: Parameters
    filter_timeout: float | None
    effort: Effort | None
    nprobe: int | None
    candidates: int | None
    min_score: float | None
    min_mean_score: float | None
    whole_query: bool


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search, checked, see `Index.search`: the one table of their defaults, modes, ranges and help.

    `mode` has no default of its own: without one, it is `default_mode`, which depends on the index and the query.
    """

    mode: Mode = field(
        metadata=_option(
            "vectors (MaxSim), keywords (BM25, no model), hybrid (both), rerank (keywords, then MaxSim). Default: "
            "hybrid where texts are stored, else vectors.",
            shell_type=Mode | None,
        ),
    )
    fusion: Fusion = field(
        default="relative",
        metadata=_option(
            "Of hybrid: relative (weighted sum of scaled scores) or rrf (reciprocal ranks).", modes=("hybrid",)
        ),
    )
    weights: Sequence[float] = field(
        default=(0.85, 0.15),
        metadata=_option(
            "Weights of hybrid, of vectors and of keywords.",
            modes=("hybrid",),
            shell_type=tuple[float, float],
            metavar="VECTORS KEYWORDS",
        ),
    )
    depth: int | None = field(
        default=None,
        metadata=_option(
            "Documents that keywords find, at least k. Default: of hybrid k, at least 20; of rerank 2k, at least 100.",
            modes=("hybrid", "rerank"),
            least=1,
            metavar="N",
        ),
    )
    filter: str | Sequence[str] | None = field(
        default=None,
        metadata=_option(
            "A condition on metadata, in SQL: \"year >= ? AND lang = 'en'\"; of several, all must hold.",
            shell_type=list[str] | None,
            shell_help="Repeatable.",
            metavar="SQL",
        ),
    )
    parameters: Parameters = field(
        default=(),
        metadata=_option(
            "The value of each ? in the filter, in order.",
            shell_type=list[str] | None,
            shell_help="Repeatable. '\"1\"' is a text, 1 a number.",
            flag="--parameter",
            metavar="VALUE",
        ),
    )
    filter_timeout: float | None = field(
        default=10.0,
        metadata=_option(
            "Time limit of the filter, in seconds.",
            least=0,
            for_clients=False,
            shell_type=float,
            shell_help="0 is no limit.",
            metavar="SECONDS",
        ),
    )
    effort: Effort | None = field(
        default=None,
        metadata=_option(
            "How much an approximate index searches: fast, balanced, exact, or a factor such as 2.",
            modes=_OF_VECTORS,
            of_some_indexes=True,
            shell_type=str | None,
            metavar="EFFORT",
        ),
    )
    nprobe: int | None = field(
        default=None,
        metadata=_option(
            "IVF: inverted lists probed per query token.",
            modes=_OF_VECTORS,
            least=1,
            of_some_indexes=True,
            for_clients=False,
        ),
    )
    candidates: int | None = field(
        default=None,
        metadata=_option(
            "IVF: documents that are compared by their binary codes.",
            modes=_OF_VECTORS,
            least=1,
            of_some_indexes=True,
            for_clients=False,
        ),
    )
    min_score: float | None = field(default=None, metadata=_option("Least score of a document."))
    min_mean_score: float | None = field(
        default=None,
        metadata=_option(
            "Least mean score of a document; -1 leaves none out, and gives each its mean score.",
            shell_help="See latelier check --scores.",
        ),
    )
    whole_query: bool = field(
        default=False, metadata=_option("Read a query beyond the model's query length.", modes=_OF_VECTORS)
    )

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, get_args(Mode))
        check_choice("fusion", self.fusion, get_args(Fusion))
        object.__setattr__(self, "weights", _check_weights(self.weights))
        for name in ("depth", "nprobe", "candidates"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), optional=True)
        if self.filter is None and self.parameters is not None and len(self.parameters):
            raise InvalidArgumentError(
                f"received parameters={short(self.parameters)} without a filter; give both, or neither."
            )
        timeout = self.filter_timeout
        if timeout is not None:
            if not isinstance(timeout, _NUMBERS) or not timeout > 0:
                raise InvalidArgumentError(
                    f"received filter_timeout={short(timeout)}; give a number of seconds above 0, or None for no limit."
                )
            object.__setattr__(self, "filter_timeout", float(min(timeout, 1e9)))  # an integer may exceed any float
        if self.effort is not None:
            effort_factor(self.effort)
        for name in ("min_score", "min_mean_score"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, _NUMBERS) and value == value):
                raise InvalidArgumentError(f"received {name}={short(value)}; give a number, or None for no limit.")
        if self.min_mean_score is not None and self.mode == "keywords":
            raise InvalidArgumentError("min_mean_score needs vectors, and mode='keywords' has none; give min_score.")

    def depth_for(self, k: int) -> int:
        """Return how many documents keywords contribute to a search of `k` hits in the modes hybrid and rerank."""
        if self.depth is not None:
            return max(k, self.depth)
        if self.mode == "hybrid":
            return max(_JOINED, k)
        return max(_RERANKED, _RERANKED_PER_HIT * k)


SEARCH_OPTIONS: dict[str, SearchOption] = {each.name: each.metadata["option"] for each in fields(SearchOptions)}
"""What there is to know of each option of a search, by its name."""
SEARCH_DEFAULTS: dict[str, Any] = {
    each.name: None if each.default is MISSING else each.default for each in fields(SearchOptions)
}


def default_mode(given: Mapping[str, Any], *, can_be_hybrid: bool) -> Mode:
    """Return the mode of a search that names none.

    `given`: its options; one that vectors do not have asks for hybrid. `can_be_hybrid`: whether the query is a text,
    and the index has words.
    """
    of_words = [name for name, option in SEARCH_OPTIONS.items() if "vectors" not in option.modes]
    if any(given.get(name) is not None for name in of_words):
        mode: Mode = "hybrid"
    elif can_be_hybrid:
        mode = "hybrid"
    else:
        mode = "vectors"
    if mode == "hybrid" and given.get("min_score") is not None:
        raise InvalidArgumentError(
            f"received min_score={short(given['min_score'])} without a mode, which is 'hybrid' here. Scores depend on "
            "the mode: those of 'hybrid' are from 0 to 1 whatever is found, those of 'vectors' are sums over the "
            "tokens of a query. Say which it is for, such as mode='vectors'; min_mean_score needs no mode."
        )
    return mode


def effort_factor(effort: object) -> float:
    """Return the number that an effort stands for; 1.0 for None, and for ``"exact"``, which needs none."""
    factor: object = effort
    if effort is None:
        factor = 1.0
    elif isinstance(effort, str):
        factor = _EFFORT_FACTORS.get(effort)
    if not (isinstance(factor, _NUMBERS) and 0 < factor < 1e6):
        raise InvalidArgumentError(
            f"received effort={short(effort)}; expected 'fast', 'balanced', 'exact' or a number above 0 (1.0 is "
            "'balanced')."
        )
    return float(factor)


def check_texts(texts: Any, mode: str) -> list[str]:
    """Return the texts of queries as a list; empty for ``"vectors"``, which uses none."""
    if mode == "vectors":
        return []
    if texts is None:
        raise InvalidArgumentError(f"mode={mode!r} searches for words: give the text of each query as texts=[...].")
    given = [texts] if isinstance(texts, str) else list(texts)
    for position, text in enumerate(given):
        if not isinstance(text, str) or not is_unicode(text):
            raise InvalidArgumentError(f"texts[{position}] is {short(text)}; expected a text that is valid Unicode.")
    return given


def _check_weights(weights: Any) -> tuple[float, float]:
    try:
        first, second = map(float, weights)
    except (TypeError, ValueError):
        first = second = 0.0
    most = sys.float_info.max / 2  # the sum is finite too
    if 0 <= first <= most and 0 <= second <= most and first + second > 0:
        return first, second
    raise InvalidArgumentError(
        f"received weights={short(weights)}; expected two finite numbers, for vectors and keywords, of at least 0 and "
        "not both 0."
    )
