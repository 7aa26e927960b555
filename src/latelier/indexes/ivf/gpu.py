"""`IVF` on a GPU, which holds the codes and the inverted lists as they are on disk.

1. Candidates: each query token finds the inverted lists of its nearest centroids; the documents in these lists with the
   highest sums of imputed scores are candidates. If few tokens are eligible, or with ``effort="exact"``, all documents
   are scored instead, by queries in half precision, and the best of them are candidates.
2. MaxSim of the candidates' codes with queries as precise as float32.

A batch of queries that scores all documents decodes each block of them once, to half precision, and scores it by the
kernels that score vectors; few queries are scored by a kernel that decodes as it multiplies.

There is no binary stage: decoding a few thousand documents takes a GPU no longer than reading their signs.
`kernels.triton` has three kernels for what takes the time; without triton, the same operations in torch take their
place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from latelier.arrays import as_tensor
from latelier.embeddings import TokenEmbeddings
from latelier.errors import LatelierError
from latelier.indexes.gpu import highest, highest_of_groups, score_vectors
from latelier.indexes.ivf.codec import CELLS, CODES, LEADS, SCALES, SIGNS, Codec, DocumentTable
from latelier.indexes.ivf.layout import GROUP as LANES
from latelier.indexes.ivf.layout import LARGE_2, SIZE_BITS, SIZES, SMALL_1, SMALL_2, DeviceCodes, DeviceQueries
from latelier.indexes.ivf.lists import Centroids, InvertedLists
from latelier.indexes.ivf.search import Scope, SearchParameters, choose_search_parameters
from latelier.indexes.options import SearchOptions
from latelier.indexes.store import connections
from latelier.indexes.store.segments import Segment
from latelier.scores.cuda import is_installed
from latelier.scores.maxsim import TopK
from latelier.utils.batching import lengths_to_offsets, split_by_rows

# Candidates and probed lists of a search, as multiples of those of a search on the CPU, which scores fewer of them.
_CANDIDATES = 2
_NPROBE = 1 / 3
# Documents with the best scores by queries in half precision that are scored again.
_FEW = 64
_FEW_PER_HIT = 4
# All documents are scored if they have at most so many tokens: that takes about as long as finding candidates.
_SCANNED_TOKENS = 1 << 22
_MAX_WIDENING = 16
# Query tokens from which on documents are decoded once for all, in place of once for each 128.
_DECODED = 257
# The largest scale of a token over the smallest one, at most: half precision then holds all decoded numbers.
_MOST_SCALE = 256
# Bytes of sums, of products with centroids, and of scores, at a time; numbers of codes copied at a time.
_BYTES = 1 << 30
_UPLOAD = 1 << 24
# Query tokens that add to the sums together, each with a bit; and the bits of the largest excess.
_TOKENS = 32
_EXCESS_BITS = 20
_SIGNED = {"uint32": "int32", "uint16": "int16"}


class _Graphs:
    """What the device does for one query, recorded: starting its forty operations takes longer than running them."""

    _MOST = 16

    def __init__(self) -> None:
        self._seen: dict[Any, Any] = {}

    def run(self, key: Any, find: Callable[..., Any], query: TokenEmbeddings) -> Any:
        """Return what `find` does; recorded at the second call for a `key`, since the first one compiles kernels."""
        if key not in self._seen:
            if len(self._seen) == self._MOST:
                self._seen.clear()
            self._seen[key] = None
            return find(query)
        if self._seen[key] is None:
            given = TokenEmbeddings(query.vectors.clone(), query.offsets)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = find(given)
            self._seen[key] = (graph, given, found)
        graph, given, found = self._seen[key]
        given.vectors.copy_(query.vectors)
        graph.replay()
        return found


class _Loaded(NamedTuple):
    """What the device holds of a snapshot; `rows`: where the codes of each segment begin."""

    table: DocumentTable
    codes: DeviceCodes
    rows: dict[int, int]
    segments: list[Segment]
    rotation: torch.Tensor  # (dim, dim + 1): rotated rests, and the lead
    unit: float  # what decoded numbers are multiplied by to be 1 at most; 0 if they would not fit half precision
    centroids: torch.Tensor  # (lanes * groups, width) float16, those of a lane without a centroid zeros
    offsets: torch.Tensor
    entries: torch.Tensor
    live: torch.Tensor  # (documents,) bool
    unlisted: torch.Tensor  # ordinals
    owners: torch.Tensor | None  # of ordinals: the number of the document of each passage; None if all are whole
    listed_tokens: int
    graphs: _Graphs


def choose_device_parameters(k: int, dim: int, options: SearchOptions, *, tokens: int) -> SearchParameters:
    """Return the parameters of a search on a device; see `choose_search_parameters`."""
    chosen = choose_search_parameters(k, dim, options, tokens=tokens)
    return replace(
        chosen,
        nprobe=options.nprobe or max(1, round(_NPROBE * chosen.nprobe)),
        candidates=options.candidates or _CANDIDATES * chosen.candidates,
    )


class CodedSearch:
    """Searches the codes of an index on a device. `queries_at_once`: at most; fewer if their sums take too much."""

    def __init__(self, device: torch.device, *, queries_at_once: int = 256, scanned: int = _SCANNED_TOKENS) -> None:
        self.device = device
        self._queries_at_once = queries_at_once
        self._scanned = scanned
        self._loaded: _Loaded | None = None
        self._lock = connections.Lock()

    def clear(self) -> None:
        """Free the memory of the device; a later search copies the codes again."""
        with self._lock.current:
            self._loaded = None

    def search(self, scope: Scope, queries: TokenEmbeddings, best: TopK, parameters: SearchParameters) -> None:
        """Search the documents of a scope, and write the best of each query to `best`."""
        try:
            with torch.no_grad(), self._lock.current:
                self._search(self._load(scope), scope, queries, best, parameters)
        except torch.cuda.OutOfMemoryError as error:
            sizes = scope.table.codec.layout.values()
            size = scope.table.tokens * sum(each.dtype.itemsize * int(np.prod(each.shape)) for each in sizes) / 2**30
            raise LatelierError(
                f"{self.device} has no room for this index, whose codes take {size:,.1f} GiB there; leave out device="
                " to search on the CPU."
            ) from error

    def _search(
        self, held: _Loaded, scope: Scope, queries: TokenEmbeddings, best: TopK, parameters: SearchParameters
    ) -> None:
        table = scope.table
        listed = int(np.searchsorted(scope.eligible, table.listed))
        probes = not parameters.exact and scope.lists is not None and listed > parameters.candidates
        eligible = None
        if scope.eligible is table.live:
            if len(scope.allowed):
                eligible = held.live
            probes = probes and held.listed_tokens > self._scanned
        else:
            eligible = self._upload(scope.allowed) != 0
            probes = probes and table.count_tokens(scope.eligible[:listed]) > self._scanned
        if probes and scope.eligible is table.live:
            scanned = held.unlisted
        else:
            scanned = self._upload(scope.eligible[listed if probes else 0 :])
        widening = min(_MAX_WIDENING, max(1, round(table.listed / max(1, listed))))
        nprobe = parameters.nprobe * widening
        most = parameters.candidates
        few = _FEW + _FEW_PER_HIT * best.k

        def find(asked: TokenEmbeddings) -> tuple[torch.Tensor, torch.Tensor]:
            prepared = _prepare(held, table.codec, asked)
            candidates = []
            if probes:
                candidates.append(_probe(held, prepared, nprobe, most, eligible))
            if len(scanned):
                candidates.append(_scan(held, table.codec, asked, prepared, scanned, few))
            chosen = torch.cat(candidates, dim=1).sort(dim=1).values  # equal scores then keep the order of documents
            scores = _score(held.codes, table.codec, prepared, chosen, rounded=False)
            if eligible is not None:
                scores = scores.masked_fill_(~eligible[chosen], -torch.inf)
            scores, places = scores.sort(dim=1, descending=True, stable=True)
            if held.owners is not None:
                scores, places = _first_of_each(scores, places, held.owners[chosen.gather(1, places)])
            return scores[:, : best.k], chosen.gather(1, places[:, : best.k])

        vectors = as_tensor(queries.vectors).to(self.device).float()
        queries = TokenEmbeddings(vectors, queries.offsets)
        if len(queries) == 1 and probes and scope.eligible is table.live and _has_kernels(self.device):
            found = [held.graphs.run((queries.num_tokens, best.k, nprobe, most), find, queries)]
        else:
            at_once = self._queries_at_once
            found = [find(queries[first : first + at_once]) for first in range(0, len(queries), at_once)]
        scores = torch.cat([each for each, _ in found]).cpu().numpy()
        ordinals = torch.cat([each for _, each in found]).cpu().numpy()
        best.scores[:] = list(scores)
        best.row_ids[:] = list(table.numbers[ordinals])
        if held.owners is not None:
            best.row_ids[:] = [rows[own > -np.inf] for rows, own in zip(best.row_ids, scores, strict=True)]
            best.scores[:] = [own[own > -np.inf] for own in scores]

    def _load(self, scope: Scope) -> _Loaded:
        """Return what the device holds of a snapshot; codes of segments that it holds already are not copied again."""
        table = scope.table
        before = self._loaded
        if before is not None and before.table is table:
            return before
        codec = table.codec
        segments = [segment for segment, _ in table.places]
        starts = lengths_to_offsets([segment.tokens for segment in segments])
        arrays = {}
        for name, (dtype, shape) in codec.layout.items():
            kind = getattr(torch, _SIGNED.get(dtype.name, dtype.name))
            held = arrays[name] = torch.empty((int(starts[-1]), *shape), dtype=kind, device=self.device)
            for segment, start in zip(segments, starts.tolist(), strict=False):
                own = held[start : start + segment.tokens]
                if before is not None and id(segment) in before.rows:
                    begin = before.rows[id(segment)]
                    own.copy_(getattr(before.codes, name)[begin : begin + segment.tokens])
                else:
                    self._copy(segment.arrays[name], own)
        first = np.zeros(len(table.numbers), dtype="int64")
        for (segment, ordinals), start in zip(table.places, starts, strict=False):
            first[ordinals] = start + segment.offsets[:-1]
        if codec.has_cells:
            codebook = codec.cells.integers
        else:
            codebook = np.zeros((1, 1), "int8")
        signs = arrays[SIGNS]
        codes = DeviceCodes(
            first=self._upload(first),
            lengths=self._upload(table.documents.lengths),
            signs=signs,
            codes=arrays.get(CODES, signs),
            scales=arrays[SCALES],
            leads=arrays[LEADS],
            cells=arrays.get(CELLS, arrays[SCALES]),
            codebook=self._upload(codebook),
            sizes=self._upload(np.stack([SMALL_1, SMALL_2, LARGE_2]).astype("int32")),
        )
        rests, leads = codec.rotate(np.eye(codec.dim, dtype="float32"))
        rotation = self._upload(np.concatenate([rests, leads[:, None]], axis=1))
        if scope.lists is None:
            lists = torch.zeros(0, 0), torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32)
        else:
            lists = self._copy_lists(scope.lists)
        rows = {id(segment): start for segment, start in zip(segments, starts.tolist(), strict=False)}
        live = self._upload(table.alive) != 0
        unlisted = self._upload(table.unlisted)
        listed_tokens = table.count_tokens(table.live) - table.count_tokens(table.unlisted)
        owners = None if table.owners is None else self._upload(table.owners)
        unit = _unit(codes)
        self._loaded = _Loaded(
            table, codes, rows, segments, rotation, unit, *lists, live, unlisted, owners, listed_tokens, _Graphs()
        )
        return self._loaded

    def _copy_lists(self, lists: InvertedLists) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        entries = torch.empty(len(lists.documents), dtype=torch.int32, device=self.device)
        for begin in range(0, len(entries), _UPLOAD):
            some = slice(begin, begin + _UPLOAD)
            entries[some] = self._upload(lists.documents[some].astype("int32"))
        return self._upload(_unpacked(lists.centroids)).half(), self._upload(lists.offsets), entries

    def _copy(self, source: np.ndarray, target: torch.Tensor) -> None:
        """Copy a stored array, which may be mapped, piece by piece."""
        step = max(1, _UPLOAD // max(1, source[:1].size))
        for begin in range(0, len(source), step):
            piece = source[begin : begin + step]
            target[begin : begin + step] = self._upload(piece.view(_SIGNED.get(piece.dtype.name, piece.dtype)))

    def _upload(self, array: np.ndarray) -> torch.Tensor:
        return as_tensor(array).to(self.device)


def _unpacked(centroids: Centroids) -> np.ndarray:
    """Return the codes of the centroids, ``(lanes * groups, width)`` int8; see `pack_centroids`."""
    groups, words, lanes, _ = centroids.fine.shape
    return np.ascontiguousarray(centroids.fine.transpose(2, 0, 1, 3)).reshape(groups * lanes, 4 * words)


def _prepare(held: _Loaded, codec: Codec, queries: TokenEmbeddings) -> DeviceQueries:
    """Return rotated queries, float32 on the device, each of the same number of tokens."""
    both = TokenEmbeddings(queries.vectors @ held.rotation, queries.offsets)
    lengths = both.lengths
    longest = int(lengths.max(initial=0))
    if len(both) * longest == both.num_tokens:  # equally long
        padded = both.vectors.view(len(both), longest, -1)
    else:
        padded = both.pad()[0]
    tokens = max(16, 1 << max(0, longest - 1).bit_length())
    width = 32 * codec.shape.sign_words
    # One scale for all tokens of a query: what this rounds is small beside the sum over its tokens.
    scales = padded.abs().amax(dim=(1, 2), keepdim=True).clamp_min(1e-30)
    padded = torch.nn.functional.pad(padded / scales, (0, 0, 0, tokens - longest))
    rests = torch.nn.functional.pad(padded[:, :, :-1], (0, width - codec.dim))
    high = rests.half()
    low = (rests - high).half()
    weights = scales[:, :, 0].expand(-1, tokens)
    if len(both) == 1:
        weights = weights * (torch.arange(tokens, device=weights.device) < longest)
    elif len(both) * tokens != both.num_tokens:
        present = as_tensor(lengths).to(weights.device)[:, None]
        weights = weights * (torch.arange(tokens, device=weights.device) < present)
    return DeviceQueries(high, low, padded[:, :, -1].contiguous(), weights.contiguous())


def _scan(
    held: _Loaded,
    codec: Codec,
    asked: TokenEmbeddings,
    queries: DeviceQueries,
    documents: torch.Tensor,
    few: int,
) -> torch.Tensor:
    """Score documents by queries in half precision; return the best `few` for each query."""
    if len(documents) <= few:
        return documents.expand(len(queries.high), -1)
    found = []
    scores = []
    most = max(1, _BYTES // (4 * len(queries.high)))
    if asked.num_tokens >= _DECODED and held.unit:
        blocks = _score_decoded(held, codec, asked, queries, documents, most)
    else:
        blocks = ((some, _score(held.codes, codec, queries, some, rounded=True)) for some in documents.split(most))
    for some, of_block in blocks:
        if held.owners is None:
            own, places = highest(of_block, few)
        else:
            own, places = highest_of_groups(of_block, held.owners[some], few)
        found.append(some[places])
        scores.append(own)
    if len(found) == 1:
        return found[0]
    _, places = highest(torch.cat(scores, dim=1), few)
    return torch.cat(found, dim=1).gather(1, places)


def _first_of_each(
    scores: torch.Tensor, places: torch.Tensor, owners: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sorted scores and their places with those of each owner but the first moved to the end, as -inf."""
    ordered = owners.sort(dim=1, stable=True)
    repeated = torch.zeros_like(owners, dtype=torch.bool)
    repeated[:, 1:] = ordered.values[:, 1:] == ordered.values[:, :-1]
    repeated = torch.zeros_like(repeated).scatter(1, ordered.indices, repeated)
    scores, again = scores.masked_fill(repeated, -torch.inf).sort(dim=1, descending=True, stable=True)
    return scores, places.gather(1, again)


