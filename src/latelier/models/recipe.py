"""Recipe and checked inputs.

The recipe adds markers that tell queries from documents, query expansion with [MASK] tokens, and a skiplist of
punctuation. Without training they only harm: they lowered nDCG@10 of all-MiniLM-L6-v2 on SciFact from 0.72 to 0.65, and
to 0.59 with attention to the expansion. So `UNTRAINED` has none of them.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.utils import check_choice, check_flag
from latelier.utils.checks import describe, short
from latelier.utils.files import check_unicode

# Maximum numbers of tokens, markers and special tokens included, unless a checkpoint or the user says otherwise.
DEFAULT_QUERY_LENGTH = 32
DEFAULT_DOCUMENT_LENGTH = 350


class Inputs(NamedTuple):
    """Inputs in one flat list.

    `group_sizes`: number of inputs in each group (the candidates of a query); None if there were no groups. `single`:
    whether one input was given rather than a list.
    """

    rows: list[Any]
    group_sizes: list[int] | None
    single: bool

    def regroup(self, encoded: Any) -> Any:
        """Split the encoded inputs, a list or `TokenEmbeddings`, into the groups that were given."""
        if self.group_sizes is None:
            return encoded
        ends = list(accumulate(self.group_sizes))
        return [encoded[end - size : end] for size, end in zip(self.group_sizes, ends, strict=True)]


def read_inputs(given: Any, is_single: Callable[[Any], bool]) -> Inputs:
    """Return the inputs of `ColBERT.encode` as a flat list.

    A list of lists holds groups, as in PyLate. Two texts that the encoder reads as one input are a tuple, as in
    sentence-transformers. `is_single` tells one input from a list.
    """
    if isinstance(given, Iterator):
        raise InvalidArgumentError("received a generator; encode takes a list, encode_stream reads generators.")
    single = is_single(given)
    rows = [given] if single else list(given)
    grouped = [is_group(row) for row in rows]
    if not any(grouped):
        check_texts(rows)
        return Inputs(rows, None, single)
    if not all(grouped):
        group, text = grouped.index(True), grouped.index(False)
        raise InvalidArgumentError(
            f"texts[{group}] is a list and texts[{text}] is a {type(rows[text]).__name__}; give texts or lists of "
            "texts, not both."
        )
    for i, row in enumerate(rows):
        check_texts(row, f"texts[{i}]")
        for j, text in enumerate(row):
            if isinstance(text, list):
                raise InvalidArgumentError(f"texts[{i}][{j}] is a list; texts come in lists or in lists of lists.")
    return Inputs([text for row in rows for text in row], [len(row) for row in rows], single)


def is_group(row: object) -> bool:
    """Whether a row is a list of texts; a list of messages is a conversation, which is one input."""
    return isinstance(row, list) and not (row and isinstance(row[0], Mapping))


def are_texts(rows: Iterable[Any]) -> bool:
    """Whether all inputs are plain texts, as our encoding loop requires."""
    return all(isinstance(row, str) for row in rows)


def check_texts(rows: Iterable[Any], name: str = "texts") -> None:
    """Raise an error, with the position, for a row that cannot be an input of any kind or is not valid Unicode."""
    for i, row in enumerate(rows):
        if row is None or isinstance(row, (int, float, bytes)):
            raise InvalidArgumentError(f"{name}[{i}] is {describe(row)}; expected str.")
        if isinstance(row, str):
            check_unicode(row, f"{name}[{i}]")


def checked_stream(texts: Any) -> Iterator[str]:
    """Yield texts one by one; the first row that is not a text raises an error that names its position."""
    if isinstance(texts, (str, bytes, Mapping)) or not isinstance(texts, Iterable):
        raise InvalidArgumentError(
            f"received {describe(texts)} as texts; expected an iterable of str, a list or a generator."
        )

    def check() -> Iterator[str]:
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidArgumentError(f"texts[{i}] is {describe(text)}; expected str.")
            check_unicode(text, f"texts[{i}]")
            yield text

    return check()


def check_text_pairs(queries: Sequence[str], documents: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return queries and documents as lists of equal length."""
    for name, texts in (("queries", queries), ("documents", documents)):
        if not isinstance(texts, Iterable):
            raise InvalidArgumentError(f"received {describe(texts)} as {name}; expected a list of str.")
    left = [queries] if isinstance(queries, str) else list(queries)
    right = [documents] if isinstance(documents, str) else list(documents)
    if len(left) != len(right):
        raise InvalidArgumentError(f"received {len(left)} queries and {len(right)} documents; expected pairs.")
    return left, right


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

    `size`: the dimensions after it that were asked for, or None; `others`: further arguments of `ColBERT.from_dense`,
    which has no recipe.
    """
    check_choice("projection", projection, ["orthogonal", "pca"], optional=True)
    if projection is None and size is not None:
        raise InvalidArgumentError(
            f"received embedding_size={short(size)} without a projection; give projection='orthogonal' or 'pca'."
        )
    if "recipe" in others:
        raise InvalidArgumentError("from_dense has no argument 'recipe'; ColBERT(name, recipe=...) takes one.")
    return replace(UNTRAINED, projection=projection)
