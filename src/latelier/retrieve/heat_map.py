"""What a heat map of an explanation shows: which document tokens, and the labels of rows and columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latelier.retrieve.explanation import Explanation

__all__ = ["MOST_COLUMNS", "column_labels", "row_labels", "shown_columns"]

# Columns that fit a page and a figure with labels that can be read.
MOST_COLUMNS = 60


def shown_columns(explanation: Explanation, most: int = MOST_COLUMNS) -> list[int]:
    """Return the positions of at most `most` document tokens: those that add most to the score, and their neighbours.

    Parameters
    ----------
    explanation
        The explanation.
    most
        Maximum number of positions; of a shorter document all are returned.

    Returns
    -------
    list of int
        In ascending order.
    """
    count = len(explanation.document_tokens)
    if count <= most:
        return list(range(count))
    added = np.full(count, -np.inf)
    for match in explanation.tokens:
        added[match.position] = max(added[match.position], 0.0) + match.similarity
    matched = [int(i) for i in np.argsort(-added, kind="stable") if added[i] > -np.inf]
    shown: dict[int, None] = {}
    for distance in range(count):
        for position in matched:
            for neighbour in (position - distance, position + distance):
                if 0 <= neighbour < count and len(shown) < most:
                    shown.setdefault(neighbour)
    return sorted(shown)


def row_labels(explanation: Explanation) -> list[str]:
    """Return the labels of the query's tokens: their characters in the query, or the names of special tokens."""
    return _labels([match.token for match in explanation.tokens], explanation.query_ranges, explanation.query)


def column_labels(explanation: Explanation) -> list[str]:
    """Return the labels of the document's tokens, as `row_labels` does."""
    return _labels(explanation.document_tokens, explanation.document_ranges, explanation.text)


def _labels(tokens: Sequence[str], ranges: Sequence[tuple[int, int] | None], text: str) -> list[str]:
    found = [token if each is None else text[slice(*each)] for token, each in zip(tokens, ranges, strict=True)]
    return [label.strip() or "␣" for label in found]
