"""`Index`: the contract of every index.

Indexes in this library's own storage derive from `latelier.indexes.stored_index.StoredIndex`, which implements all
but a few hooks. Adapters to other engines derive from `Index` itself. One suite in `tests/indexes` tests them all.

The user chooses the ids; they never change and keep their type: 1 and "1" are two documents. A document is stored
whole, or in passages: ranges of its text with a matrix each. Ids, hits and counts are those of documents all the same,
and a hit has the best passage of its document. Each call that writes is one transaction: other threads and processes
see all of its changes or none, and an error leaves the index unchanged.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import InvalidArgumentError
from latelier.indexes.options import (
    SEARCH_DEFAULTS,
    SEARCH_OPTIONS,
    Parameters,
    SearchKeywords,
    SearchOptions,
    Tokenizer,
    check_texts,
    default_mode,
)
from latelier.indexes.packing import GivenDocuments, prepare_queries
from latelier.indexes.ranking import exact_scores
from latelier.indexes.results import (
    CheckReport,
    FieldValues,
    Hit,
    IndexStatistics,
    MemoryReport,
    StageLoss,
    VerifyReport,
    WhyNotReport,
)
from latelier.indexes.store.sources import Changes, FileState, Seen, Source
from latelier.indexes.why_not import why_not_by_vectors
from latelier.scores.maxsim import TopK, maxsim
from latelier.utils.checks import check_count, did_you_mean, short
from latelier.utils.misc import NotCopied, show_options
from latelier.utils.values import Id, as_id

if TYPE_CHECKING:
    from typing_extensions import Unpack

PathLike: TypeAlias = "str | os.PathLike[str]"
"""A path, as a str or as an object such as `pathlib.Path`."""
Ranges: TypeAlias = "Sequence[tuple[int | None, int | None] | None]"
"""Of each of some documents, the range of one of its passages; None for all of it, as a `Hit` has it."""


NO_CHANGES = Changes()
# What other packages of the library call, and no user: not among the names that `dir()` and editors show.
_BETWEEN_PACKAGES = frozenset(
    {
        "checked_options",
        "existing",
        "find",
        "find_loss",
        "mean_scores",
        "origins",
        "token_mean",
        "working_memory",
        "write",
    }
)


class Index(NotCopied, ABC):
    """Documents as token vectors, searched by MaxSim.

    Parameters
    ----------
    path
        Folder of the index; ``None`` keeps it in memory.

    Examples
    --------
    >>> import numpy as np
    >>> from latelier import indexes
    >>> index = indexes.Flat()
    >>> index.add(
    ...     ["a", "b"],
    ...     [np.eye(2), np.ones((1, 2))],
    ...     metadata=[{"year": 2019}, {"year": 2024}],
    ... )
    >>> index.search(np.array([[1.0, 0.0], [1.0, 1.0]]), k=1)
    [[Hit(id='b', score=3.0)]]
    >>> query = np.array([[1.0, 0.0]])
    >>> index.search(query, filter="year < ?", parameters=(2020,))
    [[Hit(id='a', score=1.0)]]
    """

    kind: ClassVar[str]
    """Name of the kind, such as ``"flat"``."""
    path: Path | None
    search_options: tuple[str, ...] = ()
    """The options of `search` that this index has and not every other: of `effort` and those that follow."""

    def add(
        self,
        ids: Id | Iterable[Id],
        embeddings: Any,
        texts: str | Iterable[str | None] | None = None,
        metadata: Mapping[str, Any] | Iterable[Mapping[str, Any] | None] | None = None,
        *,
        ranges: Iterable[Any] | None = None,
        show_progress: bool = False,
    ) -> None:
        """Add documents; after an error, none has been added.

        Parameters
        ----------
        ids
            One id per document, a non-empty ``str`` or a 64-bit ``int``. To add one document, give its id itself.
        embeddings
            One ``(tokens, dim)`` matrix per document, or for each of its ranges, in order: `TokenEmbeddings`, a list of
            numpy or torch matrices of any floating dtype, or any iterable of matrices or of `TokenEmbeddings`.
            Iterables are read batch by batch, together with the other arguments, so memory stays bounded. To add one
            document, give its matrix itself.
        texts, metadata
            One per document: a text or ``None``; a dict of JSON values or ``None``. `get` returns both. Filters can
            name the keys of the metadata.
        ranges
            One per document: the places of its passages in its text, in characters, as a list of ``(start, end)`` or
            of `Passage`; ``None`` for a whole document. Default: all documents are whole.
        show_progress
            Show a progress bar on stderr.

        Raises
        ------
        DuplicateIdError
            If an id is given twice or is in the index already.
        EmbeddingsError
            If a document has no token, holds NaN or infinity, or differs in dim from the other documents.
        InvalidArgumentError
            If the arguments differ in length, or an id, a text, metadata or ranges cannot be stored.

        Examples
        --------
        >>> import numpy as np
        >>> from latelier import indexes
        >>> index = indexes.Flat()
        >>> index.add("a", [np.eye(2), 2 * np.eye(2)], "Figs. Pears.", ranges=[(0, 5), (6, 12)])
        >>> [[hit]] = index.search(np.array([[1.0, 0.0]]))
        >>> hit, index.get("a").text[hit.start : hit.end], len(index)
        (Hit(id='a', score=2.0, start=6, end=12), 'Pears.', 1)
        """
        given = GivenDocuments(ids, embeddings, texts, metadata, ranges)
        self._write(given, replace=False, show_progress=show_progress)

    def update(
        self,
        ids: Id | Iterable[Id],
        embeddings: Any,
        texts: str | Iterable[str | None] | None = None,
        metadata: Mapping[str, Any] | Iterable[Mapping[str, Any] | None] | None = None,
        *,
        ranges: Iterable[Any] | None = None,
        show_progress: bool = False,
    ) -> None:
        """Replace whole documents, and insert those that are new; after an error, nothing has changed.

        A replaced document loses the text and metadata that are not given again, and moves to the end of the order of
        insertion.

        Parameters
        ----------
        ids, embeddings, texts, metadata, ranges, show_progress
            As for `add`.

        Raises
        ------
        DuplicateIdError
            If an id is given twice in this call.
        """
        given = GivenDocuments(ids, embeddings, texts, metadata, ranges)
        self._write(given, replace=True, show_progress=show_progress)

    def write(self, given: GivenDocuments, changes: Changes = NO_CHANGES, *, replace: bool | None = None) -> list[int]:
        """Store documents, and where documents came from, in one commit, as a `Retriever` does.

        Parameters
        ----------
        given
            The documents; an id that is None becomes the integer after the largest one.
        changes
            What else the commit changes.
        replace
            True and False: as `update` and `add`. None: of the documents in the index, only those rows are replaced
            that are `given.seen`; with another one, the document is not stored.

        Returns
        -------
        list of int
            The positions of the documents that were not stored.
        """
        return self._write(given, replace=replace, show_progress=False, changes=changes)

    @abstractmethod
    def _write(
        self,
        given: GivenDocuments,
        *,
        replace: bool | None,
        show_progress: bool,
        changes: Changes = NO_CHANGES,
    ) -> list[int]:
        """Store documents; see `write`."""

    @property
    @abstractmethod
    def origins(self) -> Origins:
        """Where the documents came from."""

    @abstractmethod
    def remove(self, ids: Id | Iterable[Id]) -> None:
        """Remove documents; after an error, none has been removed.

        Parameters
        ----------
        ids
            One id or several; an id may be given more than once.

        Raises
        ------
        UnknownIdError
            If an id is not in the index.
        """

    @show_options(**SEARCH_DEFAULTS)
    def search(
        self,
        queries: Any = None,
        k: int = 10,
        *,
        texts: str | Sequence[str] | None = None,
        **options: Unpack[SearchKeywords],
    ) -> list[list[Hit]]:
        """Return the `k` best documents of each query.

        Parameters
        ----------
        queries
            `TokenEmbeddings`, a list of ``(tokens, dim)`` matrices, or one matrix for one query. Every mode needs them
            except ``"keywords"``, for which they are None.
        k
            Maximum number of hits per query; there are fewer hits if fewer documents can be searched.
        texts
            The text of each query, or one text for one query; every mode needs them except ``"vectors"``. Default:
            none, so that only vectors are compared. They are plain text: a document is found if it has at least one of
            the first 256 distinct words, and a word counts as often as the query has it. A query without a word finds
            nothing by keywords.
        mode
            ``"vectors"``: MaxSim. ``"keywords"``: BM25 of the words of `texts`. ``"hybrid"``: both, fused.
            ``"rerank"``: the best `depth` documents by keywords, ordered by MaxSim. None (the default): ``"hybrid"`` if
            `texts` are given and the index has words (`has_words`), or for `fusion`, `weights` or `depth`, which ask
            for it; otherwise ``"vectors"``.
        fusion
            For ``"hybrid"``: ``"relative"`` (the default), the weighted sum of both scores, scaled to the range from 0
            to 1 (`latelier.indexes.ranking.fuse_scores`), or ``"rrf"``, reciprocal rank fusion
            (`latelier.indexes.ranking.fuse_ranks`).
        weights
            For ``"hybrid"``: the weights of vectors and keywords, by default 0.85 and 0.15.
        depth
            Documents that keywords find, at least `k`; by default ``max(20, k)`` for ``"hybrid"`` and ``max(100, 2 *
            k)`` for ``"rerank"``. For ``"hybrid"``, vectors contribute twice as many, and documents that only keywords
            have found are scored by MaxSim too, by their passage that keywords have found. Documents that only vectors
            have found get the keyword score of the last document found by keywords.
        filter
            An SQL expression that documents must meet: ``"year >= 2020 AND lang = ?"``. Its columns are ``id``,
            ``text`` and the keys of the metadata; see `latelier.indexes.filters`. Of a list of expressions,
            documents must meet all. Each is parsed separately, so ``["tenant = ?", untrusted]`` finds documents of
            one tenant only, whatever the string ``untrusted`` is. Default: all documents.
        parameters
            A sequence with the value of each ``?`` of the filter, or a dict with the value of each ``:name``.
        filter_timeout
            Maximum time for evaluating the filter, in seconds, by default 10; ``None`` for no limit.
        effort
            Of an approximate index: a factor that raises or lowers `nprobe`, `candidates` and the number of documents
            that are scored by their codes. ``"balanced"`` (the default) is 1.0, ``"fast"`` is 0.5, and any other
            positive number is allowed. ``"exact"`` scores all documents. `check` measures the recall of several
            efforts.
        nprobe
            Of `IVF`: number of inverted lists probed per query token; by default, on a CPU, 32 to 80 for effort 1.0 and
            up to ten million tokens, and more beyond.
        candidates
            Of `IVF`: number of documents from the probed lists that enter the binary stage, which scores them by their
            binary codes. By default, these are at most 500 whose imputed score is not far below that of the k-th; more
            for k > 25, fewer than 128 dims, higher efforts or more than ten million tokens. Of `Qdrant`: number of
            documents that are scored by MaxSim for each query; by default ``max(200, 10 * k) * effort``.
        min_score
            The least score of a hit; None for no limit. Scores depend on the mode, so that it has to be named where it
            is ``"hybrid"``.
        min_mean_score
            The least mean, over the vectors of the query, of their similarity with the best token of a hit, which is
            its MaxSim score by number of vectors, in every mode but ``"keywords"``. A `Retriever` takes the mean over
            the tokens of the text itself. None for no limit.

        Returns
        -------
        list of list of Hit
            One list per query, best first; equal scores in the order of insertion. Scores are those of the mode: MaxSim
            for ``"vectors"`` and ``"rerank"``, BM25 for ``"keywords"``, fused scores for ``"hybrid"``.

        Raises
        ------
        CorruptedIndexError
            If the keyword index, or a segment that the search needs, is damaged.
        EmbeddingsError
            If a query has no token, holds NaN or infinity, or has another dim than the index.
        InvalidArgumentError
            If `k` is not a positive integer, the index does not have an option, or the filter is rejected or cannot be
            evaluated.
        FilterTimeoutError
            If the filter takes too long.
        LatelierError
            If the mode needs keywords, and the index has no keyword index or no texts.
        """
        chosen = self.checked_options(options, is_text=texts is not None)
        if chosen.whole_query:
            raise InvalidArgumentError(
                "received whole_query=True for vectors; it is for texts, which a Retriever encodes."
            )
        return self.find(queries, check_count("k", k), check_texts(texts, chosen.mode), chosen)

    def checked_options(self, keywords: Mapping[str, Any], *, is_text: bool) -> SearchOptions:
        """Return the options of a search, checked, as this index accepts them, with their mode.

        `is_text`: whether the query is given as a text.
        """
        known = [name for name, option in SEARCH_OPTIONS.items() if not option.of_some_indexes]
        known += self.search_options
        for name, value in keywords.items():
            is_of_others = name in SEARCH_OPTIONS and name not in known
            if name not in SEARCH_OPTIONS or (is_of_others and value is not None):
                meant = did_you_mean(name, [*known, "k"])
                raise InvalidArgumentError(
                    f"a search of {type(self).__name__} has no option {short(name)}; its options are "
                    f"{', '.join(known)}.{meant}"
                )
        mode = keywords.get("mode")
        if mode is None:
            mode = default_mode(keywords, can_be_hybrid=is_text and self.has_words)
        return SearchOptions(**{**keywords, "mode": mode})

    def find(self, queries: Any, k: int, texts: list[str], options: SearchOptions) -> list[list[Hit]]:
        """Search with checked options; see `search`, which calls it. `texts`: empty for ``mode="vectors"``."""
        return self._above(self._find(queries, k, texts, options), queries, options)

    def _above(self, hits: list[list[Hit]], queries: Any, options: SearchOptions) -> list[list[Hit]]:
        """Return the hits that reach the thresholds of a search."""
        if options.min_mean_score is not None:
            means = self.mean_scores(prepare_queries(queries, self.dim), hits)
            pairs = [zip(row, own, strict=True) for row, own in zip(hits, means, strict=True)]
            hits = [[hit for hit, mean in row if mean >= options.min_mean_score] for row in pairs]
        if options.min_score is not None:
            hits = [[hit for hit in row if hit.score >= options.min_score] for row in hits]
        return hits

    @abstractmethod
    def _find(self, queries: Any, k: int, texts: list[str], options: SearchOptions) -> list[list[Hit]]:
        """Return the best documents, whatever their scores; see `find`."""

    def highest_scores(self, texts: Sequence[str]) -> list[float] | None:
        """Return for each text a score by keywords that no document exceeds; None where that is not known."""
        return None

    def near_words(self, text: str) -> dict[str, str]:
        """Return for each word of a text that no document has what it is nearly spelled as, if there is such a word.

        Short words and numbers are left out, as are all words where the index does not know its own, as in Qdrant.

        Examples
        --------
        >>> import numpy as np
        >>> from latelier import indexes
        >>> index = indexes.Flat()
        >>> index.add("a", np.eye(2), "Peel the garlic.")
        >>> index.near_words("galric bread")
        {'galric': 'garlic'}
        """
        return {}

    def mean_scores(self, queries: TokenEmbeddings, hits: Sequence[Sequence[Hit]]) -> list[list[float]]:
        """Return MaxSim by number of query vectors for the hits of each query, by their stored vectors."""
        means: list[list[float]] = [[0.0] * len(row) for row in hits]
        places: dict[Hit, list[tuple[int, int]]] = {}
        for i, row in enumerate(hits):
            for place, hit in enumerate(row):
                places.setdefault(hit.scored(0.0), []).append((i, place))
        found = list(places)
        for first in range(0, len(found), _CHUNK):  # each document is read once
            chunk = found[first : first + _CHUNK]
            ranges = [(hit.start, hit.end) for hit in chunk]
            documents = self.get_embeddings([hit.id for hit in chunk], ranges).to("float32")
            wanted: dict[int, list[tuple[int, int]]] = {}
            for number, same in enumerate(chunk):
                for i, place in places[same]:
                    wanted.setdefault(i, []).append((number, place))
            for i, pairs in wanted.items():
                query = queries[i : i + 1]
                scores = maxsim(query, documents[[number for number, _ in pairs]])[0]
                for (_, place), score in zip(pairs, scores.tolist(), strict=True):
                    means[i][place] = score / query.num_tokens
        return means

    @abstractmethod
    def get(self, ids: Id | Iterable[Id]) -> Any:
        """Return the texts and metadata of documents.

        Parameters
        ----------
        ids
            One id or several.

        Returns
        -------
        Record or list of Record
            A `Record` for one id; for an iterable of ids, one `Record` per id in the same order.

        Raises
        ------
        UnknownIdError
            If an id is not in the index.
        """

    @abstractmethod
    def get_embeddings(self, ids: Id | Iterable[Id], ranges: Ranges | None = None) -> TokenEmbeddings:
        """Return the stored vectors of documents.

        Parameters
        ----------
        ids
            One id or several.
        ranges
            Of each, the range of the one passage that is wanted, such as ``(hit.start, hit.end)``; None, or
            ``(None, None)``, for all of its passages. Default: all.

        Returns
        -------
        TokenEmbeddings
            One matrix per document, or for each of its passages, in the same order: what `add` takes.

        Raises
        ------
        InvalidArgumentError
            If a document has no passage with this range.
        UnknownIdError
            If an id is not in the index.
        """

    @abstractmethod
    def ids(self) -> list[Id]:
        """Return all ids in the order of insertion."""

    @property
    @abstractmethod
    def dim(self) -> int | None:
        """Dimension of the token vectors; ``None`` while the index is empty."""

    @property
    def nbits(self) -> int | None:
        """Bits per number of quantised vectors; ``None`` if vectors are stored in floating point.

        Searches of an index with quantised vectors accept ``effort="exact"``, which scores every document.
        """
        return None

    @property
    def dtype(self) -> str:
        """Floating type of the vectors that `get_embeddings` returns."""
        return "float32"

    @property
    def read_only(self) -> bool:
        """Whether writing raises an error."""
        return False

    @property
    @abstractmethod
    def tokenizer(self) -> str | None:
        """Tokenizer of the keyword index; None if the index has none."""

    @property
    def has_words(self) -> bool:
        """Whether a search for a text is hybrid by default.

        It is if there is a keyword index and a document has a text with a word, or there is no document yet.

        Examples
        --------
        >>> from latelier import indexes
        >>> index = indexes.Flat()
        >>> index.add("a", np.eye(2))
        >>> before = index.has_words
        >>> index.add("b", np.eye(2), "Bananas are healthy.")
        >>> before, index.has_words
        (False, True)
        """
        # An empty index is one with words, so that its first documents do not change what a search means.
        return self._holds_words() or (self.tokenizer is not None and not len(self))

    @abstractmethod
    def _holds_words(self) -> bool:
        """Whether there is a keyword index, and a document has a text with a word."""

    @property
    def memory(self) -> MemoryReport:
        """What the index takes in memory of this machine, and what it reads from its files; prints as a table.

        Examples
        --------
        >>> from latelier import indexes
        >>> index = indexes.Flat(max_memory="1GB")
        >>> index.add("a", np.eye(4))
        >>> index.memory.kept, index.memory.read
        ({'vectors': 64}, {})
        """
        return MemoryReport(None, 0, 0, {}, {})

    @property
    def working_memory(self) -> int | None:
        """Bytes of temporary arrays within the memory budget; ``None`` without a budget."""
        memory = self.memory
        if memory.budget is None:
            return None
        return memory.working

    @property
    @abstractmethod
    def fields(self) -> list[str]:
        """The keys of the metadata that filters can name, sorted; those of removed documents stay."""

    def field_values(
        self,
        most: int = 20,
        *,
        field: str | None = None,
        prefix: str = "",
        filter: str | Sequence[str] | None = None,
        parameters: Parameters = (),
    ) -> list[FieldValues]:
        """Return the values that documents have in each field; `Qdrant` and `Sharded` give names only.

        Parameters
        ----------
        most
            Maximum number of values of a field.
        field, prefix
            One field instead of all; only values whose spelling begins with `prefix`, in either case of Latin letters.
        filter, parameters
            Only documents that a filter selects, as in `search`.

        Returns
        -------
        list of FieldValues
            In the order of `fields`.

        Examples
        --------
        >>> import numpy as np
        >>> from latelier import indexes
        >>> index = indexes.Flat()
        >>> years = [{"year": 2024}, {"year": 2026}]
        >>> index.add(["a", "b"], [np.eye(2)] * 2, metadata=years)
        >>> [(each.value, each.documents) for each in index.field_values()[0].values]
        [(2024, 1), (2026, 1)]
        """
        options = SearchOptions(mode="vectors", filter=filter, parameters=parameters)
        return self._field_values(field, options, most=most, prefix=prefix)

    def _field_values(self, field: str | None, options: SearchOptions, **chosen: Any) -> list[FieldValues]:
        """Return the names of the fields alone; an index that counts their values overrides it."""
        return [FieldValues(each) for each in self.fields if field in (None, each)]

    @property
    @abstractmethod
    def settings(self) -> MutableMapping[str, Any]:
        """JSON values that users and tools store in the index; each assignment is a commit."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context in which all reads of this thread see one commit, whatever others write meanwhile.

        Within the ``with`` block this thread cannot write. The block must end in the thread that began it. With an
        index in memory, other threads wait until it ends. For engines without snapshots, this method does nothing.

        Examples
        --------
        >>> import numpy as np
        >>> from latelier import indexes
        >>> index = indexes.Flat()
        >>> index.add("a", np.eye(2), texts="first")
        >>> with index.snapshot():
        ...     [[hit]] = index.search(np.eye(2), k=1)
        ...     index.get(hit.id).text
        'first'
        """
        return nullcontext()

    @abstractmethod
    def compact(
        self, *, keywords: bool | None = None, tokenizer: Tokenizer | None = None, show_progress: bool = False
    ) -> None:
        """Merge small segments, and free the space of removed documents.

        Searches continue meanwhile, in this process and in others. Damaged segments stay as they are; an
        `IndexDamageWarning` names them.

        Parameters
        ----------
        keywords
            True makes the keyword index of all texts, in place of the present one, if any; it is the cure for a damaged
            one. False drops it; None leaves it.
        tokenizer
            Tokenizer of the keyword index that ``keywords=True`` makes; None keeps the present one.
        show_progress
            Show a progress bar on stderr.

        Raises
        ------
        CorruptedIndexError
            If the keyword index is damaged, and `keywords` is None.
        """

    def check(self, k: int = 10, *, queries: int = 20) -> CheckReport:
        """Measure recall@k of `search` against exact scores, with parts of documents of the index as queries.

        The exact scores are those of the stored vectors: the loss from coding, as in an `IVF`, is not included. Of an
        approximate index, several efforts are measured.

        Parameters
        ----------
        k
            Number of hits to compare.
        queries
            Number of documents to use as queries, spread evenly over the index. Each query is compared with every
            document.

        Returns
        -------
        CheckReport
            The recall of the default effort; prints as one line. Its `advice` recommends an effort, if the index has
            efforts.
        """
        with self.snapshot():
            return _measure_recall(self, check_count("k", k), check_count("queries", queries))

    @show_options(**SEARCH_DEFAULTS)
    def why_not(self, query: Any, id: Id, k: int = 10, **options: Unpack[SearchKeywords]) -> WhyNotReport:
        """Return why a search does not find a document, and what would find it.

        The changes are found by searching with them, which takes up to a hundred searches. The report shows metadata of
        the document even if the filter excludes it: do not show it to users from whom the filter hides documents.

        Parameters
        ----------
        query
            One query: a ``(tokens, dim)`` matrix.
        id
            The document.
        k, **options
            Those of the search, see `search`; ``mode="vectors"`` only.

        Returns
        -------
        WhyNotReport
            The causes and the changes; or the rank, if the document is among the hits. Prints as text.

        Raises
        ------
        EmbeddingsError, InvalidArgumentError, FilterTimeoutError
            As `search` does; also if `query` holds several queries, or no document can have the id.
        """
        chosen = self.checked_options(options, is_text=False)
        if chosen.mode != "vectors":
            raise InvalidArgumentError(
                f"received mode={chosen.mode!r}; why_not of an index examines mode='vectors', and that of a Retriever "
                "every mode."
            )
        with self.snapshot():
            return why_not_by_vectors(self, query, id, check_count("k", k), chosen)

    def find_loss(self, query: Any, id: Id, k: int, options: SearchOptions) -> StageLoss | None:
        """Return the stage in which an approximate search loses a document that the filter selects.

        None if the search scores the document.
        """
        return None

    @abstractmethod
    def statistics(self) -> IndexStatistics:
        """Return how much the index holds, and on how many bytes.

        Returns
        -------
        IndexStatistics
            Numbers of documents, tokens and bytes.
        """

    @abstractmethod
    def verify(self) -> VerifyReport:
        """Read every stored byte and compare it with its checksum.

        Returns
        -------
        VerifyReport
            The damaged files and the ids of their documents; prints as text.
        """

    @abstractmethod
    def close(self) -> None:
        """Close files and free memory. Closing twice is allowed; any other use of a closed index raises an error."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def existing(self, ids: Sequence[Id]) -> dict[Id, int]:
        """Return those of some ids that documents have, with their numbers, by one look at the index.

        A number says which version of a document is stored: whatever replaces it gets a higher one.

        Parameters
        ----------
        ids
            Any ids, in any order; unlike ``id in index``, many cost little more than one.
        """

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _BETWEEN_PACKAGES]

    def __contains__(self, id: object) -> bool:
        try:
            known = as_id(id)
        except InvalidArgumentError:
            return False
        return bool(self.existing([known]))


