"""What an index takes as ids and gives back: hits, records, reports, statistics."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from latelier.errors import Advice, DuplicateIdError, IndexDamageWarning, InvalidArgumentError, UnknownIdError
from latelier.utils.checks import describe, format_bytes, is_unicode, short
from latelier.utils.files import parse_json
from latelier.utils.misc import bar, escape, fragment, table, warn_caller
from latelier.utils.values import Id, encode_fields, plain_str


class _Scored(NamedTuple):
    """The two values of a `Hit` as a tuple."""

    id: Id
    score: float


class Hit(_Scored):
    """A document found by a search: its id and its MaxSim score; higher is better.

    It is a tuple of both, ``for id, score in hits``, with these names, and can also be read like a dict: ``hit["id"]``,
    ``dict(hit)``. Of a document that is stored in passages, `start` and `end` are the range of its best passage, whose
    score it is: ``text[start:end]`` of the text of its `Record`. Of a whole document, both are None. In hybrid search,
    where the score is a fused one, `vector_score` is the MaxSim score; it is None elsewhere.

    Examples
    --------
    >>> hit = Hit("a", 3.5)
    >>> hit.id, hit.score, hit.start
    ('a', 3.5, None)
    >>> hit["id"], hit[0], dict(hit), hit == ("a", 3.5)
    ('a', 'a', {'id': 'a', 'score': 3.5}, True)
    >>> Hit("a", 3.5, 10, 25)
    Hit(id='a', score=3.5, start=10, end=25)
    """

    start: int | None = None
    end: int | None = None
    vector_score: float | None = None

    def __new__(cls, id: Id, score: float, start: int | None = None, end: int | None = None) -> Hit:
        """Return a hit."""
        hit = super().__new__(cls, id, score)
        if start is not None:
            hit.start = start
            hit.end = end
        return hit

    def __getitem__(self, key: Any) -> Any:
        """Return a field by name or position, or a slice."""
        if isinstance(key, str):
            return dict(zip(self.keys(), (*self, self.start, self.end), strict=False))[key]
        return tuple.__getitem__(self, key)

    def __eq__(self, other: object) -> bool:
        is_same = tuple.__eq__(self, other) is True
        return is_same and (not isinstance(other, Hit) or (self.start, self.end) == (other.start, other.end))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        return f"Hit({', '.join(f'{name}={self[name]!r}' for name in self.keys())})"

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields, so that ``dict(hit)`` and ``f(**hit)`` work; the range only if it has one."""
        if self.start is None:
            return ("id", "score")
        return ("id", "score", "start", "end")

    def scored(self, score: float) -> Hit:
        """Return the same document and passage with another score."""
        return Hit(self.id, score, self.start, self.end)


class Passage(NamedTuple):
    """A passage of a document: ``text[start:end]`` of its text, in characters.

    `title` is what stands before it where it is read and searched for words. `metadata` are values of its own beside
    those of the document, such as its page; None if it has none.

    Examples
    --------
    >>> Passage(5, 12, title="Fruit").text_in("Buy: bananas!")
    'Fruit bananas'
    """

    start: int
    end: int
    title: str = ""
    metadata: dict[str, Any] | None = None

    def text_in(self, text: str) -> str:
        """Return the passage of a text, after its title."""
        between = "\n" if "\n" in self.title else " "
        return between.join(filter(None, (self.title, text[self.start : self.end])))


class _Described(NamedTuple):
    """The values of a `Record` as a tuple."""

    id: Id
    text: str | None
    metadata: dict[str, Any]