def _score_decoded(
    held: _Loaded, codec: Codec, asked: TokenEmbeddings, queries: DeviceQueries, documents: torch.Tensor, most: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield blocks of at most `most` documents and their scores in half precision, up to a factor of each query."""
    device = documents.device
    width = 32 * codec.shape.sign_words
    # Rests are rotated back: the vectors then have as many numbers as before, not one more.
    back = torch.zeros(width + LANES, codec.dim, dtype=torch.float16, device=device)
    back[: codec.dim] = held.rotation[:, :-1].T
    back[width] = held.rotation[:, -1]
    factors = queries.scales[:, 0].clamp_min(1e-30).repeat_interleave(as_tensor(asked.lengths).to(device))
    half = TokenEmbeddings((asked.vectors / factors[:, None]).half(), asked.offsets)
    lengths = held.table.documents.lengths[documents.cpu().numpy()]
    offsets = lengths_to_offsets(lengths)
    for first, last in split_by_rows(offsets, _BYTES // (4 * (width + LANES)), most):
        some = documents[first:last]
        own = offsets[first : last + 1] - offsets[first]
        decoded = torch.zeros(int(own[-1]), width + LANES, dtype=torch.float16, device=device)
        begins = held.codes.first[some] - as_tensor(own[:-1]).to(device)
        rows = begins.repeat_interleave(held.codes.lengths[some]) + torch.arange(len(decoded), device=device)
        _write_decoded(held.codes, codec, rows, held.unit, decoded)
        yield some, score_vectors(half, TokenEmbeddings(decoded @ back, own))


def _write_decoded(codes: DeviceCodes, codec: Codec, rows: torch.Tensor, unit: float, out: torch.Tensor) -> None:
    """Write tokens in half precision: the numbers of a rotated rest, and the lead, both times `unit`.

    `rows`: ``(n,)`` int64. `out`: ``(n, columns)`` float16, with more columns than numbers: the lead follows them.
    """
    if _has_kernels(out.device):
        from latelier.indexes.ivf.kernels.triton import write_decoded

        write_decoded(codes, codec.shape, rows, unit, out)
        return
    integers, scales, leads = _decode(codes, codec, rows)
    out[:, : integers.shape[1]] = integers * (scales * unit)[:, None]
    out[:, integers.shape[1]] = leads * unit


def _unit(codes: DeviceCodes) -> float:
    """Return what decoded numbers are multiplied by to be 1 at most; 0 if others would be too small."""
    smallest = 0xFF00
    largest = 1
    longest = 0
    for scales, leads in zip(codes.scales.split(_UPLOAD), codes.leads.split(_UPLOAD), strict=True):
        numbers = scales.int() & 0xFFFF
        numbers = numbers[(numbers > 0) & (numbers < 0xFF00)]
        if len(numbers):
            smallest = min(smallest, int(numbers.min()))
            largest = max(largest, int(numbers.max()))
            longest = max(longest, int((leads[:, 2].int() & 0x7F).max()))
    low, high = np.array([smallest << 15, largest << 15], dtype="uint32").view("float32").tolist()
    # The highest byte of a lead is its sign and all but the last bit of its exponent: so long at most.
    lead = 2.0 ** (2 * longest + 2 - 127)
    if high > _MOST_SCALE * low or lead > _MOST_SCALE * 128 * high:
        return 0.0
    return 1 / max(128 * high, lead)


def _probe(
    held: _Loaded, queries: DeviceQueries, nprobe: int, most: int, eligible: torch.Tensor | None
) -> torch.Tensor:
    """Return the documents in the probed lists with the highest sums of imputed scores, ``(queries, most)``.

    `eligible`: ``(documents,)`` bool; None if all are.
    """
    count, tokens, _ = queries.high.shape
    documents = len(held.codes.first)
    bits = min(_EXCESS_BITS, 30 - tokens.bit_length())
    step = max(1, _BYTES // (2 * tokens * max(1, len(held.centroids))))
    group = max(1, _BYTES // (8 * documents))
    found = []
    for first in range(0, count, step):
        some = DeviceQueries(*(each[first : first + step] for each in queries))
        lists, excess = _nearest_lists(held, some, nprobe, bits)
        for begin in range(0, len(lists), group):
            own = slice(begin, begin + group)
            words = torch.zeros(len(lists[own]), documents, 2, dtype=torch.int32, device=lists.device)
            for token in range(0, tokens, _TOKENS):
                if token:
                    words[:, :, 0] = 0
                some_lists, added = (each[own, token : token + _TOKENS].contiguous() for each in (lists, excess))
                _add(some_lists, added, held.offsets, held.entries, words)
            sums = words[:, :, 1]
            if eligible is not None:
                sums = sums.masked_fill(~eligible, -1)
            found.append(sums.topk(min(most, documents), dim=1, sorted=False).indices)
    return torch.cat(found)


def _nearest_lists(held: _Loaded, queries: DeviceQueries, nprobe: int, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lists with the centroids nearest to each query token, best first, and the excess of each, int32.

    The excess is that over the last of them: what a document loses that is in none of these lists.
    """
    dots = queries.high @ held.centroids.T  # (queries, tokens, lanes * groups)
    by_lane = dots.unflatten(2, (LANES, -1))
    groups = by_lane.shape[3]
    # The best lists are in the groups whose best lists are the best.
    chosen = by_lane.amax(dim=2).topk(min(nprobe, groups), dim=2).indices
    lanes = torch.arange(LANES, device=dots.device)
    places = (chosen[:, :, :, None] + lanes * groups).flatten(2)
    values, which = dots.gather(2, places).topk(min(nprobe, places.shape[2]), dim=2)
    lists = (chosen[:, :, :, None] * LANES + lanes).flatten(2).gather(2, which)
    values = values.float()
    # Numbers of queries are at most 1, those of centroids 127.
    excess = (values - values[:, :, -1:]) * (2**bits / (127 * queries.high.shape[2]))
    return lists.int().masked_fill(queries.scales[:, :, None] == 0, -1), excess.int()


def _has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and is_installed()


def _add(
    lists: torch.Tensor, excess: torch.Tensor, offsets: torch.Tensor, entries: torch.Tensor, words: torch.Tensor
) -> None:
    """Add, for each query token, the excess of the best list that holds a document to the sum of the document.

    `lists`, `excess`: ``(queries, tokens, nprobe)`` int32, best first, -1 for none, of at most 32 tokens. `words`:
    ``(queries, documents, 2)`` int32: a bit for each token that has added, zero at first, and the sum.
    """
    if _has_kernels(words.device):
        from latelier.indexes.ivf.kernels.triton import add_imputed

        add_imputed(lists, excess, offsets, entries, words)
        return
    for row, numbers, added in zip(words, lists, excess, strict=True):
        for own, values in zip(numbers.tolist(), added, strict=True):
            best = torch.zeros_like(row[:, 1])
            for number, value in reversed(list(zip(own, values, strict=True))):
                if number >= 0:
                    best[entries[offsets[number] : offsets[number + 1]].long()] = value
            row[:, 1] += best


def _score(
    codes: DeviceCodes, codec: Codec, queries: DeviceQueries, documents: torch.Tensor, *, rounded: bool
) -> torch.Tensor:
    """Return MaxSim of queries with coded documents, ``(queries, documents)`` float32.

    `documents`: int64, ``(n,)`` for all queries, or ``(queries, n)``. A document without tokens scores minus infinity.
    `rounded`: leave out `DeviceQueries.low`.
    """
    if _has_kernels(documents.device):
        from latelier.indexes.ivf.kernels.triton import score_codes

        return score_codes(codes, codec.shape, queries, documents, rounded=rounded)
    exact = queries.high.float() + (0 if rounded else queries.low.float())
    scores = torch.full((len(exact), documents.shape[-1]), -torch.inf)
    for i, query in enumerate(exact):
        for n, document in enumerate(documents.expand(len(exact), -1)[i].tolist()):
            rows = slice(int(codes.first[document]), int(codes.first[document] + codes.lengths[document]))
            if rows.start < rows.stop:
                integers, scales, leads = _decode(codes, codec, rows)
                dots = (query @ integers.T) * scales + queries.leads[i, :, None] * leads
                scores[i, n] = dots.amax(dim=1) @ queries.scales[i]
    return scores.to(documents.device)


def _decode(
    codes: DeviceCodes, codec: Codec, rows: slice | torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the integers ``(tokens, width)``, the scales and the leads of tokens, float32."""
    width = 32 * codec.shape.sign_words
    scales = codes.scales[rows].int() & 0xFFFF
    scales = (torch.where(scales < 0xFF00, scales, 0) << 15).view(torch.float32)
    parts = codes.leads[rows].int() << torch.tensor([8, 16, 24], device=codes.leads.device)
    leads = (parts[:, 0] | parts[:, 1] | parts[:, 2]).int()
    leads = torch.where(leads & 0x7F800000 != 0x7F800000, leads, 0).view(torch.float32)
    if codec.bits == 8:
        integers = codes.codes[rows].float() - 128
        return torch.nn.functional.pad(integers, (0, width - codec.dim)), scales, leads

    def bits(words: torch.Tensor) -> torch.Tensor:
        return ((words[:, :, None] >> torch.arange(32, device=words.device)) & 1).flatten(1)

    sign = 2 * bits(codes.signs[rows]) - 1
    planes = [bits(codes.codes[rows][:, plane]) for plane in range(codec.bits - 1)]
    if codec.bits == 4:
        sizes = torch.tensor(SIZES[4], device=sign.device)
        return (sign * sizes[4 * planes[0] + 2 * planes[1] + planes[2]]).float(), scales, leads
    cells = codes.cells[rows].int() & 0xFFFF
    own = codes.sizes[:, cells & ((1 << SIZE_BITS) - 1)]
    if planes:
        size = torch.where(planes[0] > 0, own[2][:, None], own[1][:, None])
    else:
        size = own[0][:, None]
    return (codes.codebook[cells >> SIZE_BITS] + sign * size).clamp(-128, 127).float(), scales, leads
