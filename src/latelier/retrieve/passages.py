"""Passages: cutting texts, the ids of passages, the documents that an index stores whole or as passages, and results.

The id of a passage is JSON, which keeps the type of its document's id: ``["a",3,1200,2015]`` is passage 3 of the
document ``"a"``, its characters 1,200 to 2,015. The passages of a document are those whose ids begin with ``["a",``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import IndexFormatError, InvalidArgumentError, LatelierError
from latelier.indexes import FieldValues, Hit, Id, Index
from latelier.indexes.options import SearchOptions
from latelier.indexes.results import WEAK, Record, check_known
from latelier.utils.checks import check_count, cut, describe, is_count, printable
from latelier.utils.misc import Markup, bar, escape, fragment, table
from latelier.utils.values import as_ids

# Fewer tokens than these hold no sentence.
LEAST_TOKENS = 16
# By default, passages overlap by this fraction of their length.
_OVERLAP = 8
# Late passages have this fraction of the tokens that the model reads.
_LATE = 3
# Quotation marks and brackets may follow the end of a sentence; in Chinese and Japanese, no space does.
_CLOSING = "[\"')\\]\u2019\u201d\u00bb\u300d\u300f]*"
_SENTENCE = re.compile(rf"[.!?\u2026]{_CLOSING}\s+|[\u3002\uff01\uff1f]{_CLOSING}\s*|\n\s*")
_BREAKS = (re.compile(r"\n[^\S\n]*\n\s*"), _SENTENCE, re.compile(r"\s+"))
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class Passages:
    """How long documents are cut into passages.

    Parameters
    ----------
    max_tokens
        Maximum number of tokens of a passage, including its title and the model's special tokens; None: as many as
        the model reads of a document.
    overlap
        Maximum number of tokens that a passage shares with the one before it, less than half of `max_tokens`; None: an
        eighth of `max_tokens`.
    late
        Encode texts in overlapping windows as long as the model reads, and take the vectors of passages from them: late
        chunking, see `docs/indexing.md`. The headings above a passage are not put before it then, only its title;
        `max_tokens` by default: a third of what the model reads.

    Examples
    --------
    >>> Passages(200)
    Passages(max_tokens=200, overlap=None, late=False)
    >>> Passages(200).resolved(max_length=256)
    Passages(max_tokens=200, overlap=25, late=False)
    """

    max_tokens: int | None = None
    overlap: int | None = None
    late: bool = False

    def __post_init__(self) -> None:
        tokens = check_count("max_tokens", self.max_tokens, LEAST_TOKENS, optional=True)
        overlap = check_count("overlap", self.overlap, 0, optional=True)
        if tokens is not None and overlap is not None and 2 * overlap >= tokens:
            raise InvalidArgumentError(
                f"received overlap={overlap} with max_tokens={tokens}; expected less than half of the tokens."
            )

    def resolved(self, max_length: int | None) -> Passages:
        """Return the passages with both numbers, for a model that reads `max_length` tokens of a document.

        Raises
        ------
        InvalidArgumentError
            If the model reads fewer tokens, or has no limit and `max_tokens` is None.
        """
        tokens = self.max_tokens
        if tokens is None:
            tokens = max_length
            if self.late and max_length is not None:
                tokens = max(max_length // _LATE, LEAST_TOKENS)
        if tokens is None:
            raise InvalidArgumentError("this model reads documents of any length, so passages need a number of tokens.")
        if max_length is not None and tokens > max_length:
            raise InvalidArgumentError(
                f"received passages of {tokens} tokens, but the model reads at most {max_length} of a document; give "
                "fewer, or raise max_length_document."
            )
        return Passages(tokens, tokens // _OVERLAP if self.overlap is None else self.overlap, self.late)

    def agrees_with(self, resolved: Passages) -> bool:
        """Whether the numbers that are given are those of other passages."""
        is_cut_alike = self.max_tokens in (None, resolved.max_tokens) and self.overlap in (None, resolved.overlap)
        return is_cut_alike and self.late == resolved.late


class PassageRange(NamedTuple):
    """A part of a text, ``text[start:end]``."""

    start: int
    end: int


def as_passages(value: Any) -> Passages | None:
    """Return what a user gives as passages: a `Passages`, a number of tokens, True, or False for None."""
    if isinstance(value, bool):
        if value:
            return Passages()
        return None
    if isinstance(value, Passages):
        return value
    return Passages(value)


def cut_texts(
    texts: Sequence[str], rooms: Sequence[int], overlap: int, starts: Callable[[Sequence[str]], list[np.ndarray]]
) -> list[list[PassageRange]]:
    """Cut texts into passages of at most `rooms` tokens; `starts` returns the first character of each token."""
    cut = [_cut(text, tokens, room, overlap) for text, tokens, room in zip(texts, starts(texts), rooms, strict=True)]
    # A word that was cut has other tokens than before, and may have more of them.
    broken = [(i, part) for i, parts in enumerate(cut) for part in parts if _breaks_a_word(texts[i], part)]
    pieces = [texts[i][part.start : part.end] for i, part in broken]
    for (i, part), piece, tokens in zip(broken, pieces, starts(pieces) if pieces else [], strict=True):
        if len(tokens) > rooms[i]:
            smaller = [PassageRange(part.start + a, part.start + b) for a, b in _cut(piece, tokens, rooms[i] // 2, 0)]
            at = cut[i].index(part)
            cut[i][at : at + 1] = smaller
    return cut


def _cut(text: str, starts: np.ndarray, room: int, overlap: int) -> list[PassageRange]:
    """Cut one text, given the positions of its tokens, into passages of at most `room` tokens."""
    overlap = min(overlap, (room - 1) // 2)
    begin = _after_space(text, 0)
    stop = len(text.rstrip())
    if begin >= stop:  # a document may have a title alone
        return [PassageRange(0, 0)]
    passages: list[PassageRange] = []
    while True:
        first = int(np.searchsorted(starts, begin))
        if len(starts) - first <= room:
            return [*passages, PassageRange(begin, stop)]
        limit = int(starts[first + room])
        end = max(_last_break(text, int(starts[first + room // 2]), limit), begin + 1)
        passages.append(PassageRange(begin, begin + len(text[begin:end].rstrip())))
        following = int(np.searchsorted(starts, end))
        if following == len(starts):  # characters after the last token, such as control characters, have none
            return [*passages[:-1], PassageRange(begin, stop)]
        after = _after_space(text, end)
        earliest = max(following - overlap, first + 1)
        begin = max(min(_first_break(text, starts, earliest, end), after) if overlap else after, begin + 1)


def _last_break(text: str, lower: int, limit: int) -> int:
    """Return where the last paragraph, sentence or word between two positions ends, or else the second position."""
    for kind in _BREAKS:
        ends = [found.end() for found in kind.finditer(text, lower, limit)]
        if ends:
            return ends[-1]
    return limit


def _first_break(text: str, starts: np.ndarray, earliest: int, end: int) -> int:
    """Return where the first sentence begins after the token `earliest` and before `end`, or else a word or a token."""
    lower = int(starts[earliest])
    for kind in (_SENTENCE, _BREAKS[-1]):
        for found in kind.finditer(text, int(starts[earliest - 1]), end):
            if lower <= found.end() < end:
                return found.end()
    return lower


def _after_space(text: str, at: int) -> int:
    """Return the position of the first character from `at` on that is not white space."""
    found = _SPACE.match(text, at)
    if found:
        return found.end()
    return at


def _breaks_a_word(text: str, part: PassageRange) -> bool:
    before = text[part.start - 1 : part.start]
    after = text[part.end : part.end + 1]
    return bool((before and not before.isspace()) or (after and not after.isspace()))


class PassageId(NamedTuple):
    """Passage `number`, from 0, of a document: ``text[start:end]`` of the text that the user gave, in characters."""

    document: Id
    number: int
    start: int
    end: int


def encode_passage_id(passage: PassageId) -> str:
    """Return the id of a passage in the index."""
    return json.dumps(passage, ensure_ascii=False, separators=(",", ":"))


def decode_passage_id(id: Id) -> PassageId | None:
    """Return the passage that an id names; None for an id of another form, which no retriever has written."""
    if not (isinstance(id, str) and id.startswith("[")):
        return None
    try:
        value = json.loads(id)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(value, list) and len(value) == 4 and all(is_count(each, 0) for each in value[1:])):
        return None
    is_id = isinstance(value[0], (str, int)) and not isinstance(value[0], bool) and value[0] != ""
    passage = PassageId(*value)
    if is_id and passage.start <= passage.end and encode_passage_id(passage) == id:
        return passage
    return None


def passage_prefix(document: Id) -> str:
    """Return what the ids of a document's passages begin with, and no other ids."""
    return json.dumps([document], ensure_ascii=False)[:-1] + ","


