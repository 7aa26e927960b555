"""Words of texts and queries: how a text is cut into terms, the units by which keywords are found.

A word is a run of letters, digits and marks. Its term is the same however it is typed: compatibility forms, upper case,
accents, vowel marks, ligatures and characters without width make no difference, and with the tokenizer "porter" nor
does the ending of an English word. Scripts without spaces between words are cut into pairs of characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import regex
import Stemmer

# "porter" takes the endings of English words off, "standard" keeps words whole. The stemmer finds more in every English
# collection that was measured, see docs/indexing.md.
TOKENIZERS = ("porter", "standard")
DEFAULT_TOKENIZER = "porter"
# Distinct terms of a query that are searched for.
MAX_TERMS = 256
# Characters of a term; what follows in a word does not count.
_LONGEST_TERM = 255


class Term(NamedTuple):
    """A term of a text, and the range of the characters that it stands for."""

    term: str
    start: int
    end: int


def document_terms(text: str, tokenizer: str) -> list[str]:
    """Return the terms of a text to index, in order and as often as they occur.

    They include what only some queries ask for: the parts of identifiers, single characters of scripts without spaces,
    and both halves of a word that the end of a line cuts, besides the word.
    """
    runs = _ASCII_RUN if text.isascii() else _RUN
    terms: list[str] = []
    for match in runs.finditer(text):  # a list of them would take ten times the memory of a long text
        run = match[0]
        if len(run) > _LONGEST_REMEMBERED:
            terms += [term.term for term in _terms_of_run(run, tokenizer, is_query=False)]
        else:
            terms += _terms_of_known_run(run, tokenizer)
    return terms + [term.term for term in _cut_words(text, tokenizer)]


def query_terms(text: str, tokenizer: str) -> dict[str, int]:
    """Return the distinct terms of a query, the first `MAX_TERMS` of them, and how often it has each until then."""
    terms: dict[str, int] = {}
    for term in _terms_of(text, tokenizer, is_query=True):
        terms[term.term] = terms.get(term.term, 0) + 1
        if len(terms) == MAX_TERMS:
            break
    return terms


def query_words(text: str) -> list[str]:
    """Return the distinct words of a query as they are spelled in it; terms of scripts without spaces as they are."""
    words: dict[str, str] = {}
    for word, term in spelled_terms(text, "standard", is_query=True):
        words.setdefault(term, word)
        if len(words) == MAX_TERMS:
            break
    return list(words.values())


def spelled_terms(text: str, tokenizer: str, *, is_query: bool) -> Iterator[tuple[str, str]]:
    """Yield the words of a text as they are spelled in it, each with its term."""
    for term, start, end in _terms_of(text, tokenizer, is_query=is_query):
        yield text[start:end], term


def matched_ranges(query: str, texts: Sequence[str], tokenizer: str) -> list[list[tuple[int, int]]]:
    """Return the ranges of the characters of each text that the terms of a query match, in order and apart."""
    wanted = set(query_terms(query, tokenizer))
    return [
        _joined((start, end) for term, start, end in _terms_of(text, tokenizer, is_query=False) if term in wanted)
        for text in texts
    ]


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order; those that overlap as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


# How a text is cut.

# What words are made of: letters, digits, private characters, and their marks and what has no width within them.
_RUN = regex.compile(r"[\p{L}\p{N}\p{Co}][\p{L}\p{M}\p{N}\p{Co}\p{Cf}]*")
_ASCII_RUN = re.compile("[A-Za-z0-9]+")  # the same of a text in ASCII, in half the time
# A word that the end of a line cuts.
_CUT_WORD = regex.compile(r"(?<![\p{L}\p{M}])([\p{L}\p{M}]+)[-\u2010\u00ad][^\S\n]*\n[^\S\n]*(\p{Ll}[\p{L}\p{M}]*)")
# Where a part of an identifier ends, as in parse|HTTP|Header; plurals such as PDFs are no identifiers.
_PART = regex.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])(?!.s\b)")
# Runs that are remembered with their terms, and the characters of the longest of them.
_REMEMBERED = 1 << 16
_LONGEST_REMEMBERED = 40


def _terms_of(text: str, tokenizer: str, *, is_query: bool) -> Iterator[Term]:
    """Yield the terms of a text, those of words that the end of a line cuts last."""
    for match in _RUN.finditer(text):
        for term, start, end in _terms_of_run(match.group(), tokenizer, is_query=is_query):
            yield Term(term, match.start() + start, match.start() + end)
    yield from _cut_words(text, tokenizer)


def _cut_words(text: str, tokenizer: str) -> Iterator[Term]:
    """Yield the terms of the words that the end of a line cuts, as "inter-" does before a line with "national"."""
    if "\n" not in text:
        return
    for match in _CUT_WORD.finditer(text, overlapped=True):
        for term, _, _ in _terms_of_run(match.group(1) + match.group(2), tokenizer, is_query=True):
            yield Term(term, match.start(), match.end())


@lru_cache(_REMEMBERED)
def _terms_of_known_run(run: str, tokenizer: str) -> tuple[str, ...]:
    """Return the terms of a run in a document, which most runs repeat from others."""
    return tuple(term.term for term in _terms_of_run(run, tokenizer, is_query=False))


def _terms_of_run(run: str, tokenizer: str, *, is_query: bool) -> Iterator[Term]:
    """Yield the terms of a run of letters, digits and marks."""
    for characters in _pieces(run):
        if _UNSPACED.match(characters[0].term):
            yield from _pairs(characters, is_query)
            continue
        start, end = characters[0].start, characters[-1].end
        yield Term(_stem("".join(each.term for each in characters), tokenizer), start, end)
        if not is_query:
            # Queries are not cut: those with names such as GitHub or mRNA would find less.
            yield from _identifier_parts(run, start, end, tokenizer)


def _pieces(run: str) -> Iterator[list[Term]]:
    """Yield the characters, in their normal form, of each word, and of each stretch of a script without spaces."""
    if run.isascii():
        yield [Term(run.lower(), 0, len(run))]
        return
    piece: list[Term] = []
    for match in _CHARACTER.finditer(run):
        normal = _normal(match.group())
        for part in _RUN.findall(normal) or [""]:
            if piece and not _continues(piece[-1].term, part, normal):
                yield piece
                piece = []
            if part:
                piece.append(Term(part, match.start(), match.end()))
    if piece:
        yield piece


def _continues(before: str, part: str, normal: str) -> bool:
    """Whether a part of a character's normal form belongs to the word of the one before it."""
    if not part:
        return not normal  # nothing is left of a soft hyphen; a sign that is no letter ends the word
    return normal.startswith(part) and bool(_UNSPACED.match(before)) == bool(_UNSPACED.match(part))


