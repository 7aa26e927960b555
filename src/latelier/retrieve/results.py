"""What a search of documents returns: results with texts, which know their query, and what is shown of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from latelier.errors import LatelierError
from latelier.indexes import Hit, Id, Index, Record
from latelier.indexes.options import Mode
from latelier.indexes.words import DEFAULT_TOKENIZER, matched_ranges
from latelier.reading.files import is_code, is_subtitle, keeps_lines
from latelier.reading.images import place as picture_place
from latelier.reading.records import HEADINGS
from latelier.retrieve.documents import passage_at
from latelier.retrieve.explaining import explain_documents, is_picture, word_begins
from latelier.retrieve.explanation import Explanation, Span, WordMatch
from latelier.retrieve.queries import Found, Query
from latelier.utils.checks import cut, printable
from latelier.utils.misc import Markup, bar, escape, fragment, table

if TYPE_CHECKING:
    from latelier.retrieve.query_model import QueryModel

# Characters of the metadata of a document that the table of a notebook shows.
_LONGEST_METADATA = 200
# Of an id and of a text, in a line of `print(results)`.
_LONGEST_ID = 40
_LONGEST_LINE = 120
_LENGTH = 240  # characters of an excerpt
NOTHING_MATCHES = "nothing matches well"


class Result(NamedTuple):
    """One hit of a search: the document's id, its score (higher is better), its text and its metadata.

    The score is that of the mode, `Results.mode`: in hybrid search from 0 to 1 whatever is found, by vectors MaxSim.

    In an index of passages, the text is that of the document's best passage: `start` and `end` are its place in the
    text that the user gave, in characters, which is ``retriever.documents[id].text``. If the document has a title, the
    passage begins with it, so the last ``end - start`` characters of the text are those of that place. The metadata has
    the passage's own values too, such as its page. For whole documents, both are None.

    `mean_score` is the mean, over the tokens of the query's own text, of the similarity with the best token of the
    document. It leaves out markers and query expansion, so that it means the same for every query and in every mode. It
    takes reading the vectors of the hits, so only a search with `min_mean_score` has it (-1 leaves no document out); it
    is None otherwise.

    `weak` says whether the document matches less than what answers a question does, in an index that has learned it
    (`Retriever.learn_weak`); it is None in others, and for a query that is no text.

    Examples
    --------
    >>> Result("a", 1.5, "Bananas are healthy.", {"year": 2024}).metadata["year"]
    2024
    """

    id: Id
    score: float
    text: str | None
    metadata: dict[str, Any]
    start: int | None = None
    end: int | None = None
    mean_score: float | None = None
    weak: bool | None = None


def asked_if_meant(word: str, near: str) -> str:
    """Return the question whether a word of the index was meant by one of a query that no document has."""
    return f"no document has the word {printable(word)}; did you mean {printable(near)}?"


class Results(list[Result]):
    """The hits of one query, best first: a list that a notebook shows as a table, with the words that matched marked.

    `query` is the query as it was read, and `mode` that of the search; None for a list that no search has returned.
    `unread` is the number of tokens
    at the end of the query that the model did not read, which is 0 but for long queries;
    ``search(..., whole_query=True)`` reads them. `did_you_mean` names, in a search that uses keywords, what each word
    of the query that no document has is nearly spelled as.

    Examples
    --------
    >>> results = Results([Result("a", 1.5, "Bananas are healthy.", {})])
    >>> results == [Result("a", 1.5, "Bananas are healthy.", {})], results.unread
    (True, 0)
    """

    query: Query | None = None
    mode: Mode | None = None
    unread: int = 0
    did_you_mean: Mapping[str, str] = MappingProxyType({})
    _source: Source | None = None

    def __init__(
        self, results: Iterable[Result] = (), *, query: Query | None = None, source: Source | None = None
    ) -> None:
        super().__init__(results)
        self.query = query
        self._source = source
        self._matches: dict[tuple[Id, int | None], _Match] = {}

    def __reduce__(self) -> Any:
        return Results, (list(self),)  # an index cannot be copied

    def excerpt(self, result: Result, length: int = _LENGTH) -> Excerpt:
        """Return the part of a result's text that matched, as the command line, a notebook and the server show it.

        The query is not encoded again: its vectors are compared with the stored ones of the result's passage. Where
        that is not possible (a search by keywords, pooled tokens), the words of the query are marked.

        Parameters
        ----------
        result
            One of these results.
        length
            Number of characters, about.

        Returns
        -------
        Excerpt
            The part, the words to mark in the text, and the place in its file.

        Examples
        --------
        >>> from latelier.retrieve import Retriever
        >>> retriever = Retriever(device="cpu")
        >>> retriever.add([("a", "The moon is far away. Bananas are healthy."), ("b", "Steel is made of iron.")])
        >>> results = retriever.search("unhealthy fruit", k=1)
        >>> excerpt = results.excerpt(results[0], length=24)
        >>> str(excerpt), [excerpt.text[mark.start : mark.end] for mark in excerpt.marks]
        ('… Bananas are healthy.', ['Bananas', 'healthy'])
        """
        key = (result.id, result.start)
        if key not in self._matches:
            wanted = self if result in self else [result]
            self._matches |= _matches(wanted, self.query, self._source)
        return _excerpt(result, self._matches[key], self._source, length)

    @property
    def _caption(self) -> str:
        """Say that all are weak, if they are."""
        if self and all(result.weak for result in self):
            return f"{NOTHING_MATCHES}; the nearest:"
        return ""

    @property
    def _meant(self) -> list[str]:
        """Ask for each word that no document has whether another one was meant."""
        return [asked_if_meant(*each) for each in self.did_you_mean.items()]

    def __str__(self) -> str:
        """Return a table: rank, score and id, and the part of each text that matched."""
        if not self:
            return "\n".join(["no document found", *self._meant])
        ids = [cut(printable(str(result.id)), _LONGEST_ID) for result in self]
        width = max(map(len, ids))
        lines = list(filter(None, [self._caption]))
        for rank, (result, id) in enumerate(zip(self, ids, strict=True), start=1):
            text = cut(self.excerpt(result).shown(printable), _LONGEST_LINE)
            lines.append(f"{rank:3}  {result.score:6.3f}  {id:{width}}  {text}".rstrip())
        return "\n".join([*lines, *self._meant])

    def _repr_html_(self) -> str:
        if not self:
            return fragment("no document found")
        most = max(result.score for result in self)
        has_metadata = any(result.metadata for result in self)
        rows: list[tuple[Any, ...]] = []
        for rank, result in enumerate(self, start=1):
            text = self.excerpt(result).shown(escape, lambda word: f"<mark>{escape(word)}</mark>")
            score = bar(f"{result.score:.3f}", result.score / most if most > 0 else 0.0)
            metadata = "\n".join(f"{key}: {value}" for key, value in result.metadata.items())
            row = (rank, score, str(result.id), Markup(text))
            rows.append((*row, cut(metadata, _LONGEST_METADATA)) if has_metadata else row)
        header = ["rank", "score", "id", "text", "metadata"][: len(rows[0])]
        return fragment(table(header, rows, caption=self._caption))


def read_results(source: Source, queries: Sequence[Query], found: Sequence[Sequence[Found]]) -> list[Results]:
    """Return what was found with the texts and the metadata that are stored; each document is read once."""
    ids = list(dict.fromkeys(each.hit.id for row in found for each in row))
    records = dict(zip(ids, source.index.get(ids), strict=True)) if ids else {}
    return [
        Results((_result(records[each.hit.id], each) for each in row), query=query, source=source)
        for query, row in zip(queries, found, strict=True)
    ]


def explained_excerpt(source: Source, explanation: Explanation) -> Excerpt:
    """Return the excerpt of a document that is explained, as `Results.excerpt` of a search that found it."""
    (record,) = source.index.get([explanation.id])
    hit = Hit(explanation.id, explanation.score, explanation.start, explanation.end)
    match = _match(explanation, source.words.common(source))
    return _excerpt(_result(record, Found(hit, None, None)), match, source, _LENGTH)


def _result(record: Record, found: Found) -> Result:
    hit, mean, weak = found
    text = record.text
    metadata = record.metadata
    passage = passage_at(record, hit.start, hit.end)
    if passage is not None and text is not None:
        text = passage.text_in(text)
    if passage is not None and passage.metadata:
        metadata = metadata | passage.metadata
    return Result(hit.id, hit.score, text, metadata, hit.start, hit.end, mean, weak)


@dataclass(frozen=True)
class Source:
    """Where results come from."""

    index: Index
    model: QueryModel | None  # None: of a search by keywords
    words: WordCounts


class WordCounts:
    """Which words are common in the texts of an index; counted when it is first needed, and again when it has doubled.

    It refers to no retriever: a circle of references would keep a model in memory after its last use.
    """

    def __init__(self) -> None:
        self._known: _CommonWords | None = None
        self._frequent: frozenset[str] | None = None

    def common(self, source: Source) -> _CommonWords:
        """Return the common words; without a model, by the index alone."""
        known = self._known
        if known is None or len(source.index) > 2 * known.documents:
            self._known = known = _CommonWords.of(source.index)
        if source.model is None:
            return known
        if self._frequent is None:
            self._frequent = frequent_words(source.model.queries.vocabulary())
        return known._replace(frequent=self._frequent)


# Texts that are looked at for words, spread over the index, and characters of each.
_SAMPLE = 200
_LONGEST_SAMPLE = 1000
_WORD = re.compile(r"\w+")
# Words that a vocabulary begins with: half of English running text. The first hundred of bert-base-uncased are function
# words, but for about twenty such as "school" and "city".
_FREQUENT = 100
# The share of the texts that a word is common in. BM25 too gives no weight to a word of more than half of the texts;
# "flow" or "ship" may be in each third text of a collection, and still is what people search for.
_COMMON = 1 / 2
_COMMON_IF_FREQUENT = 1 / 20
_PRIOR_TEXTS = 4  # in which a frequent word is assumed to be, and no other: a few texts say little


class _CommonWords(NamedTuple):
    """Which words are in so many texts that finding them tells nothing.

    Tokenizers order their vocabulary by frequency, whatever the language: its first words are common unless the index
    shows otherwise. All other words are only if the index shows it. Without a model, it is as in BM25, where words of
    more than half of the texts have no weight.
    """

    counts: Mapping[str, int]
    texts: int
    documents: int
    frequent: frozenset[str] = frozenset()

    @classmethod
    def of(cls, index: Index) -> _CommonWords:
        """Count in how many of some texts each word is."""
        ids = index.ids()
        places = np.linspace(0, len(ids) - 1, min(_SAMPLE, len(ids))).astype("int64").tolist()
        texts = [record.text or "" for record in index.get([ids[i] for i in dict.fromkeys(places)])]
        found = [set(_WORD.findall(text[:_LONGEST_SAMPLE].lower())) for text in texts]
        return cls(Counter(word for words in found for word in words), len(texts), len(ids))

    def is_content(self, word: str) -> bool:
        """Whether a word says what a text is about: a number or more than a letter, and not common."""
        word = word.lower()
        if not any(map(str.isalnum, word)) or _is_letter(word):
            return False
        count = self.counts.get(word, 0)
        if not self.frequent:
            return count <= _COMMON * self.texts
        if word in self.frequent:
            return count + _PRIOR_TEXTS <= _COMMON_IF_FREQUENT * (self.texts + _PRIOR_TEXTS)
        return count <= _COMMON * (self.texts + _PRIOR_TEXTS)


def frequent_words(vocabulary: Mapping[str, int]) -> frozenset[str]:
    """Return the first whole words of a vocabulary, without single letters, which stand before all words."""
    words: dict[str, None] = {}
    for token in word_begins(sorted(vocabulary, key=lambda token: vocabulary[token])):
        word = token.lower()
        if len(word) > 1 and word.isalpha():
            words[word] = None
        if len(words) == _FREQUENT:
            break
    return frozenset(words)


def _is_letter(word: str) -> bool:
    """Whether a word is one letter, of a script that has cases."""
    return len(word) == 1 and word != word.upper()


class _Match(NamedTuple):
    """What is to be marked in the text of a result, what a part of it is chosen by, and which words matched."""

    marks: tuple[Span, ...] = ()
    spans: tuple[Span, ...] = ()
    words: tuple[WordMatch, ...] = ()


def _matches(
    results: Sequence[Result], query: Query | None, source: Source | None
) -> dict[tuple[Id, int | None], _Match]:
    """Return what matched in each result: by its vectors, or else by the words of the query."""
    found = {(result.id, result.start): _Match() for result in results}
    if query is None or source is None:
        return found
    explanations: list[Explanation] = []
    texts = [result for result in results if result.text and not is_picture(result.metadata)]
    is_compared = source.model is not None and query.vectors is not None
    if not is_compared:  # in a batch of a server, others may be
        source = replace(source, model=None)
    if source.model is not None and query.text != "":
        ids = [result.id for result in texts]
        starts = [result.start for result in texts]
        with suppress(LatelierError):  # pooled tokens, or an index that is closed or changed since
            explanations = explain_documents(source.model, source.index, query, ids, starts=starts)
    try:
        common = source.words.common(source)
    except LatelierError:
        return found
    if explanations:
        pairs = zip(texts, explanations, strict=True)
        return found | {(result.id, result.start): _match(explanation, common) for result, explanation in pairs}
    tokenizer = getattr(source.index, "tokenizer", None) or DEFAULT_TOKENIZER
    spelled = matched_ranges(query.text, [result.text or "" for result in texts], tokenizer)
    for result, ranges in zip(texts, spelled, strict=True):
        text = result.text or ""
        spans = tuple(Span(start, end, 1.0) for start, end in ranges)
        marks = tuple(span for span in spans if common.is_content(text[span.start : span.end]))
        found[result.id, result.start] = _Match(marks or spans, marks or spans)
    return found


# What a word has to add to the score to be marked: a share of what the strongest one adds, within these limits. It is a
# similarity.
_OF_STRONGEST = 0.4
_LEAST_MARKED = 0.2
_SURELY_MARKED = 0.35


def _match(explanation: Explanation, common: _CommonWords) -> _Match:
    """Return the words of a text that words of the query matched, both of which say something."""

    def says_something(word: str) -> bool:
        return word not in explanation.special and common.is_content(word)

    asked = [word for word in explanation.query_words if word.range is not None and says_something(word.text)]
    spans = explanation.spans_of([position for word in asked for position in word.positions])
    content = [span for span in spans if says_something(explanation.text[span.start : span.end])]
    strongest = max((span.contribution for span in content), default=0.0)
    least = min(_SURELY_MARKED, max(_LEAST_MARKED, _OF_STRONGEST * strongest))
    marks = tuple(span for span in content if span.contribution >= least)
    words = tuple(each for each in explanation.words() if says_something(each.word) and says_something(each.matched))
    return _Match(marks, marks or tuple(content or explanation.spans), words)


# Of Markdown, the form in which files are stored: bold, code, and bars of tables; and what a line begins with.
_SYNTAX = re.compile(r"\*\*|`+|\|")
_LINE_START = re.compile(r" {0,3}#{1,6}\s+| {0,3}>\s?|\s*(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?")
# Lines of Markdown that stand for themselves, and those without words.
_APART = re.compile(r" {0,3}#{1,6}\s|\s*(?:[-*+]|\d{1,9}[.)])\s|\s*\|")
_RULE = re.compile(r"[\s|:=*_-]*")
_GAP = " · "


@dataclass(frozen=True)
class Excerpt:
    r"""The part of a result's text that matched: its characters, those of the words to mark, and its place in the file.

    Parameters
    ----------
    text
        The result's text, in which all positions are characters.
    begin
        The first character after the title, the headings and the header of columns that stand before a passage.
    start, end
        The part: its first character and the one after its last.
    marks
        The words of the text that words of the query matched, in order, with what each added to the score. Common words
        such as "the", punctuation and special tokens are left out.
    place
        Page, time, headings or line; empty if it is unknown.
    title
        The title of the document; empty if it has none.
    words
        The words of the query, what each matched, and what that added to the score, without common ones; empty for a
        search by keywords.

    Examples
    --------
    >>> print(Excerpt("# Fruit\n\nBananas are healthy.", 0, 0, 29, (Span(9, 16, 0.5),), "", is_markdown=True))
    Fruit · Bananas are healthy.
    """

    text: str
    begin: int
    start: int
    end: int
    marks: tuple[Span, ...] = ()
    place: str = ""
    title: str = ""
    words: tuple[WordMatch, ...] = ()
    is_begun: bool = False
    is_ended: bool = False
    is_markdown: bool = False
    has_rows: bool = False

    def __str__(self) -> str:
        return self.shown()

    def shown(self, plain: Callable[[str], str] = str, marked: Callable[[str], str] = str) -> str:
        """Return the part in one line: its parts and its marked words as the two functions return them.

        A heading that is the title is left out; other headings, items and rows stand apart.
        """
        pieces: list[str] = []
        was_apart = None
        for start, end in self._lines():
            line = self.text[start:end]
            is_apart = self.has_rows or (self.is_markdown and _APART.match(line) is not None)
            if self.is_markdown:
                start += len(line) - len(_without_start(line))
                is_title = line.lstrip().startswith("#") and self.text[start:end].strip("# \r\n") == self.title
                if is_title or _RULE.fullmatch(line):
                    continue
            if was_apart is not None:
                pieces.append(_GAP if is_apart or was_apart else " ")
            was_apart = is_apart
            pieces += self._pieces(start, end, plain, marked)
        text = "".join(["… " if self.is_begun else "", *pieces, " …" if self.is_ended else ""])
        return re.sub(r"\s+", " ", text).strip()

    def _lines(self) -> Iterator[tuple[int, int]]:
        """Yield the lines of the part that are not blank."""
        start = self.start
        for line in self.text[self.start : self.end].splitlines(keepends=True):
            if line.strip():
                yield start, start + len(line)
            start += len(line)

    def _pieces(self, start: int, end: int, plain: Callable[[str], str], marked: Callable[[str], str]) -> Iterator[str]:
        at = start
        for mark in self.marks:
            if start <= mark.start and mark.end <= end:
                yield plain(self._in_one_line(at, mark.start))
                yield marked(self._in_one_line(mark.start, mark.end))
                at = mark.end
        yield plain(self._in_one_line(at, end).rstrip())

    def _in_one_line(self, start: int, end: int) -> str:
        part = self.text[start:end]
        if self.is_markdown:
            part = _SYNTAX.sub(" ", part)
        return re.sub(r"\s+", " ", part)

    def as_json(self) -> dict[str, Any]:
        """Return the excerpt in JSON's types, as the command line and the server send it."""
        return {
            "text": self.shown(),
            "begin": self.begin,
            "start": self.start,
            "end": self.end,
            "marks": [mark._asdict() for mark in self.marks],
            "title": self.title,
            "place": self.place,
        }


