"""`StoredIndex`: an index in this library's own storage, and how much memory a write may take.

A budget covers the resident memory that an index adds to its process: anonymous memory, and the pages of its files that
are mapped. It does not cover imported libraries, models, a GPU, or what the caller holds: embeddings handed in, and
results. Neither does it change what a search finds: of arrays that do not fit, mapped memory is given back after use.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import IndexFormatError, InvalidArgumentError, LatelierError
from latelier.indexes.base import NO_CHANGES, Index, Origins, PathLike, Ranges, check_ranges
from latelier.indexes.options import VECTORS_PER_WORD, SearchOptions, Tokenizer
from latelier.indexes.packing import DocumentBatches, GivenDocuments, check_queries
from latelier.indexes.ranking import Ranking, combine_sides, vector_scores, with_words
from latelier.indexes.results import (
    FieldValues,
    Hit,
    IndexStatistics,
    MemoryReport,
    Record,
    VerifyReport,
    check_known,
    stored_cut,
    warn_of_damage,
)
from latelier.indexes.spelling import Near, asked_terms, nearest_term, spelling
from latelier.indexes.store import sources
from latelier.indexes.store.catalog import UserSettings, catalog_bytes
from latelier.indexes.store.folder import as_folder
from latelier.indexes.store.keywords import check_compaction, check_expected, check_options, without_texts
from latelier.indexes.store.rows import (
    DocumentBatch,
    all_ids,
    find_numbers,
    find_records,
    has_metadata,
    has_texts,
    known_fields,
    text_bytes,
)
from latelier.indexes.store.segments import Arrays, Part, Scratch, Snapshot, TokenArray
from latelier.indexes.store.sources import Changes, FileState, Seen, Source
from latelier.indexes.store.storage import Storage
from latelier.indexes.store.transaction import Transaction
from latelier.indexes.words import query_terms
from latelier.kernels.threads import thread_count
from latelier.scores.maxsim import TopK
from latelier.utils import resolve_device
from latelier.utils.checks import check_choice, format_bytes, parse_bytes
from latelier.utils.misc import progress_bar
from latelier.utils.values import Id, as_ids, is_single_id

if TYPE_CHECKING:
    import torch

# Memory of temporary arrays that every write and search needs, and of each thread that computes: a thread unpacks up to
# 32,768 tokens at a time.
_LEAST_WORKING = 8 << 20
_THREAD_WORKING = 6 << 20
# The share of the budget, without tables, that is left for temporary arrays.
_WORKING_SHARE = 3


def _plan_memory(budget: int | None, tables: int, arrays: Mapping[str, int], *, in_memory: bool) -> MemoryReport:
    """Divide a budget between tables, which are always in memory, arrays, and temporary arrays.

    Searches read most of the first arrays. An index in memory keeps all.
    """
    least = _LEAST_WORKING + _THREAD_WORKING * thread_count()
    if budget is None:
        return MemoryReport(None, tables, least, dict(arrays), {})
    fixed = tables + (sum(arrays.values()) if in_memory else 0)
    if budget < fixed + least:
        raise InvalidArgumentError(
            f"received max_memory={format_bytes(budget)}, but {'an index in memory' if in_memory else 'an index'} of "
            f"these documents needs at least {-(-(fixed + least) // 10**5) / 10} MB: {format_bytes(fixed)} for what "
            f"stays in memory and {format_bytes(least)} to work with"
            f"{'; with a folder as path= it needs less' if in_memory else ''}.",
            advice="raise-memory",
        )
    working = max(least, min((budget - tables) // _WORKING_SHARE, budget - fixed))
    kept: dict[str, int] = {}
    read: dict[str, int] = {}
    for name, size in arrays.items():
        fits = not read and tables + working + sum(kept.values()) + size <= budget
        (kept if in_memory or fits else read)[name] = size
    return MemoryReport(budget, tables, working, kept, read)


def token_bytes(layout: Mapping[str, TokenArray], tokens: int) -> dict[str, int]:
    """Return the bytes of each token array."""
    return {name: tokens * array.dtype.itemsize * math.prod(array.shape) for name, array in layout.items()}


# Maximum size of the vectors of a batch in a write without a budget, and of the vectors of a merged segment.
_SEGMENT_BYTES = 256 << 20
# Shares of the working memory: a batch, held in the form in which it came and as token arrays; and each array that a
# write makes.
_BATCH_SHARE = 4
_SCRATCH_SHARE = 4


class StoredOrigins(Origins):
    """Where the documents in a storage came from."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def sources(self) -> list[Source]:
        """See `Origins.sources`."""
        return self._storage.ask(sources.read_sources)

    def files(self, source: str) -> dict[str, FileState]:
        """See `Origins.files`."""
        return self._storage.ask(sources.read_files, source)

    def counts(self, source: str) -> dict[str, int]:
        """See `Origins.counts`."""
        return self._storage.ask(sources.count_documents, source)

    def documents(self, source: str, file: str | None = None) -> dict[Id, Seen]:
        """See `Origins.documents`."""
        return self._storage.ask(sources.documents_of, source, file)

    def missing(self, source: str) -> dict[Id, Seen]:
        """See `Origins.missing`."""
        return self._storage.ask(sources.missing_documents, source)

    def seen(self, ids: Sequence[Id]) -> dict[Id, Seen]:
        """See `Origins.seen`."""
        return self._storage.ask(sources.find_seen, ids)


