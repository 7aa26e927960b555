"""Words of a query that no document has, and the index's own words that are spelled nearly as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from latelier.indexes.words import spelled_terms

# Characters of a word from which on one edit is allowed, and from which on two.
_LEAST = 5
_LONG = 9
# Characters at the beginning that have to be the same.
_PREFIX = 1


class Near(NamedTuple):
    """A term that some documents have, as one of them spells it, and how many edits it is away from one of a query."""

    edits: int
    documents: int
    spelled: str


def asked_terms(text: str, tokenizer: str) -> dict[str, str]:
    """Return the words of a query that may be misspelled, with their terms.

    Short words, numbers and scripts without spaces are left out: they have too many neighbours.
    """
    words = spelled_terms(text, tokenizer, is_query=True)
    return {word: term for word, term in words if len(word) >= _LEAST and word.isalpha()}


def nearest_term(word: str, term: str, known: Mapping[str, int]) -> tuple[int, str] | None:
    """Return the known term that is the fewest edits away, of those the one that most documents have, and the edits.

    An edit inserts, removes or replaces a character, or swaps two neighbours. None: all are too far for this word.
    """
    most = 2 if len(word) >= _LONG else 1
    near = [
        (distance, -known[other], other)
        for other in _similar(term, known, most)
        if (distance := edits(term, other, most)) <= most
    ]
    if not near:
        return None
    distance, _, other = min(near)
    return distance, other


def _similar(term: str, known: Iterable[str], most: int) -> Iterable[str]:
    """Yield terms of about the same length that begin alike and have nearly the same characters."""
    begin = term[:_PREFIX]
    letters = set(term)
    for other in known:
        if abs(len(other) - len(term)) <= most and other.startswith(begin) and len(letters ^ set(other)) <= 2 * most:
            yield other


def spelling(term: str, text: str, tokenizer: str) -> str:
    """Return the first word of a text that has this term, in lower case; the term if none has."""
    words = (word for word, other in spelled_terms(text, tokenizer, is_query=False) if other == term)
    return next(words, term).lower()


def edits(one: str, other: str, most: int) -> int:
    """Return the edits from one word to another, and swaps of neighbours; above `most` if there are more."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        last = row
        row = [i]
        for j, b in enumerate(other, start=1):
            best = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        if min(row) > most:
            return most + 1
        before = last
    return row[-1]
