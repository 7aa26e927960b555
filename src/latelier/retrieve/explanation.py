"""`Explanation`: why a document got its score, token by token and word by word.

MaxSim is a sum with one term per query token, the similarity of the document token that matches it best. So a score
can be taken apart exactly, which no single-vector model offers. Models see pieces of words; for people the pieces are
joined again, and the terms of a word's pieces added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from latelier.indexes import Id
from latelier.scores.alignment import Alignment

__all__ = ["Explanation", "TokenMatch", "WordMatch", "explain_alignment"]


class TokenMatch(NamedTuple):
    """One term of a score: a query token, the document token that matches it best, where, and how well.

    Examples
    --------
    >>> TokenMatch(token="fruit", matched="banana", position=1, similarity=0.5).matched
    'banana'
    """

    token: str
    matched: str
    position: int
    similarity: float


class WordMatch(NamedTuple):
    """The terms of one query word together: what it adds to the score, and the document word that adds most to it.

    Examples
    --------
    >>> WordMatch(word="unhealthy", matched="healthy", contribution=1.75).contribution
    1.75
    """

    word: str
    matched: str
    contribution: float


@dataclass(frozen=True, repr=False)
class Explanation:
    """One document's score, taken apart.

    Parameters
    ----------
    id
        The document.
    query
        The query's text.
    tokens
        One match per query token, in order; the similarities sum to the score.
    query_words, document_words
        The words that the tokens are pieces of: text and token positions.
    special
        Tokens of the tokenizer's own, such as ``[CLS]``; the table sums them up in one line.

    Examples
    --------
    >>> from latelier.retrieve import Retriever
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add([("a", "Bananas are healthy."), ("b", "The moon is far away.")])
    >>> explanation = retriever.explain("unhealthy fruit", "a")
    >>> [match.token for match in explanation.tokens]
    ['[CLS]', 'un', '##hea', '##lth', '##y', 'fruit', '[SEP]']
    >>> [(match.word, match.matched) for match in explanation.words()][1:-1]
    [('unhealthy', 'healthy'), ('fruit', 'bananas')]
    """

    id: Id
    query: str
    tokens: tuple[TokenMatch, ...]
    query_words: tuple[tuple[str, tuple[int, ...]], ...]
    document_words: tuple[tuple[str, tuple[int, ...]], ...]
    special: frozenset[str]

    @property
    def score(self) -> float:
        """The document's score for the query."""
        return sum(match.similarity for match in self.tokens)

    def words(self) -> list[WordMatch]:
        """Return one match per query word, in order.

        Returns
        -------
        list of WordMatch
            The contributions sum to the score. Special tokens are words of their own.
        """
        word_at = {position: word for word, positions in self.document_words for position in positions}
        matches = []
        for word, positions in self.query_words:
            added: dict[str, float] = {}
            for position in positions:
                match = self.tokens[position]
                matched = word_at[match.position]
                added[matched] = added.get(matched, 0.0) + match.similarity
            matches.append(WordMatch(word, max(added, key=lambda name: added[name]), sum(added.values())))
        return matches

    def __repr__(self) -> str:
        """Return a table: the words of the query, what they matched, and what each adds to the score."""
        words = self.words()
        rows = [(match.word, match.matched, match.contribution) for match in words if match.word not in self.special]
        special = [match.contribution for match in words if match.word in self.special]
        if special:
            rows.append(("(special tokens)", "", sum(special)))
        left = max((len(word) for word, _, _ in rows), default=0)
        right = max((len(matched) for _, matched, _ in rows), default=0)
        lines = [f"  {word:{left}}  {matched:{right}}  {value:7.3f}" for word, matched, value in rows]
        return "\n".join([f"{self.id!r} scores {self.score:.3f} for {self.query!r}:", *lines])


def explain_alignment(
    id: Id,
    query: str,
    alignment: Alignment,
    pieces: tuple[Sequence[str], Sequence[str]],
    special: Collection[str],
    join: Callable[[list[str]], str],
) -> Explanation:
    """Put names to the positions and similarities of an alignment.

    Parameters
    ----------
    id, query
        What was asked.
    alignment
        Of the query with the document.
    pieces
        The word pieces of the query and of the document, one per row of their embeddings.
    special
        The tokenizer's special tokens.
    join
        Makes a word of its pieces.
    """
    left, right = pieces
    tokens = tuple(
        TokenMatch(token, right[position], int(position), float(similarity))
        for token, position, similarity in zip(left, alignment.positions, alignment.similarities, strict=True)
    )
    # GPT's and SentencePiece's tokenizers mark where a word begins, BERT's where it goes on.
    marks_begin = any(piece.startswith(("Ġ", "▁")) for piece in (*left, *right))
    words = [_words(side, frozenset(special), marks_begin, join) for side in pieces]
    return Explanation(id, query, tokens, words[0], words[1], frozenset(special))


def _words(
    pieces: Sequence[str], special: frozenset[str], marks_begin: bool, join: Callable[[list[str]], str]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    groups: list[list[int]] = []
    for position, piece in enumerate(pieces):
        goes_on = not piece.startswith(("Ġ", "▁")) if marks_begin else piece.startswith("##")
        if goes_on and groups and piece not in special and pieces[position - 1] not in special:
            groups[-1].append(position)
        else:
            groups.append([position])
    return tuple((_join([pieces[i] for i in group], special, join), tuple(group)) for group in groups)


def _join(pieces: list[str], special: frozenset[str], join: Callable[[list[str]], str]) -> str:
    return pieces[0] if pieces[0] in special else join(pieces).strip().removeprefix("##")
