"""Explanation: tokens, words, spans.

The score is a sum with one term per query token: its similarity with the most similar document token. Subword tokens
are joined into words, and the terms of a word's tokens are added up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes import Id, Index
from latelier.indexes.values import as_id, as_ids
from latelier.retrieve.model import QueryModel, checked_queries
from latelier.retrieve.passages import StoredDocuments
from latelier.scores.topk import Alignment, align
from latelier.utils.checks import cut, describe
from latelier.utils.files import as_path, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Explanation",
    "Span",
    "TokenMatch",
    "TokenizedText",
    "Word",
    "WordMatch",
    "best_part",
    "explain_alignment",
    "explain_document",
    "explain_documents",
    "group_words",
    "marks_beginnings",
]

# Letters of scripts that are written without spaces between words: Thai, Lao, Burmese, Khmer, kana and Han. Their
# tokens are shown one by one, as a sentence of them would be one word.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
# GPT's and SentencePiece's tokenizers mark the first token of a word, BERT's mark the others.
_BEGINS = ("Ġ", "▁")


class TokenizedText(NamedTuple):
    """A text and its tokens that have a vector.

    `text`: the text, as it was given. `tokens`: its tokens, one per row of the embedding. `ranges`: for each token the
    first character that it stands for and the one after the last; None for tokens that stand for none, such as special
    tokens.
    """

    text: str
    tokens: Sequence[str]
    ranges: Sequence[tuple[int, int] | None]


class Word(NamedTuple):
    """A word: its text, the positions of its tokens, and the range of its characters in the text, or None."""

    text: str
    positions: tuple[int, ...]
    range: tuple[int, int] | None


def group_words(
    text: TokenizedText, special: Collection[str], marks_begin: bool, join: Callable[[list[str]], str]
) -> tuple[Word, ...]:
    """Join the tokens of a text into words.

    `special`: the tokenizer's special tokens; each is a word of its own. `marks_begin`: whether the tokenizer marks the
    first token of a word rather than all others. Returns: in order; every token belongs to one word.
    """
    groups: list[list[int]] = []
    for position, token in enumerate(text.tokens):
        continues = not token.startswith(_BEGINS) if marks_begin else token.startswith("##")
        follows_word = bool(groups) and token not in special and text.tokens[position - 1] not in special
        if continues and follows_word and not _is_unspaced(text, position):
            groups[-1].append(position)
        else:
            groups.append([position])
    return tuple(_word(text, group, special, join) for group in groups)


def marks_beginnings(*texts: TokenizedText) -> bool:
    """Return whether the tokenizer of these texts marks the first token of a word rather than all others."""
    return any(token.startswith(_BEGINS) for text in texts for token in text.tokens)


def _is_unspaced(text: TokenizedText, position: int) -> bool:
    """Return whether a token and the one before it are separate characters of a script without spaces."""
    before, here = text.ranges[position - 1], text.ranges[position]
    if before is None or here is None or here[0] < before[1]:  # bytes of one character overlap
        return False
    return any(_UNSPACED.match(text.text[start:end]) for start, end in (before, here))


def _word(text: TokenizedText, group: list[int], special: Collection[str], join: Callable[[list[str]], str]) -> Word:
    tokens = [text.tokens[i] for i in group]
    ranges = [each for each in (text.ranges[i] for i in group) if each is not None]
    name = tokens[0] if tokens[0] in special else join(tokens).strip().removeprefix("##")
    return Word(name, tuple(group), (ranges[0][0], ranges[-1][1]) if ranges else None)


# Characters of a word that the printed table shows: a text without spaces is one word.
_LONGEST_WORD = 60


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


class Span(NamedTuple):
    """Characters of a text, from `start` to before `end`, and what they added to the score.

    Examples
    --------
    >>> span = Span(0, 7, contribution=0.5)
    >>> "Bananas are healthy."[span.start : span.end]
    'Bananas'
    """

    start: int
    end: int
    contribution: float


@dataclass(frozen=True, repr=False)
class Explanation:
    """The terms of one document's score; prints as a table of words, and shows as a heat map in a notebook.

    Parameters
    ----------
    id
        The document's id.
    query, text
        The texts of the query and of the document.
    tokens
        One match per query token, in order; the similarities sum to the score.
    document_tokens
        The tokens of the document that have a vector.
    query_ranges, document_ranges
        For each token of the query, and of the document, the first character of the text that it stands for and the one
        after the last; None for tokens that stand for none, such as special tokens.
    similarities
        Of each query token with each document token, ``(query tokens, document tokens)`` float32.
    query_words, document_words
        The words that the tokens form: text, positions of the tokens, and range of characters.
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

    The characters that matched, to be highlighted:

    >>> [explanation.text[start:end] for start, end, _ in explanation.spans]
    ['Bananas', 'healthy']
    """

    id: Id
    query: str
    text: str
    tokens: tuple[TokenMatch, ...]
    document_tokens: tuple[str, ...]
    query_ranges: tuple[tuple[int, int] | None, ...]
    document_ranges: tuple[tuple[int, int] | None, ...]
    similarities: np.ndarray = field(compare=False)
    query_words: tuple[Word, ...]
    document_words: tuple[Word, ...]
    special: frozenset[str]

    @property
    def score(self) -> float:
        """The document's score for the query."""
        return sum(match.similarity for match in self.tokens)

    @property
    def spans(self) -> list[Span]:
        """The words of the document that query tokens matched, as characters of its text, in order.

        A word's contribution is the sum of the similarities of the query tokens that match one of its tokens best. The
        contributions of all spans, and of matched tokens that stand for no character, such as ``[SEP]``, sum to the
        score. A tokenizer that is not of the package tokenizers does not say which characters its tokens stand for;
        there are no spans then.
        """
        added: dict[int, float] = {}
        for match in self.tokens:
            added[match.position] = added.get(match.position, 0.0) + match.similarity
        return _spans(self.document_words, added)

    @property
    def query_spans(self) -> list[Span]:
        """The words of the query as characters of its text, in order, with the terms of their tokens added up."""
        return _spans(self.query_words, {i: match.similarity for i, match in enumerate(self.tokens)})

    def words(self) -> list[WordMatch]:
        """Return one match per query word, in order.

        Returns
        -------
        list of WordMatch
            The contributions sum to the score. Each special token is a word.
        """
        word_at = {position: word.text for word in self.document_words for position in word.positions}
        matches = []
        for word in self.query_words:
            added: dict[str, float] = {}
            for position in word.positions:
                match = self.tokens[position]
                matched = word_at[match.position]
                added[matched] = added.get(matched, 0.0) + match.similarity
            matches.append(WordMatch(word.text, max(added, key=lambda name: added[name]), sum(added.values())))
        return matches

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a page with the highlighted text, the table of words and the heat map, and write it to a file.

        The page needs no other file and no scripts, follows the light or dark theme of its reader, and escapes the
        texts. Of a document with more than 60 tokens, the heat map shows those that matched and their neighbours; all
        of them are in a part of the page that opens on demand.

        Parameters
        ----------
        path
            The file to write; None: none. An existing file is replaced.

        Returns
        -------
        str
            The page.

        Raises
        ------
        StorageError
            If the file cannot be written; an existing one is unchanged.

        Examples
        --------
        >>> from latelier.retrieve import Retriever
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([("a", "Bananas are healthy.")])
        >>> page = retriever.explain("fruit", "a").to_html("fruit.html")
        >>> page.startswith("<!DOCTYPE html>")
        True
        """
        from latelier.retrieve.explanation_view import page

        text = page(self)
        if path is not None:
            write_bytes(path, text.encode())
        return text

    def figure(self, ax: Axes | None = None) -> Figure:
        """Draw the heat map with matplotlib: rows are query tokens, columns document tokens, dots the best of a row.

        Of a document with more than 60 tokens, the heat map shows those that matched and their neighbours, and numbers
        the position of each in the document.

        Parameters
        ----------
        ax
            Where to draw; None: a new figure, which pyplot does not keep.

        Returns
        -------
        matplotlib.figure.Figure
            The figure; `save_figure` writes it to a file.

        Raises
        ------
        InvalidArgumentError
            If `ax` is no axes.
        MissingExtraError
            If matplotlib is not installed.

        Examples
        --------
        >>> from latelier.retrieve import Retriever
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([("a", "Bananas are healthy.")])
        >>> (axes, _) = retriever.explain("fruit", "a").figure().axes
        >>> [label.get_text() for label in axes.get_yticklabels()]
        ['[CLS]', 'fruit', '[SEP]']
        """
        from latelier.retrieve.explanation_view import draw

        return draw(self, ax)

    def save_figure(self, path: str | os.PathLike[str]) -> None:
        """Write the heat map of `figure` to a file.

        Parameters
        ----------
        path
            The file; its ending is the format: ``.png``, ``.svg``, ``.pdf`` or another one of matplotlib. An existing
            file is replaced.

        Raises
        ------
        InvalidArgumentError
            If matplotlib has no format of this name.
        MissingExtraError
            If matplotlib is not installed.
        StorageError
            If the file cannot be written; an existing one is unchanged.
        """
        from latelier.retrieve.explanation_view import picture

        write_bytes(path, picture(self, as_path(path).suffix.lower().removeprefix(".")))

    def _repr_html_(self) -> str:
        from latelier.retrieve.explanation_view import notebook_cell

        return notebook_cell(self)

    def __repr__(self) -> str:
        """Return a table: the words of the query, their matches, and their contributions to the score."""
        rows = [
            (cut(word, _LONGEST_WORD), cut(matched, _LONGEST_WORD), value) for word, matched, value in self.word_rows()
        ]
        left = max((len(word) for word, _, _ in rows), default=0)
        right = max((len(matched) for _, matched, _ in rows), default=0)
        lines = [f"  {word:{left}}  {matched:{right}}  {value:7.3f}" for word, matched, value in rows]
        return "\n".join([f"{self.id!r} scores {self.score:.3f} for {self.query!r}:", *lines])

    def word_rows(self) -> list[WordMatch]:
        """Return `words` with the terms of all special tokens added up in a last row, ``(special tokens)``."""
        words = self.words()
        rows = [match for match in words if match.word not in self.special]
        special = [match.contribution for match in words if match.word in self.special]
        return [*rows, WordMatch("(special tokens)", "", sum(special))] if special else rows


def explain_alignment(
    id: Id,
    alignment: Alignment,
    query: TokenizedText,
    document: TokenizedText,
    special: Collection[str],
    join: Callable[[list[str]], str],
) -> Explanation:
    """Build the explanation of an alignment from the tokens of the query and of the document.

    `query`, `document`: the texts and their tokens, one per row of their embeddings.
    """
    matches = tuple(
        TokenMatch(token, document.tokens[position], int(position), float(similarity))
        for token, position, similarity in zip(query.tokens, alignment.positions, alignment.similarities, strict=True)
    )
    marks_begin = marks_beginnings(query, document)
    return Explanation(
        id,
        query.text,
        document.text,
        matches,
        tuple(document.tokens),
        tuple(query.ranges),
        tuple(document.ranges),
        alignment.matrix,
        group_words(query, special, marks_begin, join),
        group_words(document, special, marks_begin, join),
        frozenset(special),
    )


def _spans(words: tuple[Word, ...], added: dict[int, float]) -> list[Span]:
    """Return the spans of the words whose tokens added something; of overlapping ones, the span that holds both."""
    spans: list[Span] = []
    for word in words:
        terms = [added[position] for position in word.positions if position in added]
        if not terms or word.range is None:
            continue
        span = Span(*word.range, sum(terms))
        if spans and span.start < spans[-1].end:
            before = spans.pop()
            span = Span(before.start, max(before.end, span.end), before.contribution + span.contribution)
        spans.append(span)
    return spans


def explain_document(model: QueryModel, index: Index, query: str, id: Id) -> Explanation:
    """Explain the score of one document: see `Retriever.explain` and `explain_documents`."""
    return explain_documents(model, index, query, [as_id(id)])[0]


def explain_documents(model: QueryModel, index: Index, query: str, ids: Sequence[Id]) -> list[Explanation]:
    """Explain the scores of some documents for one query, which is encoded once.

    `ids`: documents of the index; of one that is stored as passages, the best passage is explained. Raises
    `UnknownIdError` if a document is not in the index. Raises `LatelierError` if a document was stored without its
    text, or its tokens were pooled.
    """
    if not isinstance(query, str):
        raise InvalidArgumentError(f"received {describe(query)} to explain; expected one query, a text.")
    wanted, vectors = as_ids(ids), model.encode_queries(checked_queries(query))[0]
    asked = _tokenize(model, query, is_query=True)
    with index.snapshot():
        parts = [best_part(index, vectors, id) for id in wanted]
        documents, records = index.get_embeddings(parts), index.get(parts)
    return [
        _explain(model, id, record.text, vectors, document, asked)
        for id, document, record in zip(wanted, documents, records, strict=True)
    ]


def _explain(
    model: QueryModel, id: Id, text: str | None, query: Any, document: Any, asked: TokenizedText
) -> Explanation:
    """Explain a document from its text and its vectors."""
    if text is None:
        raise LatelierError(f"document {id!r} was stored without its text, so its tokens are unknown.")
    found = _tokenize(model, text, is_query=False)
    if len(found.tokens) != len(document):
        raise LatelierError(
            f"document {id!r} has {len(document)} rows, but its text has {len(found.tokens)} tokens for this model; "
            "documents with pooled tokens cannot be explained."
        )
    return explain_alignment(id, align(query, document), asked, found, model.special_tokens, model.join)


def best_part(index: Index, query: Any, id: Id) -> Id:
    """Return the id under which the index stores a document, or the best of its passages for a query.

    `query`: vectors of the query, ``(tokens, dim)``. `id`: id of the document; one that is not in the index is returned
    as it is.
    """
    parts = StoredDocuments(index).parts(id)
    if len(parts) <= 1:
        return parts[0] if parts else id
    scores = [float(align(query, document).similarities.sum()) for document in index.get_embeddings(parts)]
    return parts[int(np.argmax(scores))]


def _tokenize(model: QueryModel, text: str, *, is_query: bool) -> TokenizedText:
    tokens = model.tokens(text, is_query=is_query)
    return TokenizedText(text, tokens, model.token_ranges(text, is_query=is_query))