class Origins(ABC):
    """Reads where the documents of an index came from; `Index.write` writes it."""

    @abstractmethod
    def sources(self) -> list[Source]:
        """Return the folders and files that the index was filled from."""

    @abstractmethod
    def files(self, source: str) -> dict[str, FileState]:
        """Return the files of a source, by its key, by their names."""

    @abstractmethod
    def counts(self, source: str) -> dict[str, int]:
        """Return how many documents there are of each file, without those that are missing in it."""

    @abstractmethod
    def documents(self, source: str, file: str | None = None) -> dict[Id, Seen]:
        """Return the documents of a file, or of all files, in the order of their insertion."""

    @abstractmethod
    def missing(self, source: str) -> dict[Id, Seen]:
        """Return the documents of a source that are missing in their files."""

    @abstractmethod
    def seen(self, ids: Sequence[Id]) -> dict[Id, Seen]:
        """Return those of some ids that documents have, with their rows."""


def check_ranges(ranges: Ranges | None, count: int) -> list[tuple[int, int] | None] | None:
    """Return the ranges of `Index.get_embeddings`, as many as there are ids; None if all are None."""
    if ranges is None:
        return None
    found = [None if each is None or None in each else (int(each[0] or 0), int(each[1] or 0)) for each in ranges]
    if len(found) != count:
        raise InvalidArgumentError(f"received {count} ids and {len(found)} ranges; give one of each per document.")
    if not any(found):
        return None
    return found