class StoredIndex(Index):
    """An index in this library's own storage.

    This class checks the arguments of users, so a subclass gets packed, finite vectors of one dim. A subclass provides
    the abstract methods below. A write calls ``add -> _write -> DocumentBatches -> _encode -> Transaction.insert`` and
    returns after its commit. A search calls ``search -> find -> _search``; `find` evaluates the filter first, and makes
    hits last.
    """

    _choices: ClassVar[dict[str, tuple[Any, ...]]]
    # Bytes in memory per document, besides its vectors and its id.
    _document_bytes: ClassVar[int]
    # Maximum size of the segments that are merged from smaller ones, and of the batches in which documents are written,
    # both as vectors of the index's dtype; a memory budget makes the batches smaller.
    _segment_bytes: int = _SEGMENT_BYTES

    def __init__(
        self,
        path: PathLike | None,
        chosen: Mapping[str, Any],
        *,
        read_only: bool,
        max_memory: int | str | None,
        keywords: bool | None,
        tokenizer: Tokenizer | None,
        device: str | torch.device | None,
    ) -> None:
        """Open or make an index; `chosen`: a value for each of `_choices`, None for that of the index or the first."""
        of_new = {}
        for name, value in chosen.items():
            known = self._choices[name]
            check_choice(name, value, known, optional=True)
            of_new[name] = known[0 if value is None else known.index(value)]
        self.path = None if path is None else as_folder(path)
        self._max_memory = parse_bytes("max_memory", max_memory)
        self._gpu: Any = None  # see `_on_device`
        # Wrong options raise before a folder is made.
        resolved = None
        if device is not None:
            resolved = resolve_device(device)
        given = check_options(keywords, tokenizer)
        of_new |= {"kind": self.kind, "tokenizer": given}
        self._storage = Storage(self.path, of_new, self._layout, read_only=read_only)
        try:
            self._check_chosen(chosen)
            if self._max_memory is not None:
                self._storage.scratch = Scratch(self.path, self.memory.working // _SCRATCH_SHARE)
            if keywords is not None or tokenizer is not None:
                check_expected(f"the index in {self.path}", self.tokenizer, keywords, tokenizer)
        except BaseException:
            self._storage.close()
            raise
        if resolved is not None and resolved.type != "cpu":
            self._gpu = self._on_device(resolved)

    @property
    def read_only(self) -> bool:
        """See `Index.read_only`."""
        return self._storage.read_only

    @property
    def dim(self) -> int | None:
        """See `Index.dim`."""
        return self._storage.snapshot().dim

    @property
    def fields(self) -> list[str]:
        """See `Index.fields`."""
        return sorted(field.spelling for field in self._storage.ask(known_fields))

    def _field_values(self, field: str | None, options: SearchOptions, **chosen: Any) -> list[FieldValues]:
        return self._storage.field_values(field=field, options=options, **chosen)

    @property
    def memory(self) -> MemoryReport:
        """See `Index.memory`."""
        return self._planned(self._storage.snapshot())

    @property
    def tokenizer(self) -> str | None:
        """See `Index.tokenizer`."""
        return self._storage.snapshot().tokenizer

    def _holds_words(self) -> bool:
        return self._storage.snapshot().has_words

    @property
    def settings(self) -> UserSettings:
        """See `Index.settings`."""
        return self._storage.settings

    def remove(self, ids: Id | Iterable[Id]) -> None:
        """See `Index.remove`."""
        known = as_ids(ids)
        with self._storage.transaction() as transaction:
            transaction.remove(known)

    def _find(self, queries: Any, k: int, texts: list[str], options: SearchOptions) -> list[list[Hit]]:
        """See `Index.find`."""
        snapshot, allowed = self._storage.select(options)
        vectors = check_queries(queries, snapshot.dim, texts, options.mode)
        if vectors is None:
            rankings = self._by_words(snapshot, texts, k, allowed)
        elif options.mode == "vectors":
            rankings = self._ranked(snapshot, allowed, vectors, k, options)
        elif options.mode == "rerank":
            found = self._by_words(snapshot, texts, options.depth_for(k), allowed)
            rows = [snapshot.row_ids(each.numbers) for each in found]
            rankings = [self._ranked(snapshot, own, vectors[i : i + 1], k, options)[0] for i, own in enumerate(rows)]
        else:
            sides = self._both_sides(snapshot, allowed, vectors, k, texts, options)
            rankings = [combine_sides(options, *both, k) for both in sides]
            hits = self._hits(snapshot, rankings)
            for row, ranking, (by_vectors, _) in zip(hits, rankings, sides, strict=True):
                for hit, score in zip(row, vector_scores(ranking, by_vectors), strict=True):
                    hit.vector_score = score
            return hits
        return self._hits(snapshot, rankings)

    def find_sides(self, queries: Any, k: int, texts: list[str], options: SearchOptions) -> list[list[list[Hit]]]:
        """Return what vectors and words contribute to the fusion of each query, see `combine_sides`."""
        snapshot, allowed = self._storage.select(options)
        vectors = check_queries(queries, snapshot.dim, texts, options.mode)
        sides = self._both_sides(snapshot, allowed, vectors, k, texts, options) if vectors is not None else []
        return [self._hits(snapshot, own) for own in sides]

    def highest_scores(self, texts: Sequence[str]) -> list[float]:
        """See `Index.highest_scores`."""
        snapshot = self._storage.snapshot()
        return [snapshot.words.highest(query_terms(text, snapshot.tokenizer or "")) for text in texts]

    def near_words(self, text: str) -> dict[str, str]:
        """See `Index.near_words`."""
        found = self.nearest_words(asked_terms(text, self.tokenizer or ""))
        return {word: near.spelled for word, near in found.items() if near.edits}

    def nearest_words(self, asked: Mapping[str, str]) -> dict[str, Near]:
        """Return for words, given with their terms, the nearest one of the index, with no edit if it is the same."""
        snapshot = self._storage.snapshot()
        words = snapshot.words
        counts = dict(zip(asked, words.counts(list(asked.values())), strict=True))
        near = {word: Near(0, count, word) for word, count in counts.items() if count}
        for word, term in asked.items():
            nearest = None if word in near else nearest_term(word, term, words.terms)
            if nearest is not None:
                edits, other = nearest
                near[word] = Near(edits, words.terms[other], self._spelling(snapshot, other))
        return near

    def _spelling(self, snapshot: Snapshot, term: str) -> str:
        """Return a term as a document spells it."""
        row = snapshot.words.row_of(term)
        if row is None:
            return term
        [hit] = snapshot.hits(np.array([row]), np.zeros(1))
        record = self._storage.ask(find_records, [hit.id])[hit.id]
        return spelling(term, record.text or "", snapshot.tokenizer or "")

    def _hits(self, snapshot: Snapshot, rankings: Sequence[Ranking]) -> list[list[Hit]]:
        rows = np.concatenate([np.zeros(0, "int64"), *(ranking.rows for ranking in rankings)])
        hits = iter(snapshot.hits(rows, np.concatenate([np.zeros(0), *(ranking.scores for ranking in rankings)])))
        return [list(islice(hits, len(each.scores))) for each in rankings]

    def _both_sides(
        self,
        snapshot: Snapshot,
        row_ids: np.ndarray | None,
        queries: TokenEmbeddings,
        k: int,
        texts: Sequence[str],
        options: SearchOptions,
    ) -> list[tuple[Ranking, Ranking]]:
        """Return for each query the best documents by vectors with those by words, and those by words.

        Words contribute `SearchOptions.depth_for` documents, vectors twice as many. A document that only words have
        found is scored by the row that they have found.
        """
        by_words = self._by_words(snapshot, texts, options.depth_for(k), row_ids)
        most = VECTORS_PER_WORD * options.depth_for(k)
        by_vectors = self._ranked_with(snapshot, row_ids, queries, (k, most), [each.rows for each in by_words], options)
        return [(with_words(*pair, most), pair[1]) for pair in zip(by_vectors, by_words, strict=True)]

    def _ranked_with(
        self,
        snapshot: Snapshot,
        row_ids: np.ndarray | None,
        queries: TokenEmbeddings,
        counts: tuple[int, int],
        joined: Sequence[np.ndarray],
        options: SearchOptions,
    ) -> list[Ranking]:
        """Return the scores of documents for each query, in any order: those of `joined` rows are among them.

        `counts`: as many as the first number are as good as those of a search, the second one is how many are scored.
        """
        rankings = []
        for i, found in enumerate(self._ranked(snapshot, row_ids, queries, counts[1], options)):
            missing = joined[i][~np.isin(snapshot.numbers(joined[i]), found.numbers)]
            if len(missing):
                own = self._ranked(snapshot, np.sort(missing), queries[i : i + 1], len(missing), options)
                found = found.joined(own[0])
            rankings.append(found)
        return rankings

    def _by_words(self, snapshot: Snapshot, texts: Sequence[str], k: int, row_ids: np.ndarray | None) -> list[Ranking]:
        """Return the best `k` of the documents of some rows, or of all, by the words of each text."""
        words = snapshot.words
        if snapshot.documents and not words.texts:
            raise without_texts()
        parts = None if row_ids is None else snapshot.parts(row_ids)
        most = min(k, max(1, snapshot.documents))
        terms = [query_terms(text, snapshot.tokenizer or "") for text in texts]
        rankings = [words.rank(own, most, parts) for own in terms]
        if self._max_memory is not None:
            snapshot.release_words()
        return rankings

    def _ranked(
        self,
        snapshot: Snapshot,
        row_ids: np.ndarray | None,
        queries: TokenEmbeddings,
        k: int,
        options: SearchOptions,
    ) -> list[Ranking]:
        """Return the best `k` of the documents of some rows, or of all, for each query."""
        best = self._best(snapshot, row_ids, queries, k, options)
        return [
            Ranking(snapshot.numbers(rows), scores, rows)
            for rows, scores in zip(best.row_ids, best.scores, strict=True)
        ]

    def _best(
        self,
        snapshot: Snapshot,
        row_ids: np.ndarray | None,
        queries: TokenEmbeddings,
        k: int,
        options: SearchOptions,
    ) -> TopK:
        """Return the best `k` documents of some rows, or of all, by MaxSim, each by its best row."""
        best = TopK(len(queries), min(k, max(1, snapshot.documents)))
        parts = snapshot.parts(row_ids)
        if parts and self._gpu is not None:
            self._search_on_device(snapshot, parts, queries, best, options)
        elif parts:
            self._search(snapshot, parts, queries, best, options)
        return best

    def get(self, ids: Id | Iterable[Id]) -> Record | list[Record]:
        """See `Index.get`."""
        wanted = as_ids(ids)
        found = self._storage.ask(find_records, wanted)
        check_known(wanted, found)
        if is_single_id(ids):
            return found[wanted[0]]
        return [found[id] for id in wanted]

    def get_embeddings(self, ids: Id | Iterable[Id], ranges: Ranges | None = None) -> TokenEmbeddings:
        """See `Index.get_embeddings`."""
        wanted = as_ids(ids)
        snapshot, row_ids = self._storage.find(wanted, check_ranges(ranges, len(wanted)))
        if not len(row_ids):
            return TokenEmbeddings.from_list([], dim=snapshot.dim).to(self.dtype)
        distinct, positions = np.unique(row_ids, return_inverse=True)
        # The parts are in ascending order of row ids, so their concatenation is in the order of `distinct`.
        parts = snapshot.parts(distinct)
        found = TokenEmbeddings.concatenate([self._decode(part) for part in parts])[positions]
        if self._max_memory is not None:
            for part in parts:
                part.segment.release()
        return found

    def existing(self, ids: Sequence[Id]) -> dict[Id, int]:
        """See `Index.existing`."""
        return self._storage.ask(find_numbers, ids)

    def ids(self) -> list[Id]:
        """See `Index.ids`."""
        return self._storage.ask(all_ids)

    def compact(
        self, *, keywords: bool | None = None, tokenizer: Tokenizer | None = None, show_progress: bool = False
    ) -> None:
        """See `Index.compact`."""
        check_compaction(keywords, tokenizer)
        max_tokens = self._max_segment_tokens(self.dim or 1)
        with progress_bar(shown=show_progress, unit=" documents") as progress:
            damages = self._storage.compact(
                max_tokens=max_tokens, progress=progress.update, keywords=keywords, tokenizer=tokenizer
            )
        if damages:
            warn_of_damage(f"{'; '.join(damages)}. Damaged segments were left as they are, all others are compacted.")

    def snapshot(self) -> AbstractContextManager[None]:
        """See `Index.snapshot`."""
        return self._storage.held()

    def statistics(self) -> IndexStatistics:
        """See `Index.statistics`; no vector is read."""
        with self.snapshot():
            snapshot = self._storage.snapshot()
            texts = self._storage.ask(has_texts)
            metadata = self._storage.ask(has_metadata)
            size = self._storage.ask(text_bytes)
        files: Iterable[Path] = ()
        if self.path is not None:
            files = (path for path in self.path.rglob("*") if path.is_file())
        return IndexStatistics(
            documents=snapshot.documents,
            tokens=snapshot.tokens,
            removed=sum(state.row.removed for state in snapshot.segments),
            bytes=sum(path.stat().st_size for path in files),
            has_texts=texts,
            has_metadata=metadata,
            text_bytes=size,
            cut=stored_cut(self.settings),
            passages=snapshot.passages,
        )

    def verify(self) -> VerifyReport:
        """See `Index.verify`."""
        return self._storage.verify()

    def close(self) -> None:
        """See `Index.close`."""
        self._storage.close()
        if self._gpu is not None:
            self._gpu.clear()

    def __len__(self) -> int:
        return self._storage.snapshot().documents

    def __repr__(self) -> str:
        if self.path is None:
            where = "in memory"
        else:
            where = repr(str(self.path))
        try:
            snapshot = self._storage.snapshot()
        except LatelierError:
            return f"{type(self).__name__}(closed or damaged, {where})"
        if snapshot.dim is None:
            return f"{type(self).__name__}(0 documents, {where})"
        if self._gpu is not None:
            where += f", searched on {self._gpu.device}"
        return (
            f"{type(self).__name__}({snapshot.documents:,} documents, {snapshot.tokens:,} tokens, dim={snapshot.dim}, "
            f"{self._describe()}, {where})"
        )

    @property
    def origins(self) -> StoredOrigins:
        """See `Index.origins`."""
        return StoredOrigins(self._storage)

    def _write(
        self,
        given: GivenDocuments,
        *,
        replace: bool | None,
        show_progress: bool,
        changes: Changes = NO_CHANGES,
    ) -> list[int]:
        """Store documents in one transaction, and run maintenance."""
        left = self._insert(given, changes, replace=replace, show_progress=show_progress)
        self._after_write()
        return left

    def _insert(
        self,
        given: GivenDocuments,
        changes: Changes,
        *,
        replace: bool | None,
        show_progress: bool,
    ) -> list[int]:
        """Insert documents; no batch of them is left in memory, whose limit maintenance needs for itself."""
        batches = DocumentBatches(given, dtype=self.dtype, batch_bytes=self._batch_bytes, show_progress=show_progress)
        before = self._storage.snapshot()
        self._prepare(before, batches.peek)
        left: list[int] = []
        count = 0
        with self._storage.transaction() as transaction:
            # The dim is read by another connection, which notices if other files were copied over those of the index.
            encoded = batches.read(self.dim, self._encode, self._are_in_range)
            if self._max_memory is not None:
                encoded = self._fitting(encoded, before)
            for batch in transaction.prepare(encoded):
                left += [count + i for i in self._insert_batch(transaction, batch, replace=replace)]
                count += len(batch.documents)
            if changes != NO_CHANGES:
                transaction.apply(changes)
        return left

    def _fitting(self, batches: Iterator[DocumentBatch], before: Snapshot) -> Iterator[DocumentBatch]:
        """Yield batches; raise an error once the index could not be searched within its budget."""
        documents = tokens = texts = 0
        for batch in batches:
            documents = documents + len(batch.lengths)
            tokens = tokens + int(batch.lengths.sum())
            texts += batch.documents.nbytes
            self._planned(before, documents, tokens, batch.dim, texts)
            yield batch

    def _max_segment_tokens(self, dim: int) -> int:
        """Return the maximum number of tokens of a merged segment."""
        return self._segment_bytes // np.dtype(self.dtype).itemsize // dim

    def _check_chosen(self, chosen: Mapping[str, Any]) -> None:
        """Raise an error if the index is not what a user expects, or what this version knows."""
        for name, value in chosen.items():
            stored = self._storage.configuration.get(name)
            known = self._choices[name]
            if stored not in known:
                raise IndexFormatError(
                    f"the index in {self.path} has {name}={stored!r}; this version knows {', '.join(map(repr, known))}."
                )
            if value not in (None, stored):
                raise InvalidArgumentError(
                    f"received {name}={value!r}, but the index in {self.path} has {stored}, which cannot be changed; "
                    f"leave {name} out, or make a new index."
                )

    def _planned(
        self, snapshot: Snapshot, documents: int = 0, tokens: int = 0, dim: int = 0, texts: int = 0
    ) -> MemoryReport:
        """Divide the memory budget among what a snapshot holds, removed documents included, and some more rows.

        `texts`: bytes of texts and metadata of these, which an index in memory holds.
        """
        for state in snapshot.segments:
            documents = documents + state.row.rows
            tokens = tokens + state.row.tokens
        tables, arrays = self._sizes(documents, tokens, snapshot.dim or dim)
        if self.path is None and self._max_memory is not None:
            tables += texts + self._storage.ask(catalog_bytes)
        return _plan_memory(self._max_memory, tables, arrays, in_memory=self.path is None)

    # For shards, which write in the transactions of another index.

    @property
    def _batch_bytes(self) -> int:
        """Size of the vectors that a write holds in memory at a time, in bytes."""
        working = self.working_memory
        if working is None:
            return self._segment_bytes
        return min(self._segment_bytes, working // _BATCH_SHARE)

    def _insert_batch(
        self, transaction: Transaction, batch: DocumentBatch, *, replace: bool | None, numbers: np.ndarray | None = None
    ) -> list[int]:
        """Insert documents in a transaction; see `Transaction.insert`."""
        most = self._max_segment_tokens(batch.dim)
        return transaction.insert(batch, replace=replace, max_tokens=most, numbers=numbers)

    # What subclasses provide.

    @property
    @abstractmethod
    def dtype(self) -> str:
        """Floating type of the vectors that `_encode` gets and `get_embeddings` returns."""

    @abstractmethod
    def _layout(self, dim: int, names: Collection[str]) -> dict[str, TokenArray]:
        """Return the dtype and the shape per token of each token array of a segment with arrays of these `names`."""

    @abstractmethod
    def _encode(self, embeddings: TokenEmbeddings, into: Arrays | None = None) -> Arrays:
        """Return the token arrays of some documents, each with one row per token; they may be written to `into`."""

    def _prepare(self, before: Snapshot, peek: Callable[[int], TokenEmbeddings | None]) -> None:
        """Choose what `_encode` needs to know of the first documents that are added; by default, nothing.

        `before`: the index before the write; `peek`: `DocumentBatches.peek`.
        """

    def _are_in_range(self, arrays: Arrays) -> bool:
        """Whether token arrays show that all vectors are in range; if not, the vectors themselves are checked."""
        return False

    @abstractmethod
    def _decode(self, part: Part) -> TokenEmbeddings:
        """Return the vectors of stored documents."""

    @abstractmethod
    def _search(
        self, snapshot: Snapshot, parts: Sequence[Part], queries: TokenEmbeddings, best: TopK, options: SearchOptions
    ) -> None:
        """Search the rows in `parts`, and add to `best` the documents with the highest scores, each by its best row."""

    def _on_device(self, device: torch.device) -> Any:
        """Return what searches on a device; it has a method ``clear`` and an attribute ``device``."""
        from latelier.indexes.gpu import GpuSearch

        return GpuSearch(device, self._decode, self.dtype)

    def _search_on_device(
        self, snapshot: Snapshot, parts: Sequence[Part], queries: TokenEmbeddings, best: TopK, options: SearchOptions
    ) -> None:
        """See `_search`; on the device."""
        self._gpu.search(parts, queries, best)

    def _sizes(self, documents: int, tokens: int, dim: int) -> tuple[int, dict[str, int]]:
        """Return the bytes that so many documents take in memory, and those of each array, most read ones first."""
        return self._document_bytes * documents, token_bytes(self._layout(dim, ()), tokens)

    def _after_write(self) -> None:
        """Run maintenance after the commit of an `add` or `update`; by default, do nothing."""

    def _describe(self) -> str:
        """Return the description of the stored numbers in `repr`."""
        return self.dtype