def _without_start(line: str) -> str:
    """Return a line of Markdown without what says that it is a heading, an item or a quotation."""
    found = _LINE_START.match(line)
    if found is None:
        return line
    return line[found.end() :]


def _excerpt(result: Result, match: _Match, source: Source | None, length: int) -> Excerpt:
    text = result.text or ""
    path = result.metadata.get("path")
    name, headings, begin = _lead(result)
    spans = [span for span in match.spans if span.start >= begin]
    start, end = _densest(text, spans, length, begin)
    if isinstance(path, str) and is_code(path):
        start, end = _whole_lines(text, start, end, begin)
    has_rows = isinstance(path, str) and path.lower().endswith((".csv", ".tsv"))
    inside = [mark for mark in match.marks if start <= mark.start and mark.end <= end]
    best = start
    if inside:
        best = max(inside, key=lambda mark: mark.contribution).start
    record = None
    if result.start and source is not None:
        with suppress(LatelierError):  # an index that is closed or changed since
            record = source.index.get(result.id)
    is_first = not result.start or (isinstance(record, Record) and result.start <= record.passages[0].start)
    return Excerpt(
        text,
        begin,
        start,
        end,
        match.marks,
        place=_place(result, headings, begin, best, record),
        title=name,
        words=match.words,
        is_begun=bool(text[begin:start].strip()) or not is_first,
        is_ended=bool(text[end:].strip()),
        is_markdown=isinstance(path, str) and not is_code(path) and not has_rows,
        has_rows=has_rows,
    )