def _pairs(characters: list[Term], is_query: bool) -> Iterator[Term]:
    """Yield the pairs of neighbours; of a document, and of one character alone, the characters too."""
    if len(characters) == 1 or not is_query:
        yield from characters
    for first, second in pairwise(characters):
        yield Term(first.term + second.term, first.start, second.end)


def _identifier_parts(run: str, start: int, end: int, tokenizer: str) -> Iterator[Term]:
    """Yield the parts of a word that is an identifier."""
    ends = [match.start() for match in _PART.finditer(run, start, end)]
    if not ends:
        return
    for first, last in zip([start, *ends], [*ends, end], strict=True):
        yield Term(_stem(_normal(run[first:last]), tokenizer), first, last)


# The normal form of a word.

# A letter with its marks; of Korean, a syllable.
_CHARACTER = regex.compile(r"\X")
# Scripts without spaces between words, and Korean, whose words end in particles.
_UNSPACED = regex.compile(
    r"[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}&&[\p{L}\p{M}\p{N}]]",
    regex.VERSION1,
)
# Accents; vowel marks of Arabic, Hebrew and Syriac, and the stroke that stretches an Arabic word; characters without
# width, such as soft hyphens, and selectors of variants. Marks of other scripts, such as vowels in Hindi, are letters.
_LEFT_OUT = regex.compile(
    r"[\p{Cf}\p{Variation_Selector}\u0640\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    r"\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a"
    r"\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
)
# Letters that are typed as others, and have no decomposition; the last one is a Turkish i without a dot.
_SPELLED = str.maketrans({"œ": "oe", "æ": "ae", "ø": "o", "ł": "l", "đ": "d", "\u0131": "i"})


@lru_cache(_REMEMBERED)
def _normal(character: str) -> str:
    """Return a letter with its marks, or a part of a word, as it stands in terms."""
    if character.isascii():
        return character.lower()
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    folded = _LEFT_OUT.sub("", decomposed.replace("и\u0306", "й"))  # no и with an accent
    digits = "".join(str(unicodedata.digit(c, c)) if not c.isascii() and c.isdecimal() else c for c in folded)
    return unicodedata.normalize("NFC", digits.translate(_SPELLED))


_PORTER = Stemmer.Stemmer("porter")
_LEAST_STEMMED = 3  # characters; nothing would be left of "s"


def _stem(word: str, tokenizer: str) -> str:
    cut = word[:_LONGEST_TERM]
    if tokenizer == "standard" or len(word) < _LEAST_STEMMED:
        return cut
    stem: str = _PORTER.stemWord(cut)
    return stem
