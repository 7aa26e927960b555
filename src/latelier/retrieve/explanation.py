"""An explanation: the terms of a score, one per query token, added up by words."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes import Id
from latelier.retrieve import drawing
from latelier.retrieve.drawing import HeatMap, PageMap, WordMap
from latelier.utils.checks import cut, short
from latelier.utils.files import as_path, write_bytes
from latelier.utils.misc import Markup, escape, fragment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST_QUERY = 300
SPECIAL_TOKENS = "(special tokens)"  # the word that stands for all of them


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


class Word(NamedTuple):
    """A word: its text, the positions of its tokens, and the range of its characters in the text, or None."""

    text: str
    positions: tuple[int, ...]
    range: tuple[int, int] | None


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
    page
        Of a document that was encoded as a picture: where its vectors, which ``document_tokens`` names, lie on it;
        None for a text.
    start, end
        Of a passage, its place in the text that the user gave, as in `Result`; None for a whole document.

    Examples
    --------
    >>> from latelier.retrieve import Retriever
    >>> retriever = Retriever(device="cpu")
    >>> retriever.add([("a", "Bananas are healthy."), ("b", "The moon is far.")])
    >>> explanation = retriever.explain("unhealthy fruit", "a")
    >>> [match.token for match in explanation.tokens]
    ['[CLS]', 'un', '##hea', '##lth', '##y', 'fruit', '[SEP]']
    >>> [(match.word, match.matched) for match in explanation.words()][:-1]
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
    page: PageMap | None = field(default=None, compare=False)
    start: int | None = None
    end: int | None = None

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
        return self.spans_of(range(len(self.tokens)))

    def spans_of(self, positions: Iterable[int]) -> list[Span]:
        """Return the `spans` of some of the query's tokens, by their positions."""
        added: dict[int, float] = {}
        for position in positions:
            match = self.tokens[position]
            added[match.position] = added.get(match.position, 0.0) + match.similarity
        return _spans(self.document_words, added)

    @property
    def query_spans(self) -> list[Span]:
        """The words of the query as characters of its text, in order, with the terms of their tokens added up."""
        return _spans(self.query_words, {i: match.similarity for i, match in enumerate(self.tokens)})

    @property
    def similarity_map(self) -> np.ndarray:
        """The similarities of each query token with the patches of a page, ``(query tokens, rows, columns)`` float32.

        Raises
        ------
        LatelierError
            If the document is a text, or it cannot be known where the vectors of the page lie on it.
        """
        if self.page is None:
            raise LatelierError(f"document {self.id!r} is a text, which has no patches.")
        if self.page.patches is None:
            raise LatelierError(f"document {self.id!r} has no map: {self.page.reason}.")
        return self.similarities[:, self.page.patches]

    def words(self) -> list[WordMatch]:
        """Return one match per query word, in order.

        Returns
        -------
        list of WordMatch
            The contributions sum to the score. All special tokens are one last word, ``(special tokens)``.
        """
        word_at = {position: word.text for word in self.document_words for position in word.positions}
        matches = []
        special = []
        for word in self.query_words:
            added: dict[str, float] = {}
            for position in word.positions:
                match = self.tokens[position]
                matched = word_at[match.position]
                added[matched] = added.get(matched, 0.0) + match.similarity
            if word.text in self.special:
                special.append(sum(added.values()))
            else:
                matches.append(WordMatch(word.text, max(added, key=lambda name: added[name]), sum(added.values())))
        if special:
            matches.append(WordMatch(SPECIAL_TOKENS, "", sum(special)))
        return matches

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a page with the highlighted text, the table of words and the heat map, and write it to a file.

        The page needs no other file and no scripts, follows the light or dark theme of its reader, and escapes the
        texts. Of a document with more than 60 tokens, the heat map shows those that matched and their neighbours; all
        of them are in a part of the page that opens on demand. Of a picture, it shows the page, with a map over it for
        each word of the query.

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
        matches = self._matches()
        words = drawing.word_table(self.words())
        text = drawing.web_page(self._title(), matches, words, self._heat_map(), is_picture=self.page is not None)
        if path is not None:
            write_bytes(path, text.encode())
        return text

    def figure(self, ax: Axes | None = None) -> Figure:
        """Draw the heat map with matplotlib: rows are query tokens, columns document tokens, dots the best of a row.

        Of a document with more than 60 tokens, the heat map shows those that matched and their neighbours, and numbers
        the position of each in the document. Of a picture, it is the page with a map over it: of the whole query, and
        in a new figure of each word too.

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
        if self.page is not None and self.page.patches is not None:
            return drawing.draw_page(self.page, word_maps(self), ax)
        return drawing.draw_heat_map(self._heat_map(), f"{self.id!r} scores {self.score:.3f} for {self.query!r}", ax)

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
        figure = self.figure()
        ending = as_path(path).suffix.lower().removeprefix(".")
        formats = figure.canvas.get_supported_filetypes()
        if ending not in formats:
            raise InvalidArgumentError(
                f"received a file that ends in {short(ending)} for a figure; give one that ends in "
                f"{', '.join('.' + name for name in sorted(formats))}."
            )
        written = io.BytesIO()
        figure.savefig(written, format=ending, dpi=drawing.DOTS)
        write_bytes(path, written.getvalue())

    def _repr_html_(self) -> str:
        title = Markup(f"<p>{self._title()}</p>")
        if self.page is None:
            heat = self._heat_map()
            table = drawing.heat_map_html(heat, heat.shown_columns())
        else:
            table = drawing.word_table(self.words())
        return fragment(title, self._matches(), table, style=drawing.STYLE)

    def _title(self) -> Markup:
        query = cut(repr(self.query), _LONGEST_QUERY)
        return escape(f"{cut(repr(self.id), _LONGEST_QUERY)} scores {self.score:.3f} for {query}")

    def _matches(self) -> Markup:
        """Return the text with what matched marked in it, or the picture with the maps over it."""
        if self.page is None:
            return drawing.marked_text(self.text, self.spans, self.document_ranges)
        if self.page.patches is None:
            maps = []
        else:
            maps = word_maps(self)
        return drawing.page_map_html(self.page, maps, repr((self.id, self.query)))

    def _heat_map(self) -> HeatMap:
        rows = _labels([match.token for match in self.tokens], self.query_ranges, self.query)
        columns = _labels(self.document_tokens, self.document_ranges, self.text)
        return HeatMap(rows, columns, self.similarities, [match.position for match in self.tokens])

    def __repr__(self) -> str:
        """Return a table: the words of the query, their matches, and their contributions to the score."""
        longest = drawing.LONGEST_WORD
        rows = [(cut(word, longest), cut(matched, longest), value) for word, matched, value in self.words()]
        left = max((len(word) for word, _, _ in rows), default=0)
        right = max((len(matched) for _, matched, _ in rows), default=0)
        lines = [f"  {word:{left}}  {matched:{right}}  {value:7.3f}" for word, matched, value in rows]
        return "\n".join([f"{self.id!r} scores {self.score:.3f} for {self.query!r}:", *lines])


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


def word_maps(explanation: Explanation) -> list[WordMap]:
    """Return the map of the whole query (the sum of its tokens), and of each of its words (the best of its tokens)."""
    similarities = explanation.similarity_map
    words = explanation.query_words
    own = [word for word in words if word.range is not None]
    own = own or [word for word in words if word.text not in explanation.special]
    whole = similarities[[position for word in own for position in word.positions]].sum(axis=0)
    maps = [WordMap(word.text, similarities[list(word.positions)].max(axis=0)) for word in own]
    return [WordMap("(whole query)", whole), *maps]


def _labels(tokens: Sequence[str], ranges: Sequence[tuple[int, int] | None], text: str) -> list[str]:
    """Return the characters that tokens stand for in their text, or the names of special tokens."""
    found = [token if each is None else text[slice(*each)] for token, each in zip(tokens, ranges, strict=True)]
    return [label.strip() or "␣" for label in found]