class _Lead(NamedTuple):
    """What stands before the text of a result: title and headings, and where the text begins."""

    title: str
    headings: str
    begin: int


def _lead(result: Result) -> _Lead:
    text = result.text or ""
    title = result.metadata.get("title")
    own = title if isinstance(title, str) else ""
    if result.start is not None and result.end is not None:
        begin = len(text) - (result.end - result.start)
        shown = text[:begin].strip().partition("\n")[0]
        if not shown:
            return _Lead(own, "", begin)
        name, _, headings = shown.partition(HEADINGS)
        return _Lead(name, headings, begin)
    # A whole document: its title, or the name of its file, stands before it.
    name = str(result.metadata.get("path") or "").rpartition("/")[2]
    for each in (own, name, re.sub(r"\.[^.]+$", "", name)):
        if each and text.startswith((f"{each} ", f"{each}\n")):
            return _Lead(each, "", len(each) + 1)
    return _Lead(own, "", 0)


def _place(result: Result, headings: str, begin: int, at: int, record: Record | None) -> str:
    """Return where a character of a result's text is in its file: its page, the headings above it, or its line."""
    page = result.metadata.get("page")
    if isinstance(page, int):
        return f"page {page}"
    time = result.metadata.get("time")
    if isinstance(time, str) and is_subtitle(str(result.id)):
        return f"at {time}"
    if headings:
        return headings
    line = _line(result, begin, at, record)
    if line is None:
        return picture_place(result.metadata)
    return f"line {line:,}"


def _line(result: Result, begin: int, at: int, record: Record | None) -> int | None:
    """Return the line of a file; None unless the text of the document is that of the file."""
    if result.id != result.metadata.get("path") or not keeps_lines(str(result.id)):
        return None
    before = (result.text or "")[begin:at]
    if result.start:
        if record is None:
            return None
        before = (record.text or "")[: result.start + at - begin]
    return before.count("\n") + 1


def _densest(text: str, spans: Sequence[Span], length: int, begin: int) -> tuple[int, int]:
    """Return the part of a text from `begin` on, of about so many characters, whose spans add most; no word is cut."""
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


def _whole_lines(text: str, start: int, end: int, begin: int) -> tuple[int, int]:
    """Return a part of a text, extended to whole lines, as indentation says what code means."""
    start = max(begin, text.rfind("\n", begin, start) + 1)
    following = text.find("\n", max(start, end - 1))
    return start, len(text) if following < 0 else following
