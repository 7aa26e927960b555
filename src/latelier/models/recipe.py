"""The ColBERT recipe: what is built around a bare encoder or a dense model to make it a late-interaction model.

The recipe adds markers that tell queries from documents, query expansion with [MASK] tokens, and a skiplist of
punctuation. Without training they only harm: they lowered nDCG@10 of all-MiniLM-L6-v2 on SciFact from 0.72 to 0.65, and
to 0.59 with attention to the expansion. So `UNTRAINED` has none of them.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from latelier.errors import InvalidArgumentError
from latelier.models.inputs import are_texts
from latelier.utils import check_choice, check_flag
from latelier.utils.checks import short

__all__ = ["UNTRAINED", "Recipe", "untrained_recipe"]

_PROJECTIONS = ("learned", "orthogonal", "pca")


@dataclass(frozen=True)
class Recipe:
    """The ColBERT recipe; the defaults are those of the paper and of PyLate.

    Parameters
    ----------
    query_marker, document_marker
        Texts put before every query and document, each one token of its own; ``""`` for none.
    query_expansion
        Expand every query to its length cap with [MASK] tokens, which are scored too.
    attend_to_expansion
        Let the encoder attend to those tokens.
    skiplist
        Document tokens that are not scored (the encoder still reads them).
    projection
        ``"learned"``: a linear head to train, orthogonal at first; ``"orthogonal"``: the same head, used without
        training; ``"pca"``: a head fitted on texts (`ColBERT.fit_projection`); None: no head, the encoder's dimension.

    Examples
    --------
    >>> from latelier.models import ColBERT
    >>> recipe = Recipe(query_expansion=False, skiplist=(".",))
    >>> model = ColBERT("all-MiniLM-L6-v2", device="cpu", recipe=recipe)
    >>> model.tokens("a pear, a fig.")
    ['[CLS]', '[Q] ', 'a', 'pear', ',', 'a', 'fig', '.', '[SEP]']
    >>> model.tokens("a pear, a fig.", is_query=False)[-3:]
    ['a', 'fig', '[SEP]']
    """

    query_marker: str = "[Q] "
    document_marker: str = "[D] "
    query_expansion: bool = True
    attend_to_expansion: bool = False
    skiplist: tuple[str, ...] = tuple(string.punctuation)
    projection: Literal["learned", "orthogonal", "pca"] | None = "learned"

    def __post_init__(self) -> None:
        for name in ("query_marker", "document_marker"):
            if not isinstance(getattr(self, name), str):
                raise InvalidArgumentError(
                    f"received {name}={short(getattr(self, name))}; expected a str, '' for none."
                )
        for name in ("query_expansion", "attend_to_expansion"):
            check_flag(name, getattr(self, name))
            object.__setattr__(self, name, bool(getattr(self, name)))  # JSON holds no bool of numpy
        skiplist = self.skiplist
        words = tuple(skiplist) if isinstance(skiplist, Iterable) and not isinstance(skiplist, str) else (None,)
        if not are_texts(words):
            raise InvalidArgumentError(f"received skiplist={short(skiplist)}; expected a tuple of str, () for none.")
        object.__setattr__(self, "skiplist", words)  # an iterator is read once, and a list could be changed
        check_choice("projection", self.projection, _PROJECTIONS, optional=True)


UNTRAINED = Recipe(query_marker="", document_marker="", query_expansion=False, skiplist=(), projection=None)
"""The recipe of `ColBERT.from_dense`: the token vectors of the encoder as they are."""


def untrained_recipe(projection: Any, size: int | None, others: Mapping[str, Any]) -> Recipe:
    """Return `UNTRAINED` with a projection.

    Parameters
    ----------
    projection
        None, ``"orthogonal"`` or ``"pca"``.
    size
        The dimensions after it that were asked for, or None.
    others
        Further arguments of `ColBERT.from_dense`, which has no recipe.
    """
    check_choice("projection", projection, ["orthogonal", "pca"], optional=True)
    if projection is None and size is not None:
        raise InvalidArgumentError(
            f"received embedding_size={short(size)} without a projection; give projection='orthogonal' or 'pca'."
        )
    if "recipe" in others:
        raise InvalidArgumentError("from_dense has no argument 'recipe'; ColBERT(name, recipe=...) takes one.")
    return replace(UNTRAINED, projection=projection)