# The key among the settings of the index.
_SETTING = "documents"


class DocumentSettings(NamedTuple):
    """How all documents of an index are prepared, so that scores are comparable; None: whole documents."""

    passages: Passages | None = None
    pool_factor: int = 1

    @classmethod
    def stored_in(cls, index: Index) -> DocumentSettings:
        """Return the settings of an index; whole documents without pooling, if it stores none."""
        stored = index.settings.get(_SETTING)
        if stored is None:
            return cls()
        try:
            passages = stored["passages"]
            factor = check_count("pool_factor", stored["pool_factor"])
            return cls(None if passages is None else Passages(**passages).resolved(None), factor)
        except (InvalidArgumentError, KeyError, TypeError) as error:
            raise IndexFormatError(
                f"the index describes its documents in a form that this library does not write: {describe(stored)}."
            ) from error

    @classmethod
    def chosen(
        cls, index: Index, passages: Any, pool_factor: int | None, max_length: Callable[[], int | None]
    ) -> DocumentSettings:
        """Return the settings of the index, or for an empty index those that are given."""
        given = None if passages is None else as_passages(passages)
        factor = check_count("pool_factor", pool_factor, optional=True)
        stored = cls.stored_in(index)
        if index.dim is None:
            wanted = stored.passages if passages is None else given
            return cls(wanted and wanted.resolved(max_length()), factor or stored.pool_factor)
        agrees = given == stored.passages or (given and stored.passages and given.agrees_with(stored.passages))
        if passages is not None and not agrees:
            raise InvalidArgumentError(
                f"received passages={passages!r}, but the index holds {stored.describe_passages()}; leave passages "
                "out, or make a new index."
            )
        if factor not in (None, stored.pool_factor):
            raise InvalidArgumentError(
                f"received pool_factor={factor}, but the documents of the index have {stored.pool_factor}; leave it "
                "out, or make a new index."
            )
        if stored.passages is not None:
            stored.passages.resolved(max_length())
        return stored

    def store_in(self, index: Index) -> None:
        """Store the settings in an index, unless it has them already or they are those of whole documents."""
        if self == DocumentSettings.stored_in(index):
            return
        passages = self.passages and asdict(self.passages)
        index.settings[_SETTING] = {"passages": passages, "pool_factor": self.pool_factor}

    def describe_passages(self) -> str:
        """Return what an index holds, for messages."""
        if self.passages is None:
            return "whole documents"
        kind = "late passages" if self.passages.late else "passages"
        return f"{kind} of {self.passages.max_tokens} tokens that overlap by {self.passages.overlap}"


