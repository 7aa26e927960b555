"""The first stage of a query: lists are probed, and documents get scores of their centroids.

For each query token a document gets the score of the best probed list that holds it; a document missing from all of
them gets the score of the last probed centroid. We accumulate the difference, so documents that were missed add zero
and need no work.

Documents are processed in blocks whose sums stay in the L2 cache: the kernel accumulates the entries of all probed
lists that fall into one block, selects its best documents, and goes on to the next block. Only the lists are read from
main memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from latelier.indexes.ivf.kernels.centroids import centroid_dots, quantise_query
from latelier.indexes.ivf.kernels.codes import lowest_bit, prefetch, read_half, read_word
from latelier.kernels.jit import INTS, LANES, at, constant, declare, intrinsic, ir, kernel, shuffle, splat, types


@kernel()
def invert(
    lists: np.ndarray,
    lengths: np.ndarray,
    first: int,
    begin: int,
    last: np.ndarray,
    places: np.ndarray,
    documents: np.ndarray,
) -> None:
    """Count, or write, the distinct documents of some lists.

    `lists`: ``(tokens,)`` int32: the list of each token. `lengths`: ``(n,)`` int64: number of tokens of each document.
    `first`: number of the first document; the others follow. `last`: ``(lists,)`` int32: the last document seen in each
    list, -1 for none; updated. `places`: ``(lists,)`` int64: the position of the next document of each list; increased
    for each document. `documents`: ``(entries,)`` int32, written; empty to count only.
    """
    writing = len(documents) > 0
    token = 0
    for d in range(len(lengths)):
        for _ in range(lengths[d]):
            i = lists[token] - begin
            token += 1
            if 0 <= i < len(last) and last[i] != first + d:
                last[i] = first + d
                if writing:
                    documents[places[i]] = first + d
                places[i] += 1


@kernel()
def append_lists(
    offsets: np.ndarray, documents: np.ndarray, more_offsets: np.ndarray, more: np.ndarray, merged: np.ndarray
) -> None:
    """Append lists to lists: list i of the result is list i of the first ones, then list i of the second ones.

    `offsets`, `documents`: the first lists: offsets ``(lists + 1,)`` int64, and the documents of all lists, int32;
    `more_offsets`, `more`: the second lists, in the same form; `merged`: ``(len(documents) + len(more),)`` int32,
    written: the documents of the resulting lists.
    """
    n = 0
    for i in range(len(offsets) - 1):
        for place in range(offsets[i], offsets[i + 1]):
            merged[n] = documents[place]
            n += 1
        for place in range(more_offsets[i], more_offsets[i + 1]):
            merged[n] = more[place]
            n += 1


# Numbers that are sorted together, by counting for each how many are higher.
_BLOCK = 128


@kernel()
def highest_places(scores: np.ndarray, places: np.ndarray) -> None:
    """Write the positions of the highest scores, ascending; of scores equal to the lowest of them, the first.

    `scores`: ``(n,)`` float32, no NaN. `places`: ``(most,)`` int64, at most n; written.
    """
    most = len(places)
    edge = nth_highest(scores.copy(), most)
    above = 0
    for i in range(len(scores)):
        above += scores[i] > edge
    room = most - above
    n = 0
    for i in range(len(scores)):
        if scores[i] > edge:
            places[n] = i
            n += 1
        elif scores[i] == edge and room > 0:
            places[n] = i
            n += 1
            room -= 1


@kernel()
def near_highest(scores: np.ndarray, k: int, slack: float, places: np.ndarray) -> int:
    """Write the positions, ascending, of all scores of at least ``(k-th highest score) - slack``.

    `scores`: ``(n,)`` float32, no NaN, ``n >= k``; `places`: ``(n,)`` int64, of which the first are written; returns:
    number of positions written.
    """
    edge = nth_highest(scores.copy(), k) - slack
    n = 0
    for i in range(len(scores)):
        if scores[i] >= edge:
            places[n] = i
            n += 1
    return n


@kernel()
def nth_highest(scores: np.ndarray, n: int) -> float:
    """Return the n-th highest number, and reorder the array so that the n highest come first: Hoare's quickselect.

    `scores`: ``(m,)`` numbers of any type, no NaN; reordered in place. `n`: from 1 to m.
    """
    first = 0
    last = len(scores) - 1
    wanted = n - 1
    while first < last:
        pivot = scores[(first + last) // 2]
        i = first
        j = last
        while i <= j:
            while scores[i] > pivot:
                i += 1
            while scores[j] < pivot:
                j -= 1
            if i <= j:
                scores[i], scores[j] = scores[j], scores[i]
                i += 1
                j -= 1
        if wanted <= j:
            last = j
        elif wanted >= i:
            first = i
        else:
            break
    return scores[wanted]


@kernel()
def sort_falling(numbers: np.ndarray, n: int) -> None:
    """Reorder up to a few hundred distinct numbers so that the n highest come first, in descending order.

    `numbers`: ``(m,)`` distinct numbers of any type, no NaN; reordered in place. `n`: any number; all are sorted if it
    is m or more.
    """
    block = np.empty(min(_BLOCK, len(numbers)), dtype=numbers.dtype)
    for first in range(0, min(n, len(numbers)), _BLOCK):
        rest = numbers[first:]
        count = min(_BLOCK, len(rest))
        if count < len(rest):
            nth_highest(rest, count)
        for i in range(count):
            block[i] = rest[i]
        # Counting has no branch that a processor could predict wrongly, and compares many numbers at a time.
        for i in range(count):
            place = 0
            for j in range(count):
                place += block[j] > block[i]
            rest[place] = block[i]


# Starting sum of SIMD lanes without a centroid: below every dot product.
NO_CENTROID = -(1 << 30)
_LAST = (1 << 32) - 1
_HALF = LANES // 2


@intrinsic
def _highest_of_halves(typing_context: Any, address: Any) -> Any:
    """Return the highest of the first eight, and of the last eight, of sixteen int32 at an address."""
    signature = types.UniTuple(types.int32, 2)(types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        half = ir.VectorType(ir.IntType(32), _HALF)
        numbers = builder.load(at(builder, arguments[0], INTS), align=4)
        highest = declare(builder.module, f"llvm.vector.reduce.smax.v{_HALF}i32", [half], word)
        halves = (shuffle(builder, numbers, range(first, first + _HALF)) for first in (0, _HALF))
        found = [builder.call(highest, [numbers]) for numbers in halves]
        return context.make_tuple(builder, signature.return_type, found)

    return signature, generate


@intrinsic
def _lanes_from(typing_context: Any, address: Any, lowest: Any) -> Any:
    """Return a bit for each of sixteen int32 at an address: whether it is at least `lowest`."""
    signature = types.int64(types.int64, types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        numbers = builder.load(at(builder, arguments[0], INTS), align=4)
        edge = splat(builder, builder.trunc(arguments[1], ir.IntType(32)), INTS)
        reaching = builder.bitcast(builder.icmp_signed(">=", numbers, edge), ir.IntType(LANES))
        return builder.zext(reaching, ir.IntType(64))

    return signature, generate


@kernel()
def best_centroids(dots: np.ndarray, ranges: np.ndarray, best: np.ndarray, values: np.ndarray) -> None:
    """Find the centroids with the highest dot products for every query token, best first; of equal ones, the first.

    `dots`: ``(tokens, groups, 16)`` int32: for each token, the dot products of the groups in its ranges, one range
    after the other. `ranges`: ``(tokens, n, 2)`` int64: first and last (exclusive) group of each range. `best`,
    `values`: ``(tokens, most)`` int32 both, written: the centroid, ``group * 16 + lane``, or -1 if there are fewer; and
    its dot product.
    """
    most = best.shape[1]
    groups = dots.shape[1]
    keys = np.empty(2 * most + LANES, dtype=np.int64)
    highest = np.empty(2 * groups, dtype=np.int64)
    for t in range(dots.shape[0]):
        dots_at = np.int64(dots.ctypes.data) + 4 * LANES * groups * t
        own_groups = _count_groups(ranges[t])
        lowest = np.int64(NO_CENTROID // 2)
        if 2 * own_groups >= most > 0:
            # Of groups of eight, as many as are wanted hold a number of at least this.
            for g in range(own_groups):
                place = dots_at + 4 * LANES * g
                highest[2 * g], highest[2 * g + 1] = _highest_of_halves(place)  # type: ignore[call-arg]
            lowest = max(lowest, nth_highest(highest[: 2 * own_groups], most))
        count = 0
        g = 0
        for n in range(ranges.shape[1]):
            for group in range(ranges[t, n, 0], ranges[t, n, 1]):
                mask: int = _lanes_from(dots_at + 4 * LANES * g, lowest)  # type: ignore[call-arg]
                while mask != 0:
                    lane = lowest_bit(mask)
                    mask &= mask - 1
                    # One key that sorts by dot product, highest first, then by centroid, lowest first.
                    keys[count] = (np.int64(dots[t, g, lane]) << 32) + (_LAST - (group * LANES + lane))
                    count += 1
                if count > 2 * most:
                    lowest = nth_highest(keys[:count], most) >> 32
                    count = most
                g += 1
        sort_falling(keys[:count], most)
        for n in range(most):
            best[t, n] = _LAST - (keys[n] & _LAST) if n < count else -1
            values[t, n] = keys[n] >> 32 if n < count else NO_CENTROID


@kernel(inner=True)
def _count_groups(ranges: np.ndarray) -> int:
    """Return the number of groups in the ranges of a token, ``(n, 2)``."""
    total = 0
    for n in range(len(ranges)):
        total += ranges[n, 1] - ranges[n, 0]
    return total


@kernel()
def fine_ranges(best: np.ndarray, fine_offsets: np.ndarray, ranges: np.ndarray) -> int:
    """Look up where the second-level centroids of every query token's best coarse centroids are.

    `best`: ``(tokens, most)`` int32: coarse centroids, from `best_centroids`; `fine_offsets`:
    ``(coarse centroids + 1,)`` int64: where the groups of second-level centroids of each begin; `ranges`:
    ``(tokens, most, 2)`` int64, written: first and last (exclusive) group of second-level centroids; returns: the
    largest number of groups in all ranges of a token.
    """
    longest = 0
    for t in range(len(best)):
        for n in range(best.shape[1]):
            c = best[t, n]
            # With starting sums from a damaged file, a lane without a centroid can be among the best.
            exists = 0 <= c < len(fine_offsets) - 1
            if exists:
                ranges[t, n, 0] = fine_offsets[c]
                ranges[t, n, 1] = fine_offsets[c + 1]
            else:
                ranges[t, n, 0] = 0
                ranges[t, n, 1] = 0
        longest = max(longest, _count_groups(ranges[t]))
    return longest


@kernel()
def imputed_excess(lists: np.ndarray, values: np.ndarray, scales: np.ndarray, room: int) -> None:
    """Replace the dot products of the lists that every query token probes by the scores they impute to their documents.

    The excess of a list over the last one is ``floor((dot - last) * scale * share) + 1`` with ``share = room / sum over
    tokens of (first - last) * scale``; 0 where there is no list. `lists`, `values`: ``(tokens, nprobe)`` int32, from
    `best_centroids`. `scales`: ``(tokens,)`` float32, the value of a dot product of 1.
    """
    tokens, nprobe = lists.shape
    if nprobe == 0:
        return
    last = np.empty(tokens, dtype=np.int32)
    total = 1e-30
    for t in range(tokens):
        last[t] = values[t, 0]
        for n in range(nprobe):
            if lists[t, n] >= 0:
                last[t] = values[t, n]
        total += np.float64(values[t, 0] - last[t]) * scales[t]
    for t in range(tokens):
        share = np.float64(scales[t]) * (room / total)
        for n in range(nprobe):
            if lists[t, n] >= 0:
                values[t, n] = np.int32((values[t, n] - last[t]) * share) + 1
            else:
                values[t, n] = 0


@kernel()
def find_lists(
    isa: tuple[int, ...],
    vectors: np.ndarray,
    centroids: tuple[np.ndarray, ...],
    coarse: int,
    nprobe: int,
    bits: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the inverted lists that every query token probes, by two levels of centroids, and the scores they impute.

    One kernel, as each call waits for the interpreter lock when it returns. `vectors`: ``(tokens, dim)`` float32.
    `centroids`: the arrays of `Centroids`, as a plain tuple. `bits`: the first excesses of all tokens add up to less
    than ``2 ** bits``. Returns the lists, best first (-1: fewer), and their excess, ``(tokens, nprobe)`` int32 both.
    """
    packed, start, fine, fine_start, fine_offsets = centroids
    query = quantise_query(vectors, np.zeros(len(vectors), dtype=np.float32), 1)
    rows = query.rows
    scales = query.scales
    tokens = len(rows)
    groups = len(packed)
    everything = np.empty((tokens, 1, 2), dtype=np.int64)
    for t in range(tokens):
        everything[t, 0, 0] = 0
        everything[t, 0, 1] = groups
    dots = np.empty((tokens, groups, LANES), dtype=np.int32)
    centroid_dots(isa, rows, everything, packed, start, dots)
    best = np.empty((tokens, coarse), dtype=np.int32)
    values = np.empty((tokens, coarse), dtype=np.int32)
    best_centroids(dots, everything, best, values)
    ranges = np.empty((tokens, coarse, 2), dtype=np.int64)
    longest = fine_ranges(best, fine_offsets, ranges)
    dots = np.empty((tokens, longest, LANES), dtype=np.int32)
    centroid_dots(isa, rows, ranges, fine, fine_start, dots)
    most = min(nprobe, LANES * longest)
    lists = np.empty((tokens, most), dtype=np.int32)
    excess = np.empty((tokens, most), dtype=np.int32)
    best_centroids(dots, ranges, lists, excess)
    imputed_excess(lists, excess, scales, (np.int64(1) << bits) - 1 - tokens)
    return lists, excess


