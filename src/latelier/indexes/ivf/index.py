"""`IVF`: the approximate index, its settings and its writes.

Documents are stored as codes and can be searched as soon as they are committed: first by comparing the binary codes of
all documents, and with inverted lists once there are enough documents. The call that writes documents builds the lists
after its commit: searches never wait for them, and if the process is killed meanwhile, no document is lost.

A search scores the binary codes of all documents that are in no list, which takes 0.5 to 1.6 milliseconds per 100,000
tokens (for queries of 11 to 77 tokens). So lists pay off from about 100,000 tokens on, and appending pays off once some
ten thousand tokens are in no list. Both take time proportional to the number of tokens; in a large index they are due
after the tokens have grown by a constant factor, so the cost per added document does not depend on the index's size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from latelier.embeddings import TokenEmbeddings
from latelier.errors import CorruptedIndexError, IndexDamageWarning, LatelierError, StorageError
from latelier.indexes.base import PathLike, sample_queries
from latelier.indexes.ivf.codec import (
    CELLS,
    CODEBOOK_TOKENS,
    Codec,
    CodecChoice,
    DocumentTable,
    are_in_range,
    choice_names,
    choose_codec,
    read_axis,
    read_choice,
    read_codebook,
)
from latelier.indexes.ivf.layout import BITS, GROUP, PLAIN_BITS, START_BITS, byte_width, coarse_count, list_count
from latelier.indexes.ivf.layout import CELLS as CELL_COUNT
from latelier.indexes.ivf.lists import InvertedLists, append_documents, train_lists
from latelier.indexes.ivf.search import RotatedQuery, Scope, choose_search_parameters, find_loss, search_query
from latelier.indexes.options import SearchOptions, Tokenizer
from latelier.indexes.ranking import Ranking, exact_scores
from latelier.indexes.results import CheckReport, StageLoss, warn_of_damage
from latelier.indexes.store import forks
from latelier.indexes.store.segments import Part, Segment, Snapshot, TokenArray
from latelier.indexes.stored_index import StoredIndex, token_bytes
from latelier.kernels.threads import for_ranges, thread_count
from latelier.scores.maxsim import TopK
from latelier.utils.misc import warn_caller
from latelier.utils.values import Id

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Thresholds:
    """When maintenance is due."""

    # The first centroids are trained from so many tokens and documents on; searches of fewer leave the lists out. At
    # 2,000 documents of 100 tokens (128 dims, one thread with AVX-512), searches take 1.0 ms with lists and 1.5 ms
    # without, at 5,200 documents 1.1 and 2.9 ms. At 1,000 documents, of whatever length, the difference is below 20%.
    train_tokens: int = 1 << 17
    train_documents: int = 1000
    # Documents are appended if tokens in no list > max(append_tokens, append_share * tokens).
    append_tokens: int = 1 << 15
    append_share: float = 1 / 32
    # Centroids are trained again once the tokens have grown by this factor since the last training. In `compact`, and
    # below `small` tokens at every write, since training takes at most a second there and a small sample is less
    # typical of what is added later, also if they have grown by `growth_on_compaction`, if more than `removed_share` of
    # the listed documents was removed, or if latest_similarity < drift * trained_similarity, see `TrainingStatistics`.
    growth: float = 4
    growth_on_compaction: float = 2
    small: int = 1 << 20
    removed_share: float = 1 / 4
    drift: float = 0.9

    def has_enough(self, tokens: int, documents: int) -> bool:
        """Whether there are enough tokens and documents for centroids."""
        return tokens >= self.train_tokens and documents >= self.train_documents


# The setting that names the row ids of `IVF._coded_since`.
_CODED_SINCE = "coded_since"
# Name of the entries of inverted lists in the report.
LISTS = "inverted lists"
# Assumed number of multiplications per query: threads then take a few queries at a time.
_QUERY_WORK = 1 << 25
# Codes that a thread reads at a time, and tokens in memory during training: these shares of the working memory.
_WINDOW_SHARE = 8
_TRAINING_SHARE = 3
# `check` codes this many times k of the best documents of a query of so many tokens once more, and says how many of the
# best k stay if these are fewer than _KEPT.
_CHECKED_HITS = 3
_KEPT = 0.9
# Most bytes of the headers of the files of inverted lists, and of their statistics.
_OVERHEAD = 4096


class IVF(StoredIndex):
    """The approximate index: inverted lists over tokens of 8, 4, 2 or 1 bits per number.

    Parameters
    ----------
    path
        Folder of the index, made if it does not exist; ``None`` keeps it in memory.
    nbits
        Bits per number: 8 (the default), 4, 2 or 1. It cannot be changed later. At 128 dims a token takes 152, 72, 42
        or 26 bytes on disk, everything included. With 2 and 1, a codebook is chosen at the first write with which there
        are 32,768 tokens, from a sample of all that it is given, or of the first ones if they come from an iterator.
        Until then documents are stored in 4 bits; with the codebook, they are coded again. What is added after all
        documents were removed gets a codebook of its own.
    read_only
        Never write; implied if the folder cannot be written.
    max_memory
        Maximum memory of the index in bytes, or as a text such as ``"512MB"``, ``"1GB"`` or ``"1GiB"``; None for no
        limit. Searches find the same, but read from files what does not fit; see `memory` and
        `latelier.indexes.stored_index`.
    keywords
        Whether a new index has a keyword index of its texts, which every search mode but ``"vectors"`` needs. None is
        True; an existing index keeps what it has.
    tokenizer
        How the keyword index cuts texts into words: ``"porter"`` (the default), without English endings;
        ``"standard"``, whole words. Neither case nor accents count; languages without spaces are cut into pairs of
        characters.
    device
        A GPU to search on, such as ``"cuda"``, which holds a copy of the codes and the inverted lists as they are on
        disk. It scores twice as many candidates, from a third as many lists, without a binary stage. ``None``: the CPU.

    Raises
    ------
    IndexFormatError
        If the folder holds something else, or an index of another kind or of a newer version.
    InvalidArgumentError
        If the index in the folder has another number of bits.

    Examples
    --------
    >>> index = IVF(nbits=4)
    >>> index.add(["a", "b"], [np.eye(4), -np.eye(4)])
    >>> [[hit]] = index.search(np.array([[0.0, 1.0, 0.0, 0.0]]), k=1)
    >>> hit.id, round(hit.score, 2)
    ('a', 1.0)
    >>> index
    IVF(2 documents, 8 tokens, dim=4, 4-bit, in memory)
    >>> print(index.why_not(-np.eye(4)[:1], "a", k=1))
    'a' is not found with k=1: rank 2, score 0.000; the last hit 'b' scores 1.000.
      scored_lower: 1 document scores higher
        by query token: 0 -1.000
    It is found if you
      search with k=2
    """

    kind = "ivf"
    # 24 for its row id and offsets in the segment, 8 for its position in the snapshot, 65 in the document table, 8 for
    # its row id in the inverted lists; and 31 while maintenance sorts and counts documents.
    _document_bytes = 136
    _choices: ClassVar = {"nbits": BITS}
    _thresholds: ClassVar = Thresholds()
    dtype = "float32"

    def __init__(
        self,
        path: PathLike | None = None,
        *,
        nbits: Literal[8, 4, 2, 1] | None = None,
        read_only: bool = False,
        max_memory: int | str | None = None,
        keywords: bool | None = None,
        tokenizer: Tokenizer | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        super().__init__(
            path,
            {"nbits": nbits},
            read_only=read_only,
            max_memory=max_memory,
            keywords=keywords,
            tokenizer=tokenizer,
            device=device,
        )
        self._loaded: _Loaded | None = None
        self._loading = forks.Lock()
        self._has_warned = False
        self._codecs: dict[tuple[int, int], Codec] = {}  # by dim and row id, see `_coded_since`

    @property
    def nbits(self) -> int:
        """Bits per number."""
        return int(self._storage.configuration["nbits"])

    search_options = ("effort", "nprobe", "candidates")

    def compact(
        self, *, keywords: bool | None = None, tokenizer: Tokenizer | None = None, show_progress: bool = False
    ) -> None:
        """Merge small segments, and bring the inverted lists up to date; see `Index.compact`.

        All documents are appended to the lists. The centroids are trained again if the number of tokens has doubled
        since the last training, if a quarter of the documents was removed, or if the documents that were appended last
        are less similar to their centroids.

        Parameters
        ----------
        keywords, tokenizer, show_progress
            As in `Index.compact`.
        """
        super().compact(keywords=keywords, tokenizer=tokenizer, show_progress=show_progress)
        with suppress(CorruptedIndexError):  # the call above has warned of the damage
            self._maintain(compacting=True)

    def check(self, k: int = 10, *, queries: int = 20) -> CheckReport:
        """Measure recall@k of `search` against exact scores, and say so if the number of bits costs recall.

        For that, the best documents of each query are coded once more, with another rotation: the share of the best `k`
        that stays among them is about the share that the codes kept of the vectors that were given. See `Index.check`.

        Parameters
        ----------
        k, queries
            See `Index.check`.

        Returns
        -------
        CheckReport
            See `Index.check`; its `advice` names the mean cosine of the tokens if the bits cost recall.
        """
        report = super().check(k, queries=queries)
        with self.snapshot():
            ids = self.ids()
            kept = []
            if len(ids) <= k or self.nbits == BITS[0]:
                return report
            asked = sample_queries(self, ids, queries)
            vectors = asked.vectors
            other = self._codec_of(self._storage.snapshot().parts()[0].segment).turned()
            for query in asked:
                found = self.search(query, _CHECKED_HITS * k)[0]
                ranges = [(hit.start, hit.end) for hit in found]
                best = self.get_embeddings([hit.id for hit in found], ranges)
                numbers = np.arange(len(found))
                part = Part(Segment.build(numbers, numbers.tolist(), best.lengths, other.encode(best)), numbers)
                sample = TokenEmbeddings.from_list([query])
                order = np.argsort(-exact_scores(sample, other.decode(part))[0], kind="stable")
                kept.append(np.count_nonzero(order[:k] < k) / k)
        share = float(np.mean(kept))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if share >= _KEPT:
            return report
        mean = (vectors / np.maximum(lengths, 1e-30)).mean(axis=0)
        advice = (
            f"codes of {other.bits} bits keep about {share:.2f} of the best {k} of these tokens, whose mean cosine is "
            f"{float(mean @ mean):.2f}: an index with nbits={2 * other.bits} keeps more"
        )
        return replace(report, advice="; ".join(filter(None, [report.advice, advice])))

    def close(self) -> None:
        """See `Index.close`."""
        super().close()
        self._loaded = None

    def _layout(self, dim: int, names: Collection[str]) -> dict[str, TokenArray]:
        if self.nbits not in PLAIN_BITS and CELLS not in names:
            return Codec(START_BITS, dim).layout
        return Codec(self.nbits, dim).layout

    def _sizes(self, documents: int, tokens: int, dim: int) -> tuple[int, dict[str, int]]:
        """See `StoredIndex._sizes`; inverted lists that maintenance may make count as much as they can take."""
        tables, arrays = super()._sizes(documents, tokens, dim)
        if self.nbits not in PLAIN_BITS and tokens >= CODEBOOK_TOKENS:
            arrays = token_bytes(self._layout(dim, (CELLS,)), tokens)
            tables += 3 * CELL_COUNT * byte_width(dim)  # cells, packed cells and masks
        if not self._thresholds.has_enough(tokens, documents):
            return tables, arrays
        coarse = coarse_count(list_count(tokens))
        lists = list_count(tokens) + GROUP * coarse  # at most, see `train_centroids`
        tables += (lists + coarse) * (byte_width(dim) + 12) + _OVERHEAD  # centroids with their sums, and offsets
        return tables, {LISTS: tokens * (2 if documents <= 1 << 16 else 4), **arrays}

    def _encode(self, embeddings: TokenEmbeddings, into: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """See `StoredIndex._encode`."""
        return self._codec(embeddings.dim, self._coded_since()[-1]).encode(embeddings, into)

    def _coded_since(self) -> list[int]:
        """Return from which row ids on codes depend on the same choice, ascending: the last two of such ids."""
        return list(self._storage.setting(_CODED_SINCE) or [0])

    def _codec(self, dim: int, since: int) -> Codec:
        """Return the codec of documents from a row id on, with the axis and the codebook that the index stores."""
        key = dim, since
        codec = self._codecs.get(key) or Codec(self.nbits if self.nbits in PLAIN_BITS else START_BITS, dim)
        if not self._is_final(codec):
            choice = read_choice(self._storage.setting, dim, since)
            if choice.axis is not None:
                codec = replace(codec, axis=read_axis(choice.axis, dim))
            if choice.codebook is not None and codec.bits != self.nbits:
                codec = replace(codec, bits=self.nbits, codebook=read_codebook(choice.codebook, dim))
        self._codecs = {key: codec}
        return codec

    def _codec_of(self, segment: Segment) -> Codec:
        """Return the codec of a segment: a snapshot that a thread holds may be older than what is chosen."""
        first = int(segment.row_ids[0])
        known = [since for since in self._coded_since() if since <= first]
        if not known:
            raise StorageError("all documents of this snapshot were removed, and others are coded since; search again.")
        codec = self._codec(segment.dim, known[-1])
        if codec.has_cells and CELLS not in segment.arrays:
            return replace(codec, bits=START_BITS, codebook=None)
        return codec

    def _is_final(self, codec: Codec) -> bool:
        """Whether all that codes depend on is chosen."""
        return codec.axis is not None and codec.bits == self.nbits

    def _prepare(self, before: Snapshot, peek: Callable[[int], TokenEmbeddings | None]) -> None:
        """See `StoredIndex._prepare`: what is chosen gets a commit of its own, so that all writers encode with it."""
        if before.documents and self._is_final(self._codec(before.dim or 0, self._coded_since()[-1])):
            return
        first = peek(0 if self.nbits in PLAIN_BITS else CODEBOOK_TOKENS)
        if first is None or not first.num_tokens or (before.documents and first.dim != before.dim):
            return  # nothing to choose from, or the write will fail
        is_enough = self.nbits not in PLAIN_BITS and before.tokens + first.num_tokens >= CODEBOOK_TOKENS
        if before.documents and self.codec_choice(first.dim).axis is not None and not is_enough:
            return

        def choose(known: CodecChoice, stored: Callable[[], Sequence[TokenEmbeddings]]) -> CodecChoice:
            return choose_codec(known, self.nbits, first, before.tokens, stored)

        self._take(first.dim, choose)

    def codec_choice(self, dim: int) -> CodecChoice:
        """Return what is chosen for new documents of a dim."""
        return read_choice(self._storage.setting, dim, self._coded_since()[-1])

    def stored_vectors(self) -> tuple[np.ndarray, TokenEmbeddings]:
        """Return the row ids and the vectors of all documents, or of their passages."""
        parts = self._storage.snapshot().parts()
        if not parts:
            return np.zeros(0, dtype="int64"), TokenEmbeddings.from_list([], dim=self.dim)
        rows = [part.segment.row_ids[part.positions] for part in parts]
        return np.concatenate(rows), TokenEmbeddings.concatenate([self._decode(part) for part in parts])

    def take_codec(self, dim: int, choice: CodecChoice) -> None:
        """Code as another index does, with what is not chosen yet; documents of 4 bits are coded again."""
        if self.nbits in PLAIN_BITS:
            choice = choice._replace(codebook=None)
        if choice.axis is not None and self.codec_choice(dim) != choice:
            self._take(dim, lambda *_: choice)

    def _take(
        self, dim: int, choose: Callable[[CodecChoice, Callable[[], Sequence[TokenEmbeddings]]], CodecChoice]
    ) -> None:
        """Store what is chosen for a dim.

        `choose` is called with what is known, nothing if all documents of an earlier choice were removed, and with what
        returns the vectors of all documents.
        """
        with self._storage.transaction() as transaction:
            if self._storage.snapshot().dim not in (None, dim):
                return  # the insert of another dim will fail
            segments = []
            if self.nbits not in PLAIN_BITS:
                try:
                    segments = transaction.segments()
                except CorruptedIndexError:
                    return  # until it is repaired: all segments of an index are coded alike
            sinces = transaction.setting(_CODED_SINCE) or [0]
            stored = read_choice(transaction.setting, dim, sinces[-1])
            if transaction.is_empty and transaction.next_number > sinces[-1]:
                known = CodecChoice(None, None)
            else:
                known = stored
            choice = choose(known, lambda: [self._decode(part) for _, part in segments])
            if stored.axis is not None and stored.axis != choice.axis:
                if transaction.is_empty:
                    for since in sinces[:-1]:
                        for name in choice_names(dim, since):
                            transaction.set_setting(name, None)
                    sinces = [sinces[-1], transaction.skip_number()]
                    transaction.set_setting(_CODED_SINCE, sinces)
                else:  # another writer may have chosen meanwhile
                    choice = choice._replace(axis=stored.axis)
            if choice.axis is None:
                return
            of_axis, of_codebook = choice_names(dim, sinces[-1])
            transaction.set_missing(of_axis, lambda: choice.axis)
            if choice.codebook is None:
                return
            codebook = transaction.set_missing(of_codebook, lambda: choice.codebook)
            final = Codec(self.nbits, dim, read_axis(choice.axis, dim), read_codebook(codebook, dim))
            for row, part in segments:
                if CELLS not in part.segment.arrays:  # another writer may have chosen the codebook meanwhile
                    segment, positions = part
                    arrays = final.encode(self._decode(part))
                    ids = segment.ids(positions)
                    passages = None if segment.ranges is None else part.passages
                    coded = Segment.build(segment.row_ids[positions], ids, part.lengths, arrays, passages)
                    transaction.replace([(row, part)], coded)

    def _are_in_range(self, arrays: dict[str, np.ndarray]) -> bool:
        return are_in_range(arrays)

    def _decode(self, part: Part) -> TokenEmbeddings:
        return self._codec_of(part.segment).decode(part)

    def _describe(self) -> str:
        return f"{self.nbits}-bit"

    def _search(
        self, snapshot: Snapshot, parts: Sequence[Part], queries: TokenEmbeddings, best: TopK, options: SearchOptions
    ) -> None:
        if not parts:
            return
        scope = self._scope(snapshot, parts)
        codec = scope.table.codec
        parameters = choose_search_parameters(best.k, queries.dim, options, tokens=snapshot.tokens)
        (rests, leads) = codec.rotate(queries.vectors)
        offsets = queries.offsets

        def search(first: int, last: int) -> None:
            for i in range(first, last):
                own = slice(offsets[i], offsets[i + 1])
                stages = search_query(scope, RotatedQuery(rests[own], leads[own]), best.k, parameters)
                best.scores[i], best.row_ids[i] = stages.scores[: best.k], stages.numbers[: best.k]

        self._for_queries(search, len(queries))

    def _for_queries(self, search: Callable[[int, int], None], count: int) -> None:
        """Call a function for ranges of so many queries, by several threads if there are enough."""
        if count == 1:
            search(0, 1)
        else:
            for_ranges(search, np.arange(count + 1), _QUERY_WORK)

    def _ranked_with(
        self,
        snapshot: Snapshot,
        row_ids: np.ndarray | None,
        queries: TokenEmbeddings,
        counts: tuple[int, int],
        joined: Sequence[np.ndarray],
        options: SearchOptions,
    ) -> list[Ranking]:
        """See `StoredIndex._ranked_with`: the rows join the last stage of one search for the first count."""
        parts = snapshot.parts(row_ids)
        if self._gpu is not None or not parts:
            return super()._ranked_with(snapshot, row_ids, queries, counts, joined, options)
        scope = self._scope(snapshot, parts)
        table = scope.table
        k, least = (min(count, snapshot.documents) for count in counts)
        parameters = choose_search_parameters(k, queries.dim, options, tokens=snapshot.tokens)
        (rests, leads) = table.codec.rotate(queries.vectors)
        offsets = queries.offsets
        rankings = [Ranking.empty()] * len(queries)

        def search(first: int, last: int) -> None:
            for i in range(first, last):
                own = slice(offsets[i], offsets[i + 1])
                query = RotatedQuery(rests[own], leads[own])
                stages = search_query(scope, query, k, parameters, table.find(joined[i]), least)
                rows = table.numbers[stages.reranked]
                scores = stages.rough.astype("float64")
                rankings[i] = Ranking(rows, scores, rows)
                if table.owners is not None:
                    order = np.lexsort((rows, -scores))
                    best = Ranking(table.owners[stages.reranked][order], scores[order], rows[order])
                    rankings[i] = best.best_rows(len(rows))

        self._for_queries(search, len(queries))
        return rankings

    def _on_device(self, device: torch.device) -> Any:
        """See `StoredIndex._on_device`."""
        from latelier.indexes.ivf.gpu import CodedSearch

        return CodedSearch(device)

    def _search_on_device(
        self, snapshot: Snapshot, parts: Sequence[Part], queries: TokenEmbeddings, best: TopK, options: SearchOptions
    ) -> None:
        """See `StoredIndex._search_on_device`."""
        from latelier.indexes.ivf.gpu import choose_device_parameters

        parameters = choose_device_parameters(best.k, queries.dim, options, tokens=snapshot.tokens)
        self._gpu.search(self._scope(snapshot, parts), queries, best, parameters)

    def _scope(self, snapshot: Snapshot, parts: Sequence[Part]) -> Scope:
        """Return the documents of `parts`, as a search takes them."""
        table, lists = self._load(snapshot)
        if sum(len(part.positions) for part in parts) == len(table.live):
            has_removed = len(table.live) < len(table.numbers)
            return Scope(table, lists, table.alive if has_removed else np.zeros(0, "uint8"), table.live)
        allowed = table.mask(parts)
        return Scope(table, lists, allowed, np.flatnonzero(allowed))

    def find_loss(self, query: Any, id: Id, k: int, options: SearchOptions) -> StageLoss | None:
        """See `Index.find_loss`."""
        if self._gpu is not None:
            return None  # its stages are others
        snapshot, allowed = self._storage.select(options)
        scope = self._scope(snapshot, snapshot.parts(allowed))
        rows = self._storage.find([id])[1]
        [best] = self._ranked(snapshot, rows, query, 1, replace(options, effort="exact", candidates=None))
        ordinal = int(np.flatnonzero(scope.table.numbers == best.rows[0])[0])
        k = min(k, snapshot.documents)
        codec = scope.table.codec
        parameters = choose_search_parameters(k, query.dim, options, tokens=snapshot.tokens)
        rotated = RotatedQuery(*codec.rotate(np.asarray(query[0])))
        return find_loss(scope, rotated, k, parameters, ordinal)

    def _load(self, snapshot: Snapshot) -> tuple[DocumentTable, InvertedLists | None]:
        """Return the document table and inverted lists of a snapshot; those of the latest one are cached."""
        loaded = self._loaded
        if loaded is not None and loaded.snapshot is snapshot:
            return loaded.table, loaded.lists
        plan = self._planned(snapshot)
        parts = snapshot.parts()
        codec = self._codec_of(parts[0].segment)
        damage = None
        with self._loading.current:
            loaded = self._loaded
            if loaded is None or loaded.snapshot is not snapshot:
                del loaded
                self._loaded = None  # frees the table of the previous snapshot first
                lists, damage = _read_lists(snapshot)
                if lists is not None and LISTS in plan.read:
                    lists = replace(lists, is_released=True)
                if lists is None:
                    listed = np.zeros(0, dtype="int64")
                else:
                    listed = lists.numbers
                window = plan.working // _WINDOW_SHARE // thread_count()
                read = [name for name in codec.layout if name in plan.read]
                table = DocumentTable(parts, codec, listed, read=read, window=window)
                loaded = self._loaded = _Loaded(snapshot, table, lists)
        if damage is not None and not self._has_warned:
            self._has_warned = True
            warn_caller(
                f"the ANN data of {self!r} is damaged: {damage}. Searches compare all documents, which is slower but "
                "does not lower recall. verify() names the file; compact() or the next write rebuilds the data.",
                IndexDamageWarning,
            )
        return loaded.table, loaded.lists

    def _after_write(self) -> None:
        """Bring the inverted lists up to date after a write; if that fails, only warn: the write has succeeded."""
        try:
            self._maintain()
        except CorruptedIndexError as error:
            warn_of_damage(f"the documents are stored, but the inverted lists could not be updated: {error}")
        except LatelierError as error:  # for example, another thread has closed the index since the commit
            warn_caller(
                f"the documents are stored, but the inverted lists could not be updated: {error} The next write, or "
                "compact(), tries again.",
                RuntimeWarning,
            )

    def _maintain(self, *, compacting: bool = False) -> None:
        """Train the inverted lists or append to them, if that is due, and store them."""
        snapshot = self._storage.snapshot()
        if not snapshot.documents:
            return
        if snapshot.ann_state is None and not self._thresholds.has_enough(snapshot.tokens, snapshot.documents):
            return
        table, lists = self._load(snapshot)
        due = due_maintenance(table, lists, self._thresholds, compacting=compacting)
        if self._max_memory is None:
            memory = None
        else:
            memory = self.memory.working // _TRAINING_SHARE
        keeps_bytes = lists is not None and (due is Maintenance.APPEND or compacting)
        if keeps_bytes and not self._storage.check_ann_data(snapshot):
            due = Maintenance.TRAIN  # damaged data must be neither kept nor copied
        if due is Maintenance.TRAIN:
            self._storage.write_ann_data(train_lists(table, memory=memory, scratch=self._storage.scratch).arrays())
        elif due is Maintenance.APPEND and lists is not None:
            self._storage.write_ann_data(append_documents(lists, table, table.unlisted, self._storage.scratch).arrays())
        elif lists is None and (snapshot.ann_data is not None or snapshot.ann_damage is not None):
            self._storage.write_ann_data(None)  # damaged or of another dim, and too few documents to train again


class _Loaded(NamedTuple):
    """The snapshot of the latest search, with its document table and inverted lists."""

    snapshot: Snapshot
    table: DocumentTable
    lists: InvertedLists | None


def _read_lists(snapshot: Snapshot) -> tuple[InvertedLists | None, CorruptedIndexError | None]:
    """Return the stored inverted lists, None if there are none that fit, and the damage that they have."""
    lists = None
    damage = snapshot.ann_damage
    try:
        if snapshot.ann_data is None:
            lists = None
        else:
            lists = InvertedLists.from_arrays(snapshot.ann_data)
    except CorruptedIndexError as error:
        damage = error
    # Lists may have another dim if all their documents were removed before the present ones were added.
    return lists if lists is not None and lists.has_dim(snapshot.dim or 0) else None, damage


class Maintenance(Enum):
    """What to do about the inverted lists of an index."""

    NONE = "none"
    APPEND = "append"
    TRAIN = "train"


def due_maintenance(
    table: DocumentTable, lists: InvertedLists | None, thresholds: Thresholds, *, compacting: bool = False
) -> Maintenance:
    """Return the maintenance that is due after a commit; `compact` appends all, and has more reasons to train again."""
    tokens = table.count_tokens(table.live)
    if lists is None:
        if thresholds.has_enough(tokens, len(table.live)):
            return Maintenance.TRAIN
        return Maintenance.NONE
    statistics = lists.centroids.statistics
    if tokens >= thresholds.growth * statistics.tokens:
        return Maintenance.TRAIN
    if compacting or tokens < thresholds.small:
        removed = 1 - np.count_nonzero(table.alive[: table.listed]) / max(1, table.listed)
        has_drifted = statistics.latest_similarity < thresholds.drift * statistics.trained_similarity
        has_grown = tokens >= thresholds.growth_on_compaction * statistics.tokens
        if has_drifted or has_grown or removed > thresholds.removed_share:
            return Maintenance.TRAIN
    if compacting:
        tolerated = 0
    else:
        tolerated = max(thresholds.append_tokens, int(tokens * thresholds.append_share))
    if table.count_tokens(table.unlisted) > tolerated:
        return Maintenance.APPEND
    return Maintenance.NONE
