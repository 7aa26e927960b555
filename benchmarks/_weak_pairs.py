"""Weak training pairs from packages of Debian: headwords with their definitions, headings with their sections.

Nobody judged these pairs; the author of a text put a heading above it. Dictionaries (in dictd's format) give a headword
of several words with its definition, or, for a single word, the first sentence of its article with the rest of it.
Documentation gives the heading of a section, after the title of its page, with the paragraphs of the section. Only
English prose is taken.
"""

from __future__ import annotations

import gzip
import random
import re
import string
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

__all__ = ["PACKAGES", "Pair", "clean", "download", "normalised", "weak_pairs"]

DICTIONARIES = ("dict-foldoc", "dict-gcide", "dict-jargon", "dict-wn")
DOCUMENTATION = """
anarchism apache2-doc bind9-doc cmake-doc debian-handbook debian-policy debian-reference-en developers-reference
erlang-doc exim4-doc-html gap-doc gimp-help-en git-doc grass-doc harden-doc installation-guide-amd64
libreoffice-help-en-us lilypond-doc-html maxima-doc octave-doc postgis-doc postgresql-doc-15 python-astropy-doc
python-dipy-doc python-django-doc python-pandas-doc python-qutip-doc python-scipy-doc python-skimage-doc
python-sklearn-doc python-sqlalchemy-doc python-statsmodels-doc python-sympy-doc python-xarray-doc python3.11-doc
qtbase5-doc-html r-doc-html racket-doc rust-doc sqlite3-doc swi-prolog-doc
""".split()  # noqa: SIM905 (a list of strings would have a line for each)
PACKAGES = (*DICTIONARIES, *DOCUMENTATION)

PER_PACKAGE = 2000
PER_PAGE = 40  # so that a few long pages are not all that is read of a package
PAGES = 1000  # read of a package
QUERY_WORDS, TEXT_WORDS = (2, 40), 8
SENTENCE_WORDS = 5  # of a first sentence that is a query
TEXT_CHARACTERS = 1000
LONGEST_WORD = 20  # characters; what is longer in a query is code
ENGLISH = {"the", "of", "and", "to", "is", "a", "in"}
LEAST_ENGLISH = 0.1  # of the words; prose has 0.2 to 0.3, other languages and lists of names have less
NAVIGATION = {"Next:", "Previous:", "Prev:", "Up:", "<<"}  # what such paragraphs of Texinfo's pages begin with
LEAST_ASCII = 0.9  # of the characters of each side
DIGITS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"  # of the numbers in dictd's indexes


class Pair(NamedTuple):
    """A query and a text that answers it; `source` is the kind of the source, a slash, and its name."""

    source: str
    query: str
    text: str


def normalised(text: str) -> str:
    """Return the words of a text in lower case, for comparing texts."""
    return " ".join(re.findall(r"\w+", text.lower()))


def download(names: Iterable[str], folder: Path, seconds: float) -> list[Path]:
    """Return the packages that are in the folder or that apt downloads there in time; name the others."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    found = []
    for name in names:
        if not any(folder.glob(f"{name}_*.deb")):
            try:
                left = max(0.0, end - time.monotonic())
                command = ["apt-get", "download", "-qq", name]
                subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=left)
            except (OSError, subprocess.SubprocessError) as error:
                print(f"skipped package {name}: {error}", flush=True)
        found += sorted(folder.glob(f"{name}_*.deb"))[-1:]
    return found


def weak_pairs(packages: Iterable[Path], seconds: float, each: int = PER_PACKAGE) -> Iterator[Pair]:
    """Yield clean pairs of each package, at most `each`; name the packages that cannot be read, or not in time."""
    end = time.monotonic() + seconds
    for package in packages:
        name = package.name.partition("_")[0]
        if time.monotonic() > end:
            print(f"skipped package {name}: no time left", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                subprocess.run(["dpkg-deb", "-x", package, folder], check=True, capture_output=True)
            except (OSError, subprocess.SubprocessError) as error:
                print(f"skipped package {name}: {error}", flush=True)
                continue
            yield from package_pairs(name, Path(folder), each, end)


def package_pairs(name: str, folder: Path, each: int, end: float) -> list[Pair]:
    """Return a sample of the pairs of an unpacked package, of the first `each` clean ones in random order."""
    rng = random.Random(0)
    dictionary = name in DICTIONARIES
    files = [file for file in sorted(folder.rglob("*.index" if dictionary else "*.html")) if is_own_file(file)]
    rng.shuffle(files)
    source = f"{'dictionary' if dictionary else 'documentation'}/{name}"
    pairs: list[Pair] = []
    seen: set[str] = set()  # of a query that several texts answer, only the first counts; a text may be on many pages
    for file in files[:PAGES]:
        before = len(pairs)
        for query, text in entries(file, rng) if dictionary else sections(file):
            pair = clean(Pair(source, query, text))
            if time.monotonic() > end or len(pairs) >= each:
                return pairs
            if pair is None or not is_english(pair):
                continue
            sides = {normalised(pair.query), normalised(pair.text)}
            if not sides & seen:
                pairs.append(pair)
                seen |= sides
            if len(pairs) - before >= PER_PAGE and not dictionary:
                break
    return pairs


def clean(pair: Pair) -> Pair | None:
    """Return the pair with single spaces and its text cut to the limit; None if a side is too short or too long."""
    query, text = (" ".join(side.split()) for side in (pair.query, pair.text))
    if len(text) > TEXT_CHARACTERS:
        text = text[:TEXT_CHARACTERS].rpartition(" ")[0]
    least, most = QUERY_WORDS
    if least <= len(normalised(query).split()) <= most and len(normalised(text).split()) >= TEXT_WORDS:
        return Pair(pair.source, query, text)
    return None


def is_english(pair: Pair) -> bool:
    """Return whether the text is English prose, and the query is written in words rather than code."""
    if any(sum(map(str.isascii, side)) < LEAST_ASCII * len(side) for side in (pair.query, pair.text)):
        return False
    asked, words = pair.query.split(), normalised(pair.text).split()
    plain_words = sum(bool(re.fullmatch(r"\W?[A-Za-z][a-z'-]*\W?", word)) for word in asked)
    if 2 * plain_words < len(asked) or max(map(len, asked)) > LONGEST_WORD:
        return False
    return sum(word in ENGLISH for word in words) >= LEAST_ENGLISH * len(words)


def is_own_file(file: Path) -> bool:
    """Return whether this is a file, and not in the folder of a language other than English, such as ``de-DE``."""
    languages = [part for part in file.parts if re.fullmatch("[a-z]{2}-[A-Z]{2}", part)]
    return file.is_file() and all(language.startswith("en") for language in languages)


# Dictionaries


def entries(index: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield queries and texts of a dictionary in random order; its index has lines of headword, offset and length."""
    data = gzip.decompress(index.with_suffix(".dict.dz").read_bytes())
    seen = set()
    lines = index.read_text(encoding="utf-8", errors="replace").splitlines()
    rng.shuffle(lines)
    for line in lines:
        headword, offset, length = line.split("\t")[:3]
        begin = number(offset)
        if begin in seen or re.match("00-?database", headword):
            continue
        seen.add(begin)
        article = data[begin : begin + number(length)].decode("utf-8", errors="replace").strip()
        yield from entry_pairs(headword, article)


