// Inverted lists: how they are made, and the documents in the probed ones with the highest imputed scores.

#include "ivf.h"

// Count the distinct documents of some lists, or write them: see the Python function.
KERNEL(invert)(const int32_t *lists, const int64_t *lengths, int64_t count, int64_t first, int64_t begin, int64_t end,
               int32_t *last, int64_t *places, int32_t *documents) {
    for (int64_t d = 0; d < count; d++)
        for (int64_t left = lengths[d]; left > 0; left--) {
            uint64_t i = (uint64_t)(*lists++ - begin);
            if (i >= (uint64_t)(end - begin) || last[i] == first + d)
                continue;
            last[i] = (int32_t)(first + d);
            if (documents)
                documents[places[i]] = (int32_t)(first + d);
            places[i]++;
        }
}

typedef struct {
    int64_t next, last;
    uint32_t excess;
} Probed;

// Documents of a block, whose sums stay in the L2 cache; sums that are compared at a time; bins by their highest bits.
enum { BLOCK = 1 << 16, RUN = 64, BIN_BITS = 12 };

// Add the excess of the documents of one block, and advance the probed lists to the next one. A word holds a sum in its
// lower bits, and above them the query token that last added to it. Entries are read from the disk unchecked, since
// there are too many: one that is out of order or range ends its list.
INLINE void accumulate(Probed *probed, int64_t count, uint32_t mark, uint32_t lower, const uint8_t *documents, int size,
                       int64_t base, uint64_t room, uint32_t *sums) {
    for (int64_t n = 0; n < count; n++) {
        int64_t i = probed[n].next, last = probed[n].last;
        uint32_t added = mark + probed[n].excess;
        for (; i < last; i++) {
            const uint8_t *place = documents + size * i;
            int64_t document = size == 2 ? (int64_t)LOAD(uint16_t, place) : (int64_t)LOAD(uint32_t, place);
            uint64_t d = (uint64_t)(document - base);
            if (d >= room)
                break;
            // No branch, as a processor could not predict whether this query token has added to the sum before.
            uint32_t before = sums[d], after = (before & lower) + added;
            sums[d] = before < mark ? after : before;
        }
        probed[n].next = i;
        // Prefetch the entries with which the next block begins.
        prefetch(documents + size * i);
        prefetch(documents + size * i + 128);
    }
}

// Not inlined: all that the loops need stays in registers.
__attribute__((noinline)) static void accumulate_2(Probed *probed, int64_t count, uint32_t mark, uint32_t lower,
                                                   const uint8_t *documents, int64_t base, uint64_t room,
                                                   uint32_t *sums) {
    accumulate(probed, count, mark, lower, documents, 2, base, room, sums);
}

__attribute__((noinline)) static void accumulate_4(Probed *probed, int64_t count, uint32_t mark, uint32_t lower,
                                                   const uint8_t *documents, int64_t base, uint64_t room,
                                                   uint32_t *sums) {
    accumulate(probed, count, mark, lower, documents, 4, base, room, sums);
}

// Keep the documents with the highest sums, in their order, and return the lowest sum of their bins: a document with a
// lower one cannot be among the best any more.
static int64_t keep_best(int64_t *found, int64_t *values, int64_t *count, int64_t most, int64_t bits) {
    int64_t shift = most_of(0, bits - BIN_BITS), edge = (1 << BIN_BITS) - 1, above = 0, kept = 0;
    int32_t bins[1 << BIN_BITS] = {};
    for (int64_t i = 0; i < *count; i++)
        bins[values[i] >> shift]++;
    while (above + bins[edge] < most)
        above += bins[edge--];
    int64_t room = most - above;
    for (int64_t i = 0; i < *count; i++) {
        int64_t place = values[i] >> shift;
        if (place > edge || (place == edge && room > 0)) {
            room -= place == edge;
            found[kept] = found[i];
            values[kept++] = values[i];
        }
    }
    *count = kept;
    return most_of(1, edge << shift);
}

// A bit for each of 64 words: whether ``word & lower >= threshold``.
INLINE uint64_t reaching(const uint32_t *words, uint32_t lower, uint32_t threshold) {
    uint64_t mask = 0;
    UNROLL
    for (int part = 0; part < RUN / LANES; part++) {
        ints sums = LOAD(ints, words + LANES * part) & splat_int((int32_t)lower); // of at most 24 bits: never negative
        mask |= (uint64_t)mask_of(sums >= splat_int((int32_t)threshold)) << (LANES * part);
    }
    return mask;
}

// Find the documents in the probed lists with the highest imputed scores; of those in the lowest bin that is needed,
// the first are taken. `best`: ``(2, most)``: documents, ascending, and their sums; the result is how many.
EXPORT int64_t JOINED(select_candidates, ISA)(const int32_t *lists, const int32_t *excess, int64_t tokens,
                                              int64_t nprobe, const int64_t *offsets, const uint8_t *entries,
                                              int64_t size, int64_t bits, const uint8_t *allowed, int64_t documents,
                                              int64_t most, int64_t *best) {
    int64_t room = 4 * most + RUN, block = least_of(BLOCK, (documents + RUN - 1) / RUN * RUN);
    int64_t *found = allocate(16 * room), *values = found + room;
    uint32_t *sums = allocate(4 * block);
    Probed *probed = allocate(sizeof(Probed) * tokens * nprobe);
    int64_t *counts = allocate(8 * tokens);
    if (!found || !sums || !probed || !counts) {
        release(found), release(sums), release(probed), release(counts);
        return -1;
    }
    for (int64_t t = 0; t < tokens; t++) {
        int64_t n = 0;
        for (; n < nprobe && lists[t * nprobe + n] >= 0; n++) {
            const int64_t *own = offsets + lists[t * nprobe + n];
            probed[t * nprobe + n] = (Probed){own[0], own[1], (uint32_t)excess[t * nprobe + n]};
            prefetch(entries + size * own[0]);
        }
        counts[t] = n;
    }
    uint32_t lower = (uint32_t)((1ull << bits) - 1);
    int64_t count = 0, threshold = 1;
    for (int64_t base = 0; base < documents; base += block) {
        int64_t here = least_of(block, documents - base), runs = (here + RUN - 1) / RUN;
        memset(sums, 0, 4 * RUN * runs);
        for (int64_t t = 0; t < tokens; t++) {
            uint32_t mark = (uint32_t)(t + 1) << bits;
            if (size == 2)
                accumulate_2(probed + t * nprobe, counts[t], mark, lower, entries, base, here, sums);
            else
                accumulate_4(probed + t * nprobe, counts[t], mark, lower, entries, base, here, sums);
        }
        for (int64_t first = 0; first < RUN * runs; first += RUN) {
            for (uint64_t mask = reaching(sums + first, lower, (uint32_t)threshold); mask; mask &= mask - 1) {
                int64_t place = first + __builtin_ctzll(mask);
                if (!allowed || allowed[base + place]) {
                    found[count] = base + place;
                    values[count++] = sums[place] & lower;
                }
            }
            if (count + RUN > room)
                threshold = keep_best(found, values, &count, most, bits);
        }
    }
    if (count > most)
        keep_best(found, values, &count, most, bits);
    memcpy(best, found, 8 * count);
    memcpy(best + most, values, 8 * count);
    release(found), release(sums), release(probed), release(counts);
    return count;
}
