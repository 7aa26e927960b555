"""The ColBERT recipe: what is built around a bare encoder or a dense model to make it a late-interaction model.

The recipe adds markers that tell queries from documents, query expansion with [MASK] tokens, and a skiplist of
punctuation. Without training they only harm: they lowered nDCG@10 of all-MiniLM-L6-v2 on SciFact from 0.72 to 0.65, and
to 0.59 with attention to the expansion. So `UNTRAINED` has none of them.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from typing import Any, Literal

from latelier.errors import InvalidArgumentError

__all__ = ["UNTRAINED", "Recipe", "untrained_recipe"]


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


UNTRAINED = Recipe(query_marker="", document_marker="", query_expansion=False, skiplist=(), projection=None)


def untrained_recipe(projection: Any) -> Recipe:
    """Return `UNTRAINED` with a projection: None, ``"orthogonal"`` or ``"pca"``."""
    if projection not in (None, "orthogonal", "pca"):
        raise InvalidArgumentError(f"unknown projection {projection!r}; expected None, 'orthogonal' or 'pca'.")
    return replace(UNTRAINED, projection=projection)