class Record(_Described):
    """Text and metadata of one document, a tuple of its id and both; ``metadata`` is ``{}`` if none was given.

    `passages` are those that the document is stored in; there are none of a whole one.

    Examples
    --------
    >>> Record("a", None, {"year": 2024}).metadata["year"]
    2024
    >>> Record("a", "Buy: bananas!", {}, (Passage(5, 12),))
    Record(id='a', text='Buy: bananas!', metadata={}, passages=(Passage(start=5, end=12, title='', metadata=None),))
    """

    passages: tuple[Passage, ...] = ()

    def __new__(cls, id: Id, text: str | None, metadata: dict[str, Any], passages: tuple[Passage, ...] = ()) -> Record:
        """Return a record."""
        record = super().__new__(cls, id, text, metadata)
        if passages:
            record.passages = passages
        return record

    def __eq__(self, other: object) -> bool:
        is_same = tuple.__eq__(self, other) is True
        return is_same and (not isinstance(other, Record) or self.passages == other.passages)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        passages = f", passages={self.passages!r}" if self.passages else ""
        return f"Record(id={self.id!r}, text={self.text!r}, metadata={self.metadata!r}{passages})"


@dataclass(frozen=True)
class CheckReport:
    """Recall of a search, measured against exact scores.

    Parameters
    ----------
    k
        Number of hits compared per query.
    recall
        Fraction of the exact best `k` that were found, averaged over all queries; tied documents count as found.
    worst
        The lowest recall of a query.
    queries, documents
        Number of queries used, and number of documents searched.
    advice
        A recommendation, such as an effort that raises a low recall; empty if there is none.

    Examples
    --------
    >>> report = CheckReport(10, 0.985, worst=0.9, queries=20, documents=1500)
    >>> print(str(report).partition(":")[0])
    recall@10 0.985 (worst query 0.900) against exact scores
    """

    k: int
    recall: float
    worst: float
    queries: int
    documents: int
    advice: str = ""

    def __str__(self) -> str:
        measured = (
            f"recall@{self.k} {self.recall:.3f} (worst query {self.worst:.3f}) against exact scores: "
            f"{self.queries:,} of its own documents as queries, {self.documents:,} searched"
        )
        if self.advice:
            return f"{measured}; {self.advice}"
        return measured

    def _repr_html_(self) -> str:
        rows = [
            (f"recall@{self.k}", bar(f"{self.recall:.3f}", self.recall)),
            ("of the worst query", bar(f"{self.worst:.3f}", self.worst)),
        ]
        caption = f"{self.queries:,} of its own documents as queries, {self.documents:,} searched"
        parts = [table(["against exact scores", ""], rows, caption=caption)]
        return fragment(*parts, *([self.advice] if self.advice else []))


@dataclass(frozen=True)
class Damage:
    """A damaged file.

    Parameters
    ----------
    file
        Path, relative to the folder of the index.
    reason
        What is wrong with it.
    ids
        Ids of the documents that cannot be read because of it.

    Examples
    --------
    >>> print(Damage("segments/1/vectors.npy", "it is missing", ("a", "b")))
    segments/1/vectors.npy: it is missing (2 documents)
    """

    file: str
    reason: str
    ids: tuple[Id, ...]

    def __str__(self) -> str:
        return f"{self.file}: {self.reason} ({len(self.ids):,} documents)"


@dataclass(frozen=True)
class VerifyReport:
    """Damage of an index, found by comparing all files with their checksums.

    Parameters
    ----------
    files
        Number of files that were read.
    damages
        The damaged files.

    Examples
    --------
    >>> damage = Damage("segments/1/vectors.npy", "it is missing", ("a", "b"))
    >>> report = VerifyReport(files=4, damages=(damage,))
    >>> print(report)
    1 of 4 files damaged:
      segments/1/vectors.npy: it is missing (2 documents)
    >>> report.is_whole, report.ids
    (False, ['a', 'b'])
    """

    files: int
    damages: tuple[Damage, ...]

    @property
    def is_whole(self) -> bool:
        """Whether no damage was found."""
        return not self.damages

    @property
    def ids(self) -> list[Id]:
        """Ids of the damaged documents, without duplicates; `update` or `remove` them to repair the index."""
        return list(dict.fromkeys(id for damage in self.damages for id in damage.ids))

    def __str__(self) -> str:
        if self.is_whole:
            return f"all {self.files} files are whole"
        return "\n  ".join([f"{len(self.damages)} of {self.files} files damaged:", *map(str, self.damages)])

    def _repr_html_(self) -> str:
        if self.is_whole:
            return fragment(str(self))
        rows = [(damage.file, damage.reason, len(damage.ids)) for damage in self.damages]
        caption = f"{len(self.damages):,} of {self.files:,} files damaged"
        return fragment(table(["file", "damage", "documents"], rows, caption=caption))


