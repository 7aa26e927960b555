"""Texts in groups, such as the candidates of each query: encoded as one list, given back in their groups.

A list of lists is groups, as in PyLate. Two texts that the encoder is to read as one input, for sentence-transformers'
pairs, are a tuple.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from latelier.errors import InvalidArgumentError
from latelier.models.inputs import check_texts

__all__ = ["flatten", "is_group", "regroup"]


def is_group(row: object) -> bool:
    """Whether a row is a list of texts; a list of messages is a conversation, one input of its own."""
    return isinstance(row, list) and not (row and isinstance(row[0], Mapping))


def flatten(rows: list[Any]) -> tuple[list[Any], list[int] | None]:
    """Return the texts of all groups in one list, and the sizes of the groups; None where there are none.

    Raises
    ------
    InvalidArgumentError
        If some rows are groups and others are not, or a group holds something that is no text.

    Examples
    --------
    >>> flatten([["a", "b"], [], ["c"]])
    (['a', 'b', 'c'], [2, 0, 1])
    >>> flatten(["a", "b"])
    (['a', 'b'], None)
    """
    grouped = [is_group(row) for row in rows]
    if not any(grouped):
        check_texts(rows)
        return rows, None
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
    return [text for row in rows for text in row], [len(row) for row in rows]


def regroup(encoded: Any, sizes: list[int]) -> list[Any]:
    """Cut what was encoded, a list or `TokenEmbeddings`, into groups of these sizes."""
    ends = list(accumulate(sizes))
    return [encoded[end - size : end] for size, end in zip(sizes, ends, strict=True)]
