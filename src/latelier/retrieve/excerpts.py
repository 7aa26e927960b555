"""What is shown of a result: the part of its text that matched, the words in it that did, and its place in its file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from latelier.errors import LatelierError
from latelier.indexes import Id, Index
from latelier.indexes.words import DEFAULT_TOKENIZER, matched_ranges
from latelier.reading.files import is_code, is_subtitle, keeps_lines
from latelier.reading.images import place as picture_place
from latelier.reading.records import HEADINGS
from latelier.retrieve.explaining import explain_results
from latelier.retrieve.explanation import Explanation, Span, densest, is_content
from latelier.retrieve.languages import function_words
from latelier.retrieve.query_model import QueryModel
from latelier.retrieve.results import Result

_LENGTH = 240  # characters
# Of Markdown, the form in which files are stored: bold, code, heads of lines, and bars of tables.
_SYNTAX = re.compile(r"\*\*|`+|^ {0,3}(?:#{1,6}|>) |\|[\s|:-]*", re.MULTILINE)


class Excerpt(NamedTuple):
    """The part of a text that matched, with the ranges of its words to mark, and its place: page, heading or line.

    `explanation`: what it is made from; None for keywords, and where the tokens are not known.
    """

    text: str
    is_begun: bool  # whether other text stands before it
    is_ended: bool
    marks: list[tuple[int, int]]
    place: str
    is_markdown: bool
    explanation: Explanation | None

    def shown(self, plain: Callable[[str], str] = str, marked: Callable[[str], str] = str) -> str:
        """Return the excerpt in one line, its parts and its marked words as the two functions return them."""
        pieces = ["… " if self.is_begun else ""]
        at = 0
        for start, end in self.marks:
            pieces += [plain(self._in_one_line(at, start)), marked(self._in_one_line(start, end))]
            at = end
        pieces += [plain(self._in_one_line(at, len(self.text))), " …" if self.is_ended else ""]
        return "".join(pieces).strip()

    def _in_one_line(self, start: int, end: int) -> str:
        part = self.text[start:end]
        if self.is_markdown:
            part = _SYNTAX.sub(" ", part)
        return re.sub(r"\s+", " ", part)


def excerpts(
    model: QueryModel | None,
    index: Index,
    query: str,
    results: Sequence[Result],
    *,
    length: int = _LENGTH,
    whole: bool = False,
    plain: bool = False,
) -> dict[Id, Excerpt]:
    """Return what to show of the results that are texts, by id; `model`: None for a search by keywords."""
    explanations: dict[Id, Explanation] = {}
    if model is not None:
        with suppress(LatelierError):  # pooled tokens, or another model since: the words of the query are marked
            explanations = explain_results(model, index, query, results, whole=whole, plain=plain)
    known = [result for result in results if result.text and result.id not in explanations]
    texts = [result.text or "" for result in known]
    tokenizer = getattr(index, "tokenizer", None) or DEFAULT_TOKENIZER
    spelled = {result.id: spans for result, spans in zip(known, matched_ranges(query, texts, tokenizer), strict=True)}
    found = {}
    for result in results:
        if result.id in explanations:
            marks = explanations[result.id].marks
            spans = marks or explanations[result.id].spans
        elif result.id in spelled:
            marks = _content(result.text or "", spelled[result.id])
            spans = marks or [Span(*each, 1.0) for each in spelled[result.id]]
        else:
            continue
        found[result.id] = _excerpt(index, result, explanations.get(result.id), marks, spans, length)
    return found


def _content(text: str, ranges: Sequence[tuple[int, int]]) -> list[Span]:
    common = function_words(text)
    return [Span(start, end, 1.0) for start, end in ranges if is_content(text[start:end], common)]


def _excerpt(
    index: Index,
    result: Result,
    explanation: Explanation | None,
    marks: Sequence[Span],
    spans: Sequence[Span],
    length: int,
) -> Excerpt:
    text = result.text or ""
    begin = _title_length(result)
    if not any(span.start >= begin for span in spans):
        begin = 0  # the title has matched, or nothing that is known
    start, end = densest(text, spans, length, begin)
    shown = [each for each in marks if start <= each.start and each.end <= end]
    best = start
    if shown:
        best = max(shown, key=lambda each: each.contribution).start
    is_begun = bool(text[begin:start].strip()) or bool(result.start and start >= begin)
    is_ended = bool(text[end:].strip())
    path = result.metadata.get("path")
    is_markdown = isinstance(path, str) and not is_code(path)
    ranges = [(each.start - start, each.end - start) for each in shown]
    place = _place(index, result, best)
    return Excerpt(text[start:end], is_begun, is_ended, ranges, place, is_markdown, explanation)


def _title_length(result: Result) -> int:
    """Return how many characters of a passage are its title; 0 for a whole document."""
    if result.start is None or result.end is None:
        return 0
    return len(result.text or "") - (result.end - result.start)


def _place(index: Index, result: Result, at: int) -> str:
    """Return where a character of a result's text is in its file: its page, the headings above it, or its line."""
    page = result.metadata.get("page")
    if isinstance(page, int):
        return f"page {page}"
    time = result.metadata.get("time")
    if isinstance(time, str) and is_subtitle(str(result.id)):
        return f"at {time}"
    title = (result.text or "")[: _title_length(result)].strip()
    headings = title.partition("\n")[0].partition(HEADINGS)[2]
    if headings:
        return headings
    line = _line(index, result, at)
    if line is None:
        return picture_place(result.metadata)
    return f"line {line:,}"


def _line(index: Index, result: Result, at: int) -> int | None:
    """Return the line of a file; None unless the text of the document is that of the file."""
    if result.id != result.metadata.get("path") or not keeps_lines(str(result.id)):
        return None
    begin = _title_length(result)
    before = (result.text or "")[begin:at]
    if result.start:
        before = (index.get([result.id])[0].text or "")[: result.start + at - begin]
    return before.count("\n") + 1