@dataclass(frozen=True)
class ValueCount:
    """A value, and how many documents have it.

    Examples
    --------
    >>> ValueCount("en", documents=2).documents
    2
    """

    value: int | float | str
    documents: int


@dataclass(frozen=True)
class FieldValues:
    """What the documents of an index have in one field of their metadata.

    Parameters
    ----------
    field
        The key of the metadata.
    values
        Values with the number of their documents, most frequent first; None if this kind of index does not count them.
        Booleans are 0 and 1, objects are JSON; of a list, each element is a value.
    is_complete
        Whether these are all values. If not, they are the most frequent ones of the first 100,000 documents.
    least, greatest
        Limits of the values; None if some are numbers and others are texts.
    has_lists
        Whether some documents have a list. ``EXISTS (SELECT 1 FROM json_each(field) WHERE value = ?)`` is a filter by
        an element.

    Examples
    --------
    >>> FieldValues("year", None, False, 1998, 2026).least
    1998
    """

    field: str
    values: list[ValueCount] | None = None
    is_complete: bool = False
    least: int | float | str | None = None
    greatest: int | float | str | None = None
    has_lists: bool = False


@dataclass(frozen=True)
class MemoryReport:
    """What an index takes in memory, and what it reads from its files; all sizes in bytes.

    `tables` (where each document is) and `working` (temporary arrays) count always; `kept` arrays stay in memory once
    read, and those in `read` are read from their files for each search, with the same hits.
    """

    budget: int | None
    tables: int
    working: int
    kept: Mapping[str, int]
    read: Mapping[str, int]

    @property
    def most(self) -> int:
        """The most that the index takes, in bytes."""
        return self.tables + self.working + sum(self.kept.values())

    def __str__(self) -> str:
        if self.budget is None:
            budget = "without a budget"
        else:
            budget = f"of a budget of {format_bytes(self.budget)}"
        rows = [("tables of documents, in memory", self.tables), ("working memory", self.working)]
        rows += [(f"{name}, in memory once read", size) for name, size in self.kept.items()]
        rows += [(f"{name}, read from files for each search", size) for name, size in self.read.items()]
        head = f"memory: at most {format_bytes(self.most)} {budget}"
        return "\n".join([head, *(f"  {format_bytes(size):>9}  {what}" for what, size in rows)])


@dataclass(frozen=True)
class IndexStatistics:
    """What an index holds.

    Parameters
    ----------
    documents, tokens
        Number of documents and of their token vectors, without removed ones.
    removed
        Removed documents, or passages of them, with vectors that are still stored; `compact` frees them.
    bytes
        Size of all files of the index; 0 for an index in memory, None if it is unknown, as on a server of Qdrant.
    has_texts, has_metadata
        Whether a document has a text, and whether one has metadata.
    text_bytes
        Size of the stored texts in UTF-8; None if it is unknown.
    cut
        Documents that were longer than the model reads when a retriever stored them, those replaced or removed since
        included.
    passages
        Number of passages in which documents are stored; a whole document is none.

    Examples
    --------
    >>> statistics = IndexStatistics(10, 400, 0, 12_000, True, False)
    >>> statistics.bytes_per_document, statistics.bytes_per_token
    (1200.0, 30.0)
    """

    documents: int
    tokens: int
    removed: int
    bytes: int | None
    has_texts: bool
    has_metadata: bool
    text_bytes: int | None = None
    cut: int = 0
    passages: int = 0

    @property
    def bytes_per_document(self) -> float | None:
        """Bytes on disk per document, everything included; 0 if there are no documents, None if unknown."""
        return self._bytes_per(self.documents)

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes on disk per token vector, everything included; 0 if there are no documents, None if unknown."""
        return self._bytes_per(self.tokens)

    @property
    def bytes_per_text_byte(self) -> float | None:
        """Bytes on disk per byte of text, everything included; 0 if there is no text, None if unknown."""
        if self.text_bytes is None:
            return None
        return self._bytes_per(self.text_bytes)

    def _bytes_per(self, count: int) -> float | None:
        if self.bytes is None:
            return None
        if count:
            return self.bytes / count
        return 0.0


# Keys among the settings of an index that say nothing about what its vectors mean.
CUT = "cut_documents"
WEAK = "weak_results"


def stored_cut(settings: Mapping[str, Any]) -> int:
    """Return how many documents a retriever could not store whole; the settings may be a stranger's."""
    count = settings.get(CUT, 0)
    if isinstance(count, int):
        return count
    return 0


