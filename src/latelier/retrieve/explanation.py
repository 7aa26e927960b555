"""An explanation: the terms of a score, one per query token, added up by words, and how it is shown."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes import Id
from latelier.retrieve.languages import function_words
from latelier.retrieve.page_map import STYLE, PageMap, WordMap, draw_page, page_html
from latelier.utils.checks import cut, printable, short
from latelier.utils.files import as_path, write_bytes
from latelier.utils.misc import Markup, bar, escape, fragment, needs_extra, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# A text of 100,000 letters without a space is one word, which the text itself shows whole.
_LONGEST_WORD = 60
_LONGEST_QUERY = 300


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
    page: PageMap | None = field(default=None, compare=False)

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
        return _spans(self.document_words, _added(self))

    @property
    def marks(self) -> list[Span]:
        """Those of the `spans` that are worth marking: words, but no function words, that add much to the score."""
        common = function_words(self.text)
        content = [span for span in self.spans if is_content(self.text[span.start : span.end], common)]
        strongest = max((span.contribution for span in content), default=0.0)
        least = min(_SURELY_MARKED, max(_LEAST_MARKED, _OF_STRONGEST * strongest))
        return [span for span in content if span.contribution >= least]

    def snippet(self, length: int = 240, begin: int = 0) -> tuple[int, int]:
        """Return the part of the text, of about so many characters, whose words added most to the score.

        Parameters
        ----------
        length
            Number of characters.
        begin
            The first character to look at, such as the one after a title.

        Returns
        -------
        tuple of int
            Its first character and the one after its last; the beginning of the text if no word matched.

        Examples
        --------
        >>> from latelier.retrieve import Retriever
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([("a", "The moon is far away. Bananas are healthy.")])
        >>> explanation = retriever.explain("unhealthy fruit", "a")
        >>> start, end = explanation.snippet(24)
        >>> explanation.text[start:end]
        'Bananas are healthy.'
        """
        return densest(self.text, self.marks or self.spans, length, begin)

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

    def reasons(self) -> list[WordMatch]:
        """Return those of the `words` that tell people something: no function words, punctuation or special tokens."""
        common = function_words(self.query) | function_words(self.text)

        def says_something(word: str) -> bool:
            return word not in self.special and is_content(word, common)

        return [each for each in self.words() if says_something(each.word) and says_something(each.matched)]

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
        text = _page(self)
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
        return _draw(self, ax)

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
        figure.savefig(written, format=ending, dpi=_DOTS)
        write_bytes(path, written.getvalue())

    def _repr_html_(self) -> str:
        title = Markup(f"<p>{_title(self)}</p>")
        if self.page is not None:
            return fragment(title, _page_map(self, self.page), _words(self), style=_STYLE + STYLE)
        return fragment(title, _highlighted(self), _heat_map(self, _shown_columns(self)), style=_STYLE)

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
        if special:
            return [*rows, WordMatch("(special tokens)", "", sum(special))]
        return rows


# What a word has to add to the score to be marked: a share of what the strongest one adds, within these limits. It is a
# similarity, or less if the query was changed for an untrained model.
_OF_STRONGEST = 0.4
_LEAST_MARKED = 0.2
_SURELY_MARKED = 0.35


def is_content(word: str, common: Collection[str]) -> bool:
    """Whether a word has a letter or a digit, and is none of the common ones."""
    return word.lower() not in common and any(map(str.isalnum, word))


def densest(text: str, spans: Sequence[Span], length: int, begin: int = 0) -> tuple[int, int]:
    """Return the part of a text from `begin` on, of about so many characters, whose spans add most; no word is cut."""
    spans = [span for span in spans if span.start >= begin]
    best = -1.0
    first = begin
    last = begin
    for i, span in enumerate(spans):
        inside = [each for each in spans[i:] if each.end <= span.start + length]
        if sum(each.contribution for each in inside) > best:
            best = sum(each.contribution for each in inside)
            first = span.start
            last = span.start + length
            last = inside[-1].end if inside else min(span.end, last)
    # A third of the room that is left stands before the first word.
    start = max(begin, min(first - max(0, length - (last - first)) // 3, len(text) - length))
    end = min(len(text), max(start + length, last))
    if start > begin:
        found = re.search(r"\s", text[start - 1 : first])
        start = start + found.start() if found else first
    if end < len(text):
        ends = list(re.finditer(r"\s", text[last : end + 1]))
        end = last + ends[-1].start() if ends else end
    return start, end


def _added(explanation: Explanation) -> dict[int, float]:
    """Return what each matched token of the document adds to the score, by its position."""
    added: dict[int, float] = {}
    for match in explanation.tokens:
        added[match.position] = added.get(match.position, 0.0) + match.similarity
    return added


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


# Columns that fit a page and a figure with labels that can be read.
_MOST_COLUMNS = 60


def _shown_columns(explanation: Explanation) -> list[int]:
    """Return the positions of the document tokens that add most to the score and of their neighbours, in order."""
    count = len(explanation.document_tokens)
    if count <= _MOST_COLUMNS:
        return list(range(count))
    added = _added(explanation)
    strongest = sorted(added, key=lambda position: (-added[position], position))

    def place(i: int) -> tuple[int, int]:
        return min((abs(i - position), rank) for rank, position in enumerate(strongest))

    return sorted(sorted(range(count), key=place)[:_MOST_COLUMNS])


def _row_labels(explanation: Explanation) -> list[str]:
    """Return the labels of the query's tokens: their characters in the query, or the names of special tokens."""
    return _labels([match.token for match in explanation.tokens], explanation.query_ranges, explanation.query)