# A word of 32 bits holds a document's sum and the number of a query token; this many tokens leave 16 bits for the sum.
MOST_TOKENS = (1 << 16) - 1
# Number of sums that are compared at a time; the size of a block is a multiple of it.
RUN = 64
# So many of the highest bits of a sum give its bin.
_BIN_BITS = 12


class ListEntries(NamedTuple):
    """All inverted lists, as the kernel reads them.

    `offsets`: ``(lists + 1,)`` int64: where the entries of each list begin; `documents`: the entries, ascending in each
    list, as bytes; `itemsize`: bytes of an entry: 2 or 4.
    """

    offsets: np.ndarray
    documents: np.ndarray
    itemsize: int


class CandidateLimits(NamedTuple):
    """Which documents are candidates.

    `bits`: from `sum_bits`; `most`: maximum number of candidates; `k`, `share`: of these, only documents with at least
    this share of the k-th highest sum are returned.
    """

    bits: int
    documents: int
    most: int
    k: int
    share: float


@kernel()
def find_candidates(
    isa: tuple[int, ...],
    vectors: np.ndarray,
    centroids: tuple[np.ndarray, ...],
    probing: tuple[int, int],
    lists: ListEntries,
    limits: CandidateLimits,
    allowed: np.ndarray,
    sums: np.ndarray,
) -> tuple[int, np.ndarray]:
    """Find the candidates of a query: `find_lists`, then `select_near`, whose result it returns.

    `probing`: `coarse` and `nprobe` of `find_lists`.
    """
    coarse, nprobe = probing
    probed, excess = find_lists(isa, vectors, centroids, coarse, nprobe, CandidateLimits(*limits).bits)
    return select_near(probed, excess, lists, limits, allowed, sums)