def warn_of_damage(problem: str) -> None:
    """Warn of damage found by a call that has nevertheless succeeded; the message says how to repair it."""
    warn_caller(
        f"{problem} verify() lists the damaged files and the ids of their documents: update() or remove() them, or "
        "restore the files from a backup.",
        IndexDamageWarning,
    )


CauseKind: TypeAlias = Literal[
    "not_stored",
    "filtered",
    "not_probed",
    "not_candidate",
    "binary_stage",
    "query_rounding",
    "scored_lower",
    "tied",
    "truncated",
    "below_threshold",
    "no_query_word",
    "keyword_rank",
    "vector_rank",
]

# Query tokens that the text shows: those that account for most of the difference.
_SHOWN_TOKENS = 5


@dataclass(frozen=True)
class Cause:
    """One reason why a search does not find a document.

    Parameters
    ----------
    kind
        ``"not_stored"``
            No document has the id.
        ``"filtered"``
            The filter excludes the document.
        ``"not_probed"``
            No token of the document is in a probed inverted list (`IVF`).
        ``"not_candidate"``
            Documents in the probed lists with higher imputed scores fill the `candidates` (`IVF`).
        ``"binary_stage"``
            Its binary codes score too low to be reranked (`IVF`).
        ``"query_rounding"``
            It scores lower with the query in 8 bits than in single precision (`IVF`).
        ``"scored_lower"``, ``"tied"``
            At least `k` documents have a higher score; or an equal one, and were added earlier.
        ``"truncated"``
            The end of its text was not encoded, and would score higher than what was encoded (`Retriever`).
        ``"below_threshold"``
            The search finds it, and `min_score` or `min_mean_score` leaves it out.
        ``"no_query_word"``, ``"keyword_rank"``, ``"vector_rank"``
            In a search that uses keywords: its text has no word of the query; or its rank by keywords, or by vectors,
            is too low (`Retriever`).
    text
        The reason as a sentence, with numbers.
    details
        The same numbers by name, as JSON values.

    Examples
    --------
    >>> cause = Cause("not_stored", "no document has the id 'A'", {"near": ["a"]})
    >>> print(cause)
    not_stored: no document has the id 'A'
    """

    kind: CauseKind
    text: str
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class StageLoss(NamedTuple):
    """The stage in which a search lost a document, with its parameter, if it has one, its value and the most of it."""

    cause: Cause
    parameter: str | None
    value: int = 0
    most: int = 0


@dataclass(frozen=True)
class Change:
    """A change with which the document is found; it was tested by really searching.

    Parameters
    ----------
    arguments
        Arguments and their new values; all others stay as they were. None is the default: no filter, and for a search
        parameter of `IVF` that of the effort.
    target
        What takes the arguments: ``"search"``, or after the documents were encoded again ``"model"``, or stored again
        ``"index"`` or in pieces ``"passages"``.

    Examples
    --------
    >>> print(Change({"k": 37}), Change({"nbits": 8}, "index"), sep="; ")
    search with k=37; store in an index with nbits=8
    """

    arguments: dict[str, Any]
    target: Literal["search", "model", "index", "passages"] = "search"

    def __str__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self.arguments.items() if value not in (None, ())]
        defaults = [name for name, value in self.arguments.items() if value is None]
        what = ", ".join([*given, *(f"no {name}" for name in defaults)])
        verb = {
            "search": "search with",
            "model": "encode documents again with",
            "index": "store in an index with",
            "passages": "store the text in passages:",
        }
        return f"{verb[self.target]} {what}"