def _column_labels(explanation: Explanation) -> list[str]:
    """Return the labels of the document's tokens, as `_row_labels` does."""
    return _labels(explanation.document_tokens, explanation.document_ranges, explanation.text)


def _labels(tokens: Sequence[str], ranges: Sequence[tuple[int, int] | None], text: str) -> list[str]:
    found = [token if each is None else text[slice(*each)] for token, each in zip(tokens, ranges, strict=True)]
    return [label.strip() or "␣" for label in found]


_LEVELS = 10
# With this opacity of the tint, black text on white and light text on black keep a contrast above 7 to 1.
_STRONGEST = 0.55
_LONGEST_UNREAD = 300
_TINTS = "\n".join(
    f".latelier.latelier .t{i} {{ background: rgba(59, 130, 246, {_STRONGEST * i / _LEVELS:.2f}) }}"
    for i in range(1, _LEVELS + 1)
)
_STYLE = f"""
.latelier .text {{ white-space: pre-wrap; overflow-wrap: anywhere; max-width: 48em; line-height: 1.7 }}
.latelier mark {{ color: inherit; background: none; border-bottom: 2px solid currentColor; border-radius: .2em }}
.latelier mark sub {{ font-size: .65em; line-height: 1; padding: 0 .15em; font-variant-numeric: tabular-nums }}
.latelier .unread {{ opacity: .75; text-decoration: line-through }}
.latelier .scroll {{ overflow-x: auto; max-width: 100% }}
.latelier .heat {{ font-size: .75em; line-height: 1.2; border-collapse: separate; border-spacing: 1px }}
.latelier .note {{ font-size: .85em; margin: .4em 0 }}
.latelier .heat td {{ padding: .35em .25em; min-width: 1.9em; text-align: center; border: 0; white-space: nowrap;
  font-variant-numeric: tabular-nums }}
.latelier .heat th {{ padding: .25em .4em; border: 0; font-weight: normal; white-space: pre; overflow-wrap: normal }}
.latelier .heat thead th {{ vertical-align: bottom; text-align: center }}
.latelier .heat thead span {{ writing-mode: vertical-rl; transform: rotate(180deg);
  max-height: 12em; overflow: hidden }}
.latelier .heat tbody th {{ text-align: end }}
.latelier .heat .best {{ font-weight: bold; outline: 2px solid currentColor; outline-offset: -2px }}
.latelier .heat .gap {{ min-width: 0; padding: 0 .2em; opacity: .7 }}
{_TINTS}
"""
_PAGE_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1f24 }
@media (prefers-color-scheme: dark) { :root { --ground: #15181c; --ink: #e6e8eb } }
body { margin: 2em auto; padding: 0 1.2em; max-width: 76em; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.35em; overflow-wrap: anywhere } h2 { font-size: 1.1em; margin-top: 1.8em }
.latelier .heat tbody th { position: sticky; inset-inline-start: 0; background: var(--ground) }
summary { cursor: pointer; margin: 1em 0 }
:focus-visible { outline: 2px solid currentColor; outline-offset: 2px }
"""


def _page(explanation: Explanation) -> str:
    """Return a page of HTML that needs no other file: see `Explanation.to_html`."""
    shown = _shown_columns(explanation)
    page = explanation.page
    parts = [
        Markup(f"<h1>{_title(explanation)}</h1>"),
        Markup("<h2>Matched words of the document</h2>" if page is None else "<h2>Matched parts of the page</h2>"),
        _highlighted(explanation) if page is None else _page_map(explanation, page),
        Markup("<h2>Words of the query</h2>"),
        _words(explanation),
        Markup("<h2>Similarities of tokens</h2>"),
        _heat_map(explanation, shown),
    ]
    count = len(explanation.document_tokens)
    if len(shown) < count and page is None:
        whole = _heat_map(explanation, range(count))
        parts.append(Markup(f"<details><summary>All {count} tokens of the document</summary>{whole}</details>"))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_title(explanation)}</title>\n</head>\n<body>\n"
        f"<main>{fragment(*parts, style=_STYLE + _PAGE_STYLE + STYLE)}</main>\n</body>\n</html>\n"
    )


def _page_map(explanation: Explanation, page: PageMap) -> Markup:
    if page.patches is None:
        maps = []
    else:
        maps = word_maps(explanation)
    return page_html(page, maps, repr((explanation.id, explanation.query)))


def word_maps(explanation: Explanation) -> list[WordMap]:
    """Return the map of the whole query (the sum of its tokens), and of each of its words (the best of its tokens)."""
    similarities = explanation.similarity_map
    words = explanation.query_words
    own = [word for word in words if word.range is not None]
    own = own or [word for word in words if word.text not in explanation.special]
    whole = similarities[[position for word in own for position in word.positions]].sum(axis=0)
    maps = [WordMap(word.text, similarities[list(word.positions)].max(axis=0)) for word in own]
    return [WordMap("(whole query)", whole), *maps]


def _title(explanation: Explanation) -> Markup:
    query = cut(repr(explanation.query), _LONGEST_QUERY)
    return escape(f"{cut(repr(explanation.id), _LONGEST_QUERY)} scores {explanation.score:.3f} for {query}")


def _highlighted(explanation: Explanation) -> Markup:
    """Return the document's text with its spans marked, and what of it the model has not read."""
    text = explanation.text
    spans = explanation.spans
    most = max((span.contribution for span in spans), default=0.0)
    read = [each for each in explanation.document_ranges if each is not None]
    if read:
        first = read[0][0]
        last = read[-1][1]
    else:
        first = 0
        last = len(text)
    if not any(map(str.isalnum, text[last:])):  # only punctuation, which some models skip
        last = len(text)
    if not any(map(str.isalnum, text[:first])):
        first = 0
    pieces = [_unread(text[:first])]
    at = first
    for span in spans:
        words = escape(text[span.start : span.end])
        level = _level(span.contribution, most)
        mark = f'<mark class="t{level}">{words}<sub>{span.contribution:.2f}</sub></mark>'
        pieces += [escape(text[at : span.start]), mark]
        at = span.end
    pieces += [escape(text[at:last]), _unread(text[last:])]
    if (first, last) == (0, len(text)):
        note = ""
    else:
        note = "<p>The model did not read the text that is struck through.</p>"
    return Markup(f'<p class="text">{"".join(pieces)}</p>{note}')


def _unread(text: str) -> str:
    if not text:
        return ""
    more = len(text) - _LONGEST_UNREAD
    if more > 0:
        rest = f" ({more:,} more characters)"
    else:
        rest = ""
    return f'<s class="unread">{escape(text[:_LONGEST_UNREAD])}</s>{rest}'


def _words(explanation: Explanation) -> Markup:
    rows = explanation.word_rows()
    most = max((match.contribution for match in rows), default=0.0)
    cells = [
        [
            cut(match.word, _LONGEST_WORD),
            cut(match.matched, _LONGEST_WORD),
            bar(f"{match.contribution:.3f}", match.contribution / most if most > 0 else 0),
        ]
        for match in rows
    ]
    return table(["query", "document", "contribution"], cells)


def _heat_map(explanation: Explanation, columns: Sequence[int]) -> Markup:
    """Return the table of similarities; a column of dots stands for document tokens that are left out."""
    labels = _column_labels(explanation)
    names = _row_labels(explanation)
    values = explanation.similarities
    most = float(values.max(initial=0.0))
    gaps = [i > 0 and columns[i - 1] != position - 1 for i, position in enumerate(columns)]
    dots = '<td class="gap">⋯</td>'
    head = "".join(
        f'{dots if gap else ""}<th scope="col"><span>{escape(cut(labels[position], _LONGEST_WORD))}</span></th>'
        for gap, position in zip(gaps, columns, strict=True)
    )
    rows = []
    for name, match, row in zip(names, explanation.tokens, values, strict=True):
        cells = "".join(
            f'{dots if gap else ""}<td class="t{_level(row[position], most)}{" best" * (position == match.position)}">'
            f"{_decimals(row[position])}</td>"
            for gap, position in zip(gaps, columns, strict=True)
        )
        rows.append(f'<tr><th scope="row">{escape(cut(name, _LONGEST_WORD))}</th>{cells}</tr>')
    note = "Rows are tokens of the query, columns tokens of the document; the highest of each row is framed."
    if len(columns) < len(labels):
        note += f" {len(columns)} of {len(labels)} columns: those that matched, and their neighbours."
    return Markup(
        f'<p class="note">{note}</p>\n<div class="scroll" role="region" aria-label="Heat map" tabindex="0">'
        f'<table class="heat"><thead><tr><td></td>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _level(value: float, most: float) -> int:
    """Return the strength of a tint, 0 to 10, in proportion to `most`."""
    if most > 0:
        return min(max(round(_LEVELS * float(value) / most), 0), _LEVELS)
    return 0


def _decimals(value: float) -> str:
    """Return a number with two decimals and no zero before the point: ``.52``, ``-.04``."""
    return f"{round(float(value), 2) + 0.0:.2f}".replace("0.", ".", 1)  # + 0.0: no -.00


_LONGEST_LABEL = 18
_LONGEST_TITLE = 70
# Inches for each row and column, and for what stands around them.
_CELL = 0.26
_AROUND = (2.6, 2.0)
# per inch, of a picture
_DOTS = 150
_NOTEBOOK_DOTS = 80


def _draw(explanation: Explanation, ax: Axes | None = None) -> Figure:
    """Draw the heat map of an explanation, see `Explanation.figure`."""
    figure_class = _figure_class()
    if explanation.page is not None and explanation.page.patches is not None:
        drawn: Figure = draw_page(explanation.page, word_maps(explanation), ax, figure_class)
        return drawn
    columns = _shown_columns(explanation)
    rows = _row_labels(explanation)
    if ax is None:
        size = _CELL * len(columns) + _AROUND[0], _CELL * len(rows) + _AROUND[1]
        # Not by pyplot, which would keep the figure, and in a notebook show it twice.
        ax = figure_class(figsize=size, layout="constrained").add_subplot()
    values = explanation.similarities[:, columns]
    image = ax.imshow(values, cmap="Blues", vmin=min(0.0, float(values.min(initial=0.0))), aspect="auto")
    place = {position: i for i, position in enumerate(columns)}
    best = [(place[match.position], i) for i, match in enumerate(explanation.tokens) if match.position in place]
    ax.scatter([x for x, _ in best], [y for _, y in best], s=14, c="#d9480f", zorder=2)
    labels = _column_labels(explanation)
    names = [_label(labels[i]) for i in columns]
    if len(columns) < len(labels):
        names = [f"{name} {position}" for name, position in zip(names, columns, strict=True)]
        for i in range(1, len(columns)):
            if columns[i] != columns[i - 1] + 1:  # tokens are left out here
                ax.axvline(i - 0.5, color="0.35", linewidth=1, linestyle=":")
    ax.set_xticks(range(len(columns)), names, rotation=90, parse_math=False)
    ax.set_yticks(range(len(rows)), [_label(name) for name in rows], parse_math=False)
    ax.tick_params(length=0, labelsize="small")
    title = cut(f"{explanation.id!r} scores {explanation.score:.3f} for {explanation.query!r}", _LONGEST_TITLE)
    ax.set_title(printable(title), fontsize="medium", parse_math=False)
    figure: Any = ax.figure  # or a part of it, of the user's
    figure.colorbar(image, ax=ax, label="similarity", fraction=0.02, pad=0.01)
    whole: Figure = figure.figure  # that of a part is the figure, and that of a figure itself
    return whole


def _figure_class() -> type[Figure]:
    """Return matplotlib's figure, shown in a notebook even if pyplot has not been imported."""
    with needs_extra("Drawing an explanation", "plot"):
        from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            written = io.BytesIO()
            self.savefig(written, format="png", dpi=_NOTEBOOK_DOTS)
            return written.getvalue()

    return NotebookFigure


def _label(text: str) -> str:
    return cut(printable(text), _LONGEST_LABEL)
