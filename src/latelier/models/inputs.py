"""The inputs of a model: one text, a list, or groups of texts are checked and put into one flat list.

An input that is not text (an image, a list of messages) is passed on to `ColBERT.preprocess` unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from latelier.errors import InvalidArgumentError
from latelier.utils.checks import describe
from latelier.utils.files import check_unicode

__all__ = [
    "Inputs",
    "are_texts",
    "check_text_pairs",
    "check_texts",
    "checked_stream",
    "is_group",
    "read_inputs",
]


class Inputs(NamedTuple):
    """Inputs in one flat list.

    Parameters
    ----------
    rows
        The inputs.
    group_sizes
        Number of inputs in each group (the candidates of a query); None if there were no groups.
    single
        Whether one input was given rather than a list.
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
    sentence-transformers.

    Parameters
    ----------
    given
        One input, a list of them, or a list of groups.
    is_single
        Whether an argument is one input rather than a list.

    Returns
    -------
    Inputs
        The inputs, and the sizes of their groups.

    Raises
    ------
    InvalidArgumentError
        If only some of the rows are groups, or a row is neither a text nor any other kind of input.

    Examples
    --------
    >>> read_inputs([["a", "b"], [], ["c"]], lambda given: isinstance(given, str))
    Inputs(rows=['a', 'b', 'c'], group_sizes=[2, 0, 1], single=False)
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