# Characters of a text, and of the metadata of a document, that the table of a notebook shows.
_LONGEST_TEXT = 300
_LONGEST_METADATA = 200
# Of an id and of a text, in a line of `print(results)`.
_LONGEST_ID = 40
_LONGEST_LINE = 120
NOTHING_MATCHES = "nothing matches well"


class Result(NamedTuple):
    """One hit of a search: the document's id, its MaxSim score (higher is better), its text and its metadata.

    In an index of passages, the text is that of the document's best passage: `start` and `end` are its place in the
    text that the user gave, in characters. If the document has a title, the passage begins with it, so the last
    ``end - start`` characters of the text are those of that place. For whole documents, both are None.

    `mean_score` is the mean, over the tokens of the query's own text, of the similarity with the best token of the
    document. It leaves out markers and query expansion, so that it means the same for every query and in every mode. It
    takes reading the vectors of the hits, so only a search with `min_mean_score` has it (-1 leaves no document out), or
    one of an index that knows which results are weak (`Retriever.learn_weak`): `weak` then says whether the document
    matches less than what answers a question does. Both are None otherwise.

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


def weak_below(index: Index) -> float | None:
    """Return the `mean_score` below which results are weak; the settings may be a stranger's."""
    stored = index.settings.get(WEAK)
    least = stored.get("min_mean_score") if isinstance(stored, Mapping) else None
    if isinstance(least, float):
        return least
    return None