# A hit counts as found if score >= s - _TOLERANCE * max(1, |s|), s being the exact score of the k-th best document:
# scores of the index are in single precision.
_TOLERANCE = 1e-5
# A document that serves as a query is cut to this many tokens, the usual length of a query, and loses each third one,
# as a question about a text leaves words out: whole short texts are easier to find than what is asked about them.
_QUERY_TOKENS = 32
_LEFT_OUT = 3
# Number of documents scored at a time.
_CHUNK = 256
# Efforts that are measured of an index that has them, the default first; the recommended one has this recall at least.
_EFFORTS = (1.0, 0.5, 2.0, 4.0)
_ENOUGH = 0.97


def sample_queries(index: Index, ids: Sequence[Id], queries: int) -> TokenEmbeddings:
    """Return most of the first tokens of some documents, spread evenly over the index, or of their first passages."""
    spread = np.unique(np.linspace(0, len(ids) - 1, min(len(ids), queries)).astype("int64"))
    records = index.get([ids[i] for i in spread])
    firsts = [record.passages[0][:2] if record.passages else None for record in records]
    documents = index.get_embeddings([record.id for record in records], firsts)
    firsts_of = [matrix[:_QUERY_TOKENS] for matrix in documents]
    return TokenEmbeddings.from_list([each[np.arange(len(each)) % _LEFT_OUT != _LEFT_OUT - 1] for each in firsts_of])


