"""`Explanation`: the terms of a document's MaxSim score, by token and by word.

The score is a sum with one term per query token: its similarity with the most similar document token. Subword tokens
are joined into words, and the terms of a word's tokens are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from latelier.indexes import Id
from latelier.scores.alignment import Alignment

__all__ = ["Explanation", "TokenMatch", "WordMatch", "explain_alignment"]


class TokenMatch(NamedTuple):
    """One term of a score: a query token, the document token that matches it best, its position and the similarity.

    Examples
    --------
    >>> TokenMatch("fruit", matched="banana", position=1, similarity=0.5).matched
    'banana'
    """

    token: str
    matched: str
    position: int
    similarity: float


class WordMatch(NamedTuple):
    """One query word, the document word that contributes most to its score, and the sum of its tokens' terms.

    Examples
    --------
    >>> WordMatch("unhealthy", matched="healthy", contribution=1.75).contribution
    1.75
    """

    word: str
    matched: str
    contribution: float


@dataclass(frozen=True, repr=False)
class Explanation:
    """The terms of one document's score; prints as a table of words.

    Parameters
    ----------
    id
        The document's id.
    query
        The query's text.
    tokens
        One match per query token, in order; the similarities sum to the score.
    query_words, document_words
        The words that the tokens form: text and token positions.
    special
        Special tokens of the tokenizer, such as ``[CLS]``; the table sums their terms in one line.

    Examples
    --------
    >>> from latelier.retrieve import Retriever
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add([("a", "Bananas are healthy."), ("b", "The moon is far.")])
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
            The contributions sum to the score. Each special token is a word.
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
        """Return a table: the words of the query, their matches, and their contributions to the score."""
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
    tokens: tuple[Sequence[str], Sequence[str]],
    special: Collection[str],
    join: Callable[[list[str]], str],
) -> Explanation:
    """Build the explanation of an alignment from the tokens of the query and of the document.

    Parameters
    ----------
    id, query
        The document's id and the query's text.
    alignment
        The alignment of the query with the document.
    tokens
        The tokens of the query and of the document, one per row of their embeddings.
    special
        The tokenizer's special tokens.
    join
        Returns the word that a list of tokens forms.

    Returns
    -------
    Explanation
        The terms of the score by token and by word.
    """
    left, right = tokens
    matches = tuple(
        TokenMatch(token, right[position], int(position), float(similarity))
        for token, position, similarity in zip(left, alignment.positions, alignment.similarities, strict=True)
    )
    # GPT's and SentencePiece's tokenizers mark the first token of a word, BERT's mark the others.
    marks_begin = any(token.startswith(("Ġ", "▁")) for token in (*left, *right))
    words = [_words(side, frozenset(special), marks_begin, join) for side in tokens]
    return Explanation(id, query, matches, words[0], words[1], frozenset(special))


def _words(
    tokens: Sequence[str], special: frozenset[str], marks_begin: bool, join: Callable[[list[str]], str]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    groups: list[list[int]] = []
    for position, token in enumerate(tokens):
        continues = not token.startswith(("Ġ", "▁")) if marks_begin else token.startswith("##")
        if continues and groups and token not in special and tokens[position - 1] not in special:
            groups[-1].append(position)
        else:
            groups.append([position])
    return tuple((_join([tokens[i] for i in group], special, join), tuple(group)) for group in groups)


def _join(tokens: list[str], special: frozenset[str], join: Callable[[list[str]], str]) -> str:
    return tokens[0] if tokens[0] in special else join(tokens).strip().removeprefix("##")