class Found(NamedTuple):
    """A hit in an index, and its mean score, see `Result`."""

    id: Id
    score: float
    mean_score: float | None


class Results(list[Result]):
    """The hits of one query, best first: a list that a notebook shows as a table, with the words that matched marked.

    `unread` is the number of tokens at the end of the query that the model did not read, which is 0 but for long
    queries; ``search(..., whole_query=True)`` reads them.

    Examples
    --------
    >>> results = Results([Result("a", 1.5, "Bananas are healthy.", {})])
    >>> results == [Result("a", 1.5, "Bananas are healthy.", {})], results.unread
    (True, 0)
    """

    unread: int = 0

    # Returns for each result an `Excerpt`, the part of its text that matched; of a search for vectors, none is known.
    excerpts: Callable[[Sequence[Result]], Mapping[Id, Any]] | None = None

    def __reduce__(self) -> Any:
        return Results, (list(self),)  # an index cannot be copied

    def _shown(self, plain: Callable[[str], str], marked: Callable[[str], str]) -> list[str]:
        """Return of each text the part that matched, or its beginning, which is all that is known of some."""
        try:
            known = self.excerpts(self) if self.excerpts else {}
        except LatelierError:  # closed or changed since
            known = {}
        shown = []
        for result in self:
            if result.id in known:
                shown.append(known[result.id].shown(plain, marked))
            else:
                # Cut before the text is split: it may have megabytes.
                shown.append(plain(cut(" ".join((result.text or "")[: 2 * _LONGEST_TEXT].split()), _LONGEST_TEXT)))
        return shown

    @property
    def _caption(self) -> str:
        """Say that all are weak, if they are."""
        if self and all(result.weak for result in self):
            return f"{NOTHING_MATCHES}; the nearest:"
        return ""

    def __str__(self) -> str:
        """Return a table: rank, score and id, and the part of each text that matched."""
        if not self:
            return "no document found"
        ids = [cut(printable(str(result.id)), _LONGEST_ID) for result in self]
        width = max(map(len, ids))
        lines = list(filter(None, [self._caption]))
        texts = self._shown(printable, str)
        for rank, (result, id, text) in enumerate(zip(self, ids, texts, strict=True), start=1):
            lines.append(f"{rank:3}  {result.score:6.3f}  {id:{width}}  {cut(text, _LONGEST_LINE)}".rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if not self:
            return fragment("no document found")
        texts = self._shown(escape, lambda word: f"<mark>{escape(word)}</mark>")
        most = max(result.score for result in self)
        has_metadata = any(result.metadata for result in self)
        rows: list[tuple[Any, ...]] = []
        for rank, (result, text) in enumerate(zip(self, texts, strict=True), start=1):
            score = bar(f"{result.score:.3f}", result.score / most if most > 0 else 0.0)
            metadata = "\n".join(f"{key}: {value}" for key, value in result.metadata.items())
            row = (rank, score, str(result.id), Markup(text))
            rows.append((*row, cut(metadata, _LONGEST_METADATA)) if has_metadata else row)
        header = ["rank", "score", "id", "text", "metadata"][: len(rows[0])]
        return fragment(table(header, rows, caption=self._caption))


# Passages searched at first, for each document that is wanted, and the factor by which their number then grows.
_PASSAGES = 4


@dataclass(frozen=True)
class EncodedQueries:
    """The queries of a search."""

    texts: list[str]  # of each query; empty for queries that are pictures or vectors
    vectors: TokenEmbeddings | None = None  # of the tokens of each query; None for keywords
    own: TokenEmbeddings | None = None  # of the text's own tokens, for `Result.mean_score`; None: no mean is wanted

    def __len__(self) -> int:
        return len(self.texts) if self.vectors is None else len(self.vectors)

    @property
    def needed_vectors(self) -> TokenEmbeddings:
        """The vectors, for what is not done without."""
        return cast("TokenEmbeddings", self.vectors)

    @classmethod
    def concatenate(cls, parts: Sequence[EncodedQueries]) -> EncodedQueries:
        """Return the queries of parts that all have vectors, and all or none of which have own ones."""
        texts = [text for part in parts for text in part.texts]
        vectors = [part.vectors for part in parts if part.vectors is not None]
        own = [part.own for part in parts if part.own is not None]
        return cls(
            texts,
            vectors=TokenEmbeddings.concatenate(vectors) if vectors else None,
            own=TokenEmbeddings.concatenate(own) if own else None,
        )

    def rows(self, rows: list[int]) -> EncodedQueries:
        """Return some of the queries."""
        return EncodedQueries(
            texts=[self.texts[row] for row in rows] if self.texts else [],
            vectors=None if self.vectors is None else self.vectors[rows],
            own=None if self.own is None else self.own[rows],
        )


class StoredDocuments:
    """The documents of an index by the user's ids; an id that is not that of a passage is a whole document."""

    def __init__(self, index: Index, has_passages: bool | None = None) -> None:
        self.index = index
        if has_passages is None:
            self.has_passages = DocumentSettings.stored_in(index).passages is not None
        else:
            self.has_passages = has_passages

    def existing(self, ids: Sequence[Id]) -> set[Id]:
        """Return those of some ids that documents have, by one look at the index."""
        if not self.has_passages:
            return self.index.existing(ids)
        with self.index.snapshot():
            return {id for id in ids if self.parts(id)}

    def __contains__(self, id: Id) -> bool:
        return bool(self.existing([id]))

    def __len__(self) -> int:
        if self.has_passages:
            return len(self.ids())
        return len(self.index)

    def ids(self) -> list[Id]:
        """Return the ids of all documents in the order of insertion."""
        stored = self.index.ids()
        if self.has_passages:
            return list(dict.fromkeys(map(self.document, stored)))
        return stored

    def field_values(self, most: int = 20, **chosen: Any) -> list[FieldValues]:
        """Return the values that documents have in each field, or in one, see `Index.field_values`."""
        return self.index.field_values(most, **chosen, are_passages=self.has_passages)

    def parts(self, id: Id) -> list[Id]:
        """Return the ids under which the index stores a document, in the order of its passages; none if absent."""
        if self.has_passages:
            found = self.index.ids(passage_prefix(id))
        else:
            found = []
        return found or ([id] if self._is_whole(id) else [])

    def get(self, ids: Id | Iterable[Id]) -> list[Record]:
        """Return the texts and metadata of documents; those of passages are put together, see `_joined`."""
        wanted = as_ids(ids)
        with self.index.snapshot():
            if not self.has_passages:
                return list(self.index.get(wanted))
            parts = [self.parts(id) for id in wanted]
            check_known(wanted, [id for id, found in zip(wanted, parts, strict=True) if found])
            records = iter(self.index.get([part for found in parts for part in found]))
        return [_joined(id, [next(records) for _ in found]) for id, found in zip(wanted, parts, strict=True)]

    def remove(self, ids: Id | Iterable[Id]) -> None:
        """Remove documents with all their passages, all or none."""
        if not self.has_passages:
            self.index.remove(ids)
            return
        wanted = as_ids(ids)
        check_known(wanted, self.existing(wanted))
        whole = [id for id in wanted if self._is_whole(id)]
        self.index.remove(whole, prefixes=map(passage_prefix, wanted))

    def find(self, queries: EncodedQueries, k: int, options: SearchOptions) -> list[list[Found]]:
        """Return the hits of the best documents of each query."""
        least = None
        if queries.own is not None:
            least = options.min_mean_score
            options = replace(options, min_mean_score=None)
        if self.has_passages:
            hits = self.find_by_passages(queries, k, options)[0]
        else:
            hits = self._find(queries, k, options)
        if queries.own is None:
            return [[Found(*hit, None) for hit in row] for row in hits]
        found = []
        for row, means in zip(hits, self.index.mean_scores(queries.own, hits), strict=True):
            pairs = zip(row, means, strict=True)
            found.append([Found(*hit, mean) for hit, mean in pairs if least is None or mean >= least])
        return found

    def _find(self, queries: EncodedQueries, k: int, options: SearchOptions) -> list[list[Hit]]:
        texts = [] if options.mode == "vectors" else queries.texts
        return self.index.find(queries.vectors, k, texts, options)

    def find_by_passages(self, queries: EncodedQueries, k: int, options: SearchOptions) -> tuple[list[list[Hit]], int]:
        """Return the best documents' hits, and how many passages had to be searched for `k` documents."""
        waiting = list(range(len(queries)))
        best: list[list[Hit]] = [[] for _ in waiting]
        most = max(k, len(self.index))
        limit = min(_PASSAGES * k, most)
        while True:
            unfinished = []
            asked = queries if len(waiting) == len(queries) else queries.rows(waiting)
            for row, hits in zip(waiting, self._find(asked, limit, options), strict=True):
                documents: dict[tuple[type, Id], Hit] = {}
                for hit in hits:
                    document = self.document(hit.id)
                    documents.setdefault((type(document), document), hit)
                best[row] = list(documents.values())[:k]
                if len(best[row]) < k and len(hits) == limit < most:
                    unfinished.append(row)
            if not unfinished:
                return best, limit
            waiting = unfinished
            limit = min(_PASSAGES * limit, most)

    def results(self, hits: Sequence[Sequence[Found]]) -> list[Results]:
        """Return hits of `find` with the texts and the metadata that are stored; each document is read once."""
        ids = list(dict.fromkeys(hit.id for row in hits for hit in row))
        if ids:
            records = dict(zip(ids, self.index.get(ids), strict=True))
        else:
            records = {}
        least = weak_below(self.index)
        found = []
        for row in hits:
            results = Results()
            for id, score, mean in row:
                weak = None if mean is None or least is None else mean < least
                _, text, metadata = records[id]
                if self.has_passages:
                    passage = decode_passage_id(id)
                else:
                    passage = None
                if passage is None:
                    results.append(Result(id, score, text, metadata, mean_score=mean, weak=weak))
                else:
                    place = passage.start, passage.end
                    results.append(Result(passage.document, score, text, metadata, *place, mean, weak))
            found.append(results)
        return found

    def document(self, id: Id) -> Id:
        """Return the id of the document that an id in the index belongs to."""
        if self.has_passages:
            passage = decode_passage_id(id)
        else:
            passage = None
        if passage is None:
            return id
        return passage.document

    def _is_whole(self, id: Id) -> bool:
        """Whether a document is stored under its own id; an id that spells that of a passage is no such document."""
        return id in self.index and self.document(id) == id


def _joined(id: Id, records: Sequence[Record]) -> Record:
    """Return a document from its passages, with spaces for the white space between them, which none of them holds."""
    first = decode_passage_id(records[0].id)
    if first is None or records[0].text is None:
        return records[0]
    length = len(records[0].text) - (first.end - first.start)
    title = records[0].text[:length]
    text = ""
    for record in records:
        passage = decode_passage_id(record.id)
        if passage is not None and record.text is not None:
            own = record.text[len(record.text) - (passage.end - passage.start) :]
            text = text.ljust(passage.start) + own[max(len(text) - passage.start, 0) :]
    return Record(id, title + text, records[0].metadata)
