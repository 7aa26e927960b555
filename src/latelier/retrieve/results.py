"""What a search of documents returns: encoded queries, hits with their means, and results with texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from latelier.embeddings import TokenEmbeddings
from latelier.errors import LatelierError
from latelier.indexes import Hit, Id, Index, Passage, Record
from latelier.indexes.options import SearchOptions
from latelier.indexes.results import WEAK
from latelier.utils.checks import cut, printable
from latelier.utils.misc import Markup, bar, escape, fragment, table

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
    text that the user gave, in characters, which is ``retriever.documents[id].text``. If the document has a title, the
    passage begins with it, so the last ``end - start`` characters of the text are those of that place. The metadata has
    the passage's own values too, such as its page. For whole documents, both are None.

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


class Found(NamedTuple):
    """A hit in an index, and its mean score, see `Result`."""

    hit: Hit
    mean_score: float | None


def find(index: Index, queries: EncodedQueries, k: int, options: SearchOptions) -> list[list[Found]]:
    """Return the best documents of each query."""
    least = None
    if queries.own is not None:
        least = options.min_mean_score
        options = replace(options, min_mean_score=None)
    texts = [] if options.mode == "vectors" else queries.texts
    hits = index.find(queries.vectors, k, texts, options)
    if queries.own is None:
        return [[Found(hit, None) for hit in row] for row in hits]
    found = []
    for row, means in zip(hits, index.mean_scores(queries.own, hits), strict=True):
        pairs = zip(row, means, strict=True)
        found.append([Found(hit, mean) for hit, mean in pairs if least is None or mean >= least])
    return found


def read_results(index: Index, found: Sequence[Sequence[Found]]) -> list[Results]:
    """Return what was found with the texts and the metadata that are stored; each document is read once."""
    ids = list(dict.fromkeys(each.hit.id for row in found for each in row))
    records = dict(zip(ids, index.get(ids), strict=True)) if ids else {}
    least = weak_below(index)
    return [Results(_result(records[each.hit.id], each, least) for each in row) for row in found]


def _result(record: Record, found: Found, least: float | None) -> Result:
    hit, mean = found
    weak = None if mean is None or least is None else mean < least
    text = record.text
    metadata = record.metadata
    passage = passage_at(record, hit.start, hit.end)
    if passage is not None and text is not None:
        text = passage.text_in(text)
    if passage is not None and passage.metadata:
        metadata = metadata | passage.metadata
    return Result(hit.id, hit.score, text, metadata, hit.start, hit.end, mean, weak)


def passage_at(record: Record, start: int | None, end: int | None) -> Passage | None:
    """Return the passage of a document with this range; None for a whole document."""
    return next((each for each in record.passages if (each.start, each.end) == (start, end)), None)
