"""`SearchMode`: how a search uses vectors and keywords; the arguments ``mode``, ``texts``, ... checked."""

from __future__ import annotations

import sys
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from latelier.errors import InvalidArgumentError
from latelier.indexes.catalog.values import is_unicode
from latelier.utils.checks import check_choice, check_count, describe, short

__all__ = ["Fusion", "Mode", "SearchMode", "Tokenizer"]

Mode: TypeAlias = Literal["vectors", "keywords", "hybrid", "rerank"]
Fusion: TypeAlias = Literal["relative", "rrf"]
Tokenizer: TypeAlias = Literal["porter", "unicode61", "trigram"]

# Documents that each side contributes to a fusion, or that keywords pass on to MaxSim: at least this many, and a
# multiple of k, so that the last hits are chosen among others too.
_DEPTH = 100
_DEPTH_PER_HIT = 2


class SearchMode(NamedTuple):
    """The checked arguments of a search that say how it uses vectors and keywords.

    Attributes
    ----------
    name
        ``"vectors"``, ``"keywords"``, ``"hybrid"`` or ``"rerank"``.
    texts
        The text of each query; empty for ``"vectors"``.
    fusion
        ``"relative"`` or ``"rrf"``.
    weights
        The weights of the vectors and the keywords.
    depth
        Documents that each side contributes.
    """

    name: str
    texts: list[str]
    fusion: str
    weights: tuple[float, float]
    depth: int

    @classmethod
    def checked(
        cls, k: object, *, mode: object, texts: object, fusion: object, weights: object, depth: object
    ) -> SearchMode:
        """Check the arguments of users, see `latelier.indexes.Index.search`.

        Raises
        ------
        InvalidArgumentError
            If one of them is not accepted, or if texts are missing.

        Examples
        --------
        >>> SearchMode.checked(
        ...     10, mode="hybrid", texts="fruit", fusion="rrf", weights=(1, 1),
        ...     depth=None
        ... )
        SearchMode(name='hybrid', texts=['fruit'], fusion='rrf', weights=(1.0, 1.0), depth=100)
        """
        k = check_count("k", k)
        check_choice("mode", mode, get_args(Mode))
        check_choice("fusion", fusion, get_args(Fusion))
        most = max(_DEPTH, _DEPTH_PER_HIT * k) if depth is None else max(k, check_count("depth", depth))
        given = [] if mode == "vectors" else _check_texts(texts, str(mode))
        return cls(str(mode), given, str(fusion), _check_weights(weights), most)


def _check_texts(texts: Any, mode: str) -> list[str]:
    if texts is None:
        raise InvalidArgumentError(f"mode={mode!r} searches for words: give the text of each query as texts=[...].")
    given = [texts] if isinstance(texts, str) else texts
    if not isinstance(given, (list, tuple)):
        raise InvalidArgumentError(f"received {describe(texts)} as texts; expected a text or a list of texts.")
    for position, text in enumerate(given):
        if not isinstance(text, str) or not is_unicode(text):
            raise InvalidArgumentError(f"texts[{position}] is {short(text)}; expected a text that is valid Unicode.")
    return list(given)


def _check_weights(weights: Any) -> tuple[float, float]:
    values = list(weights) if isinstance(weights, (list, tuple, np.ndarray)) else []
    kinds = (int, float, np.integer, np.floating)
    numbers = [value for value in values if isinstance(value, kinds) and not isinstance(value, bool)]
    most = sys.float_info.max / 2  # the sum is finite too
    is_valid = len(values) == len(numbers) == 2 and all(0 <= value <= most for value in numbers) and sum(numbers) > 0
    if not is_valid:
        raise InvalidArgumentError(
            f"received weights={short(weights)}; expected two finite numbers, for vectors and keywords, of at least 0 "
            "and not both 0."
        )
    return float(numbers[0]), float(numbers[1])