@kernel()
def select_near(
    probed: np.ndarray,
    excess: np.ndarray,
    lists: ListEntries,
    limits: CandidateLimits,
    allowed: np.ndarray,
    sums: np.ndarray,
) -> tuple[int, np.ndarray]:
    """Find the documents in the probed lists with the highest imputed scores, if they are near that of the k-th.

    `probed`, `excess`, `lists`, `allowed`, `sums`: see `select_candidates`. `limits`: `CandidateLimits`, as a plain
    tuple. Returns: the number of documents that `select_candidates` finds; and those of them that are near, ascending,
    int64.
    """
    limits = CandidateLimits(*limits)
    best = np.empty((2, limits.most), dtype=np.int64)
    count = select_candidates(probed, excess, lists, limits.bits, allowed, limits.documents, sums, best)
    documents = best[0, :count]
    best_sums = best[1, :count]
    if count <= limits.k or limits.share <= 0:
        return count, documents
    edge = limits.share * nth_highest(best_sums.copy(), limits.k)
    near = 0
    for i in range(count):
        if best_sums[i] >= edge:
            documents[near] = documents[i]
            near += 1
    return count, documents[:near]


@kernel()
def select_candidates(
    probed: np.ndarray,
    excess: np.ndarray,
    lists: ListEntries,
    bits: int,
    allowed: np.ndarray,
    documents: int,
    sums: np.ndarray,
    best: np.ndarray,
) -> int:
    """Find the documents in the probed lists with the highest imputed scores.

    A score is the sum, over query tokens, of the excess of the first probed list that holds the document. `probed`,
    `excess`: ``(query_tokens, nprobe)`` int32, from `find_lists`. The entries of `lists` may hold any numbers: one out
    of order or range ends its list. `allowed`: ``(documents,)`` uint8, empty if all are. `sums`: ``(block,)`` uint32
    scratch, `block` a multiple of `RUN`. `best`: ``(2, most)`` int64, written: documents, ascending, and sums. Sums are
    sorted into 4,096 bins; of those in the lowest bin that is needed, the first are taken. Returns how many.
    """
    lists = ListEntries(*lists)
    most = best.shape[1]
    block = len(sums)
    lower = (np.int64(1) << bits) - 1
    found = np.empty(4 * most + RUN, dtype=np.int64)
    values = np.empty(4 * most + RUN, dtype=np.int64)
    count = np.int64(0)
    threshold = np.int64(1)
    ranges = _probed_ranges(probed, lists)
    for base in range(0, documents, block):
        here = min(block, documents - base)
        runs = -(-here // RUN)
        sums[: runs * RUN] = 0
        _accumulate(probed, excess, lists, ranges, base, bits, sums[:here])
        for run in range(runs):
            first = run * RUN
            mask: int = _reaching(np.int64(sums.ctypes.data) + 4 * first, lower, threshold)  # type: ignore[call-arg]
            while mask != 0:
                place = first + lowest_bit(mask)
                mask &= mask - 1
                if len(allowed) == 0 or allowed[base + place] > 0:
                    found[count] = base + place
                    values[count] = sums[place] & lower
                    count += 1
            if count + RUN > len(found):
                count, threshold = _keep_best(found, values, count, most, bits)
    if count > most:
        count, threshold = _keep_best(found, values, count, most, bits)
    for i in range(count):
        best[0, i], best[1, i] = found[i], values[i]
    return count


@kernel(inner=True)
def _probed_ranges(probed: np.ndarray, lists: ListEntries) -> np.ndarray:
    """Return where the entries of each probed list begin and end, ``(query_tokens, nprobe, 2)``; -1 ends a row."""
    entries_at = np.int64(lists.documents.ctypes.data)
    size = lists.itemsize
    ranges = np.empty((*probed.shape, 2), dtype=np.int64)
    for q in range(probed.shape[0]):
        for n in range(probed.shape[1]):
            i = probed[q, n]
            if i < 0:
                ranges[q, n, 0] = -1
                break
            ranges[q, n, 0] = lists.offsets[i]
            ranges[q, n, 1] = lists.offsets[i + 1]
            prefetch(entries_at + size * lists.offsets[i])  # type: ignore[call-arg]
    return ranges


@kernel(inner=True)
def _accumulate(
    probed: np.ndarray,
    excess: np.ndarray,
    lists: ListEntries,
    ranges: np.ndarray,
    base: int,
    bits: int,
    sums: np.ndarray,
) -> None:
    """Accumulate the excess of the documents of one block, from `base`, and advance the ranges to the next block.

    A word of `sums` holds a sum in its lower bits, and above them the query token that last added to it.
    """
    entries_at = np.int64(lists.documents.ctypes.data)
    size = lists.itemsize
    room = np.uint64(len(sums))
    lower = np.uint32((np.int64(1) << bits) - 1)
    shift = np.uint32(bits)
    for q in range(probed.shape[0]):
        mark = np.uint32(q + 1) << shift
        for n in range(probed.shape[1]):
            i, last = ranges[q, n]
            if i < 0:
                break
            added = np.uint32(excess[q, n])
            while i < last:
                place = entries_at + size * i
                document = np.int64(read_half(place) if size == 2 else read_word(place))
                # Entries are read from the disk unchecked, since there are too many. As an unsigned number,
                # document - base is at least `room` for documents after this block, before it, and out of range.
                d = np.uint64(document - base)
                if d >= room:
                    break
                # No branch, as a processor could not predict whether this query token has added to the sum before.
                before = sums[d]
                sums[d] = mark | ((before & lower) + (added if before < mark else np.uint32(0)))
                i += 1
            ranges[q, n, 0] = i
            # Prefetch the entries with which the next block begins.
            prefetch(entries_at + size * i)  # type: ignore[call-arg]
            prefetch(entries_at + size * i + 128)


@kernel(inner=True)
def _keep_best(found: np.ndarray, values: np.ndarray, count: int, most: int, bits: int) -> tuple[int, int]:
    """Keep the documents with the highest sums, in their order; return their number, and the lowest sum of their bins.

    A document with a lower sum cannot be among the best any more.
    """
    shift = max(0, bits - _BIN_BITS)
    bins = np.zeros(1 << _BIN_BITS, dtype=np.int32)
    for i in range(count):
        bins[values[i] >> shift] += 1
    edge = (1 << _BIN_BITS) - 1
    above = 0
    while above + bins[edge] < most:
        above += bins[edge]
        edge -= 1
    room = most - above
    kept = 0
    for i in range(count):
        place = values[i] >> shift
        if place > edge or (place == edge and room > 0):
            room -= place == edge
            found[kept] = found[i]
            values[kept] = values[i]
            kept += 1
    return kept, max(np.int64(1), np.int64(edge) << shift)


@intrinsic
def _reaching(typing_context: Any, address: Any, lower: Any, threshold: Any) -> Any:
    """Return a bit for each of 64 words at an address: whether ``word & lower >= threshold``."""
    signature = types.int64(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        long = ir.IntType(64)
        lower, threshold = (splat(builder, builder.trunc(number, word), INTS) for number in arguments[1:])
        mask = constant(0)
        for part in range(RUN // LANES):
            place = at(builder, builder.add(arguments[0], constant(4 * LANES * part)), INTS)
            numbers = builder.and_(builder.load(place, align=4), lower)
            bits = builder.bitcast(builder.icmp_unsigned(">=", numbers, threshold), ir.IntType(LANES))
            mask = builder.or_(mask, builder.shl(builder.zext(bits, long), constant(LANES * part)))
        return mask

    return signature, generate