def entry_pairs(headword: str, article: str) -> Iterator[tuple[str, str]]:
    """Yield a pair of an article, whose first line is its headword; headwords in the index are in lower case."""
    first, _, body = article.partition("\n")
    title = re.split(r"\\|\s{2,}", first)[0].strip()
    if normalised(title) != normalised(headword):
        return  # another article's, which is found by this headword, too
    body = " ".join(re.sub(r"\[[^][]*\]|<[^<>]*>|[{}]", "", body).split())
    # Pronunciation and part of speech
    body = re.sub(r"^(?:/[^/]*/)?[, ]*(?:(?:n|v|vi|vt|vti|adj|adv|interj)\b[., ]*)*(?:1: *)?", "", body)
    if len(normalised(title).split()) > 1:
        yield title, body
    elif not re.search(r"\b1[.:] |\]", body):  # the sentences of numbered senses are not about one thing
        sentence, *rest = re.split(r"(?<=[.?!])\s+", body, maxsplit=1)
        if rest and sentence[:1].isupper() and len(sentence.split()) >= SENTENCE_WORDS:
            yield sentence, f"{title}: {rest[0]}"


def number(digits: str) -> int:
    value = 0
    for digit in digits:
        value = 64 * value + DIGITS.index(digit)
    return value


# Documentation


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the headings of a page, after its title unless one repeats the other, and the prose below them."""
    reader = _Sections()
    data = page.read_bytes()
    try:
        reader.feed(data.decode())
    except UnicodeDecodeError:
        reader.feed(data.decode("latin-1"))  # older documentation
    if not reader.language.startswith("en"):
        return
    # The title of a page often ends with that of the whole manual, after a dash or a bar.
    title = plain(re.split(r"\s+[|:\u2013\u2014-]+\s+|\s*::\s*", " ".join(reader.title.split()))[0])
    for heading, paragraphs in reader.sections:
        heading = plain(heading)
        text = " ".join(" ".join(words) for words in map(str.split, paragraphs) if words and words[0] not in NAVIGATION)
        one, other = normalised(title), normalised(heading)
        yield (heading if one in other else title if other in one else f"{title}: {heading}"), text


def plain(heading: str) -> str:
    """Return a heading without its number and without the sign of a link to itself."""
    heading = " ".join(heading.split()).strip("¶#§ ")
    return re.sub(r"^(?:(?:Chapter|Appendix|Section) )?(?:[A-Z]\.)?\d[\d.-]*:?\s+(?=\S)", "", heading)


class _Sections(HTMLParser):
    """Collects the title of a page, its headings, and the paragraphs below each; code and lists have none."""

    HEADINGS = ("h1", "h2", "h3", "h4", "h5")
    HIDDEN = ("script", "style", "nav", "pre", "svg", "table")

    def __init__(self) -> None:
        super().__init__()
        self.title, self.language = "", "en"
        self.sections: list[tuple[str, list[str]]] = []
        self.within = ""  # "title", "heading", "paragraph"; "": nothing that counts
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "html":
            self.language = (given.get("lang") or given.get("xml:lang") or "en").lower()
        elif tag in self.HIDDEN:
            self.hidden += 1
        elif tag in self.HEADINGS:
            self.within = "heading"
            self.sections.append(("", []))
        elif tag == "title" and not self.title:
            self.within = "title"
        elif tag == "p" or (tag == "div" and given.get("class") == "para"):  # the latter by publican
            self.within = "paragraph"
            if self.sections:
                self.sections[-1][1].append("")
        elif tag in ("div", "ul", "ol", "dl", "dt", "li"):
            self.within = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in self.HIDDEN:
            self.hidden = max(0, self.hidden - 1)
        elif tag in (*self.HEADINGS, "title", "p", "div"):
            self.within = ""

    def handle_data(self, data: str) -> None:
        if self.hidden:
            return
        if self.within == "title":
            self.title += data
        elif self.within and self.sections:
            heading, paragraphs = self.sections[-1]
            if self.within == "heading":
                self.sections[-1] = (heading + data, paragraphs)
            else:
                paragraphs[-1] += data