class TokenDifference(NamedTuple):
    """One query token: its best similarity in the document, in the last hit, and the token if the text is known.

    Examples
    --------
    >>> TokenDifference(2, 0.25, other=0.75, token="fruit").difference
    -0.5
    """

    position: int
    similarity: float
    other: float
    token: str = ""

    @property
    def difference(self) -> float:
        """What the token adds to the score of the document beyond that of the last hit."""
        return self.similarity - self.other


@dataclass(frozen=True)
class WhyNotReport:
    """Why a search does not find a document; prints as text.

    Parameters
    ----------
    id, k
        The document, and the number of hits of the search.
    rank
        Rank of the document in the search; None if it is not among the hits.
    exact_rank
        Rank among all documents that the filter selects, by their stored vectors; None if it is not one of them.
    score
        Score of the document by its stored vectors; None if it is not one of them.
    last_id, last_score
        The last hit of the search; None if there is no hit.
    causes
        The reasons, the decisive one first; empty if the document is among the hits.
    changes
        What would find it, tested: each is enough alone. Those of the search come first.
    differences
        One per query token, in order, if the document scores lower than the last hit by vectors, or in hybrid has a
        rank by them that is too low; they sum to the difference of the scores by vectors.
    unexamined
        What could not be examined, and why.
    query
        The text of the query; None if it is not known.
    mode
        Mode of the search, see `Index.search`. Of one that uses keywords, the causes hold the ranks by keywords and by
        vectors; `exact_rank` and, unless the document is among the hits, `score` are None.

    Examples
    --------
    >>> import numpy as np
    >>> from latelier import indexes
    >>> index = indexes.Flat()
    >>> index.add(["a", "b"], [np.eye(2), np.ones((1, 2))])
    >>> report = index.why_not(np.array([[1.0, 1.0]]), "a", k=1)
    >>> [cause.kind for cause in report.causes], report.changes[0].arguments
    (['scored_lower'], {'k': 2})
    >>> print(report)
    'a' is not found with k=1: rank 2, score 1.000; the last hit 'b' scores 2.000.
      scored_lower: 1 document scores higher
        by query token: 0 -1.000
    It is found if you
      search with k=2
    """

    id: Id
    k: int
    rank: int | None = None
    exact_rank: int | None = None
    score: float | None = None
    last_id: Id | None = None
    last_score: float | None = None
    causes: tuple[Cause, ...] = ()
    changes: tuple[Change, ...] = ()
    differences: tuple[TokenDifference, ...] = ()
    unexamined: tuple[str, ...] = ()
    query: str | None = None
    mode: str = "vectors"

    @property
    def is_found(self) -> bool:
        """Whether the document is among the hits."""
        return self.rank is not None

    def __str__(self) -> str:
        lines = [self._headline()]
        for cause in self.causes:
            lines.append(f"  {cause}")
            if cause.kind in ("scored_lower", "vector_rank") and self.differences:
                largest = sorted(self.differences, key=lambda each: each.difference)[:_SHOWN_TOKENS]
                shown = ", ".join(f"{each.token or each.position} {each.difference:+.3f}" for each in largest)
                lines.append(f"    by query token: {shown}")
        lines += [f"  not examined: {reason}" for reason in self.unexamined]
        if self.changes:
            lines += ["It is found if you", *(f"  {change}" for change in self.changes)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        blocks = [escape(self._headline())]
        if self.causes or self.unexamined:
            rows: list[tuple[str, str]] = [(cause.kind, cause.text) for cause in self.causes]
            rows += [("not examined", reason) for reason in self.unexamined]
            blocks.append(table(["cause", ""], rows))
        if self.differences:
            tokens = [(each.token or each.position, *each[1:3], each.difference) for each in self.differences]
            blocks.append(table(["query token", short(self.id), short(self.last_id), "difference"], tokens))
        if self.changes:
            blocks.append(table(["it is found if you"], [(str(change),) for change in self.changes]))
        return fragment(*blocks)

    def _headline(self) -> str:
        if self.query is None:
            of = ""
        else:
            of = f" for {short(self.query)}"
        if self.rank is not None:
            return f"{short(self.id)} is found{of}: rank {self.rank} (k={self.k}), score {self.score:.3f}."
        if self.mode == "vectors":
            mode = ""
        else:
            mode = f" and mode={self.mode!r}"
        head = f"{short(self.id)} is not found{of} with k={self.k}{mode}"
        if self.score is not None:
            if self.exact_rank is None:
                rank = ""
            else:
                rank = f"rank {self.exact_rank}, "
            head += f": {rank}score {self.score:.3f}"
        if self.last_id is None or (self.score is None and self.mode == "vectors"):
            return f"{head}."
        return f"{head}; the last hit {short(self.last_id)} scores {self.last_score:.3f}."


_MOST_NAMED = 5  # ids in a message


def as_passages(ranges: Any, id: Id, text: str | None) -> tuple[Passage, ...]:
    """Return the ranges that a user gives for a document, whose text is known by now; None for a whole document."""
    if ranges is None:
        return ()
    try:
        passages = tuple(Passage(*each) for each in ranges)
    except TypeError:
        passages = ()
    if not passages:
        raise InvalidArgumentError(
            f"document {id!r} came with {describe(ranges)} as its ranges; give a list with (start, end) of each of its "
            "passages, or None for a whole document."
        )
    return tuple(_as_passage(each, id, text) for each in passages)


def _as_passage(passage: Passage, id: Id, text: str | None) -> Passage:
    start, end, title, metadata = passage
    most = _MOST_CHARACTERS if text is None else len(text)
    are_numbers = all(isinstance(each, (int, np.integer)) and not isinstance(each, bool) for each in (start, end))
    if not are_numbers or not 0 <= start <= end <= most:
        where = "" if text is None else f", whose text has {most:,} characters"
        raise InvalidArgumentError(
            f"document {id!r}{where} came with the range {(start, end)!s:.60}; give 0 <= start <= end, in characters "
            "of its text."
        )
    if not (isinstance(title, str) and is_unicode(title)):
        raise InvalidArgumentError(
            f"document {id!r} came with {describe(title)} as the title of a passage; give a str."
        )
    if metadata is not None:
        metadata = parse_json(encode_fields(metadata, id)[0]) or None
    return Passage(int(start), int(end), plain_str(title), metadata)


# Characters of a text that ranges can reach: of more, SQLite holds no text.
_MOST_CHARACTERS = 10**9


def duplicate_ids(ids: Iterable[Id], problem: str, advice: Advice | None = None) -> DuplicateIdError:
    """Return the error for ids that are given twice or are in the index already; `problem` says which of the two."""
    ids = list(ids)
    if len(ids) == 1:
        subject = "the id"
        verb = "is"
    else:
        subject = "the ids"
        verb = "are"
    return DuplicateIdError(f"{subject} {_name_some(ids)} {verb} {problem}.", advice=advice)


def check_known(ids: Iterable[Id], found: Container[Id]) -> None:
    """Raise `UnknownIdError` unless all of `ids` were found in the index."""
    unknown = [id for id in dict.fromkeys(ids) if id not in found]
    if unknown:
        raise UnknownIdError(f"no document has the id {_name_some(unknown)}.", advice="known-ids")


def _name_some(ids: list[Id]) -> str:
    if len(ids) > _MOST_NAMED:
        rest = f" and {len(ids) - _MOST_NAMED:,} more"
    else:
        rest = ""
    return ", ".join(map(repr, ids[:_MOST_NAMED])) + rest


def in_order(candidates: Any, order: Sequence[int], scores: Sequence[float]) -> Any:
    """Return the candidates of a reranker best first, with their scores: ids as hits; records and rows as they were.

    A column ``rank`` is counted anew from 0, as in PyTerrier.
    """
    if not hasattr(candidates, "iloc"):
        pairs = [(candidates[position], score) for position, score in zip(order, scores, strict=True)]
        return [{**each, "score": score} if isinstance(each, Mapping) else Hit(each, score) for each, score in pairs]
    ordered = candidates.iloc[list(order)].assign(score=list(scores))
    if "rank" in candidates:
        ordered = ordered.assign(rank=range(len(ordered)))
    return ordered