def _measure_recall(index: Index, k: int, queries: int) -> CheckReport:
    """Search with documents of the index as queries; return the share of hits among the exact best `k`, 1 if empty."""
    ids = index.ids()
    if not ids:
        return CheckReport(k=k, recall=1.0, worst=1.0, queries=0, documents=0)
    sample = sample_queries(index, ids, queries)
    exact = TopK(len(sample), min(k, len(ids)))
    for first in range(0, len(ids), _CHUNK):
        chunk = ids[first : first + _CHUNK]
        counts = [len(record.passages) or 1 for record in index.get(chunk)]
        numbers = np.repeat(np.arange(first, first + len(chunk)), counts)
        exact.add(exact_scores(sample, index.get_embeddings(chunk)), numbers, numbers)

    def recalls(options: SearchOptions) -> np.ndarray:
        found = []
        for i, hits in enumerate(index.find(sample, k, [], options)):
            lowest = exact.scores[i][-1]
            ranges = [(hit.start, hit.end) for hit in hits]
            scores = exact_scores(sample[i : i + 1], index.get_embeddings([hit.id for hit in hits], ranges))[0]
            right = np.count_nonzero(scores >= lowest - _TOLERANCE * max(1.0, abs(lowest)))
            found.append(right / len(exact.scores[i]))
        return np.array(found)

    if "effort" not in index.search_options:
        own = recalls(SearchOptions(mode="vectors"))
        advice = ""
    else:
        by_effort = {effort: recalls(SearchOptions(mode="vectors", effort=effort)) for effort in _EFFORTS}
        own = by_effort[1.0]
        advice = _advise({effort: float(each.mean()) for effort, each in by_effort.items()})
    return CheckReport(k, float(own.mean()), float(own.min()), len(sample), len(ids), advice)


def _advise(recalls: Mapping[float, float]) -> str:
    """Recommend an effort, given the recall at several, which include 1.0."""
    effort = min((effort for effort, recall in recalls.items() if recall >= _ENOUGH), default=None)
    if effort is None:
        return f"approximate recall stays below {_ENOUGH} at every effort tried; use effort='exact'"
    if effort > 1:
        return f"search with effort={effort} to find {recalls[effort]:.3f}"
    if effort < 1:
        return f"effort='fast' finds {recalls[effort]:.3f} in about half the time"
    return ""
