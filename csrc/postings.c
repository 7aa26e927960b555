// The best rows by BM25, from lists of the rows that hold each word of a query.

#include "common.h"

// Lists of a block, of which the highest count and the least length are stored; rows whose sums are in memory at a
// time.
enum { POSTINGS = 128, ROWS_AT_ONCE = 4096 };

// What a sum of bounds may fall short of a sum of scores, as numbers are rounded.
static const double SLACK = 1 + 1e-9;

typedef struct {
    const uint32_t *rows;
    const uint32_t *counts;
    const uint32_t *highest;
    const uint32_t *least;
    const uint32_t *lengths;
    double flat;
    double slope;
} Lists;

INLINE double score_of(const Lists *all, double weight, uint32_t count, uint32_t length) {
    return weight * count / (count + (all->flat + all->slope * length));
}

// Return the first posting from `next` on of at least this row; `last` if there is none.
INLINE int64_t advance_to(const uint32_t *rows, int64_t next, int64_t last, int64_t row) {
    int64_t step = 1, before = next;
    if (next >= last || rows[next] >= row)
        return next;
    while (before + step < last && rows[before + step] < row) {
        before += step;
        step *= 2;
    }
    int64_t after = least_of(before + step, last);
    while (after - before > 1) {
        int64_t middle = (before + after) / 2;
        if (rows[middle] < row)
            before = middle;
        else
            after = middle;
    }
    return after;
}

// Return at least the highest score of the postings from `next` on that are below row `end`.
INLINE double bound_below(const Lists *all, double weight, int64_t next, int64_t last, int64_t end) {
    uint32_t count = 0, length = UINT32_MAX;
    if (next >= last || all->rows[next] >= end)
        return 0;
    for (int64_t block = next / POSTINGS; block * POSTINGS < last; block++) {
        if (block * POSTINGS > next && all->rows[block * POSTINGS] >= end)
            break;
        count = all->highest[block] > count ? all->highest[block] : count;
        length = all->least[block] < length ? all->least[block] : length;
    }
    return score_of(all, weight, count, length);
}

// The best documents so far, a heap with the worst one first: the lowest score, of equal ones the latest row.
typedef struct {
    double *scores;
    int64_t *rows;
    int64_t *owners;
    int64_t count;
    int64_t most;
} BestRows;

INLINE bool is_worse_best(const BestRows *best, int64_t a, int64_t b) {
    return best->scores[a] < best->scores[b] || (best->scores[a] == best->scores[b] && best->rows[a] > best->rows[b]);
}

INLINE void swap_best(BestRows *best, int64_t a, int64_t b) {
    double score = best->scores[a];
    int64_t row = best->rows[a], owner = best->owners[a];
    best->scores[a] = best->scores[b], best->rows[a] = best->rows[b], best->owners[a] = best->owners[b];
    best->scores[b] = score, best->rows[b] = row, best->owners[b] = owner;
}

static void add_best(BestRows *best, double score, int64_t row, int64_t owner) {
    int64_t at = 0;
    if (best->count < best->most)
        at = best->count++;
    else if (score <= best->scores[0])
        return;
    best->scores[at] = score, best->rows[at] = row, best->owners[at] = owner;
    for (; at > 0 && is_worse_best(best, at, (at - 1) / 2); at = (at - 1) / 2)
        swap_best(best, at, (at - 1) / 2);
    while (true) {
        int64_t child = 2 * at + 1;
        if (child + 1 < best->count && is_worse_best(best, child + 1, child))
            child++;
        if (child >= best->count || !is_worse_best(best, child, at))
            return;
        swap_best(best, at, child);
        at = child;
    }
}

// See the Python function. Rows are read from a file unchecked: one that is out of order or range ends its list in a
// window. Words come by falling weight, and a score is always added up in their order.
EXPORT int64_t JOINED(rank_postings, ISA)(const uint32_t *rows, const uint32_t *counts, const uint32_t *highest,
                                          const uint32_t *least, int64_t *next, const int64_t *last,
                                          const double *weights, int64_t words, const uint32_t *lengths, int64_t size,
                                          const uint8_t *allowed, const int64_t *row_ids, const int64_t *numbers,
                                          double flat, double slope, double *bounds, double *scores, int64_t *found,
                                          int64_t *owners, int64_t most, int64_t count) {
    const Lists all = {rows, counts, highest, least, lengths, flat, slope};
    BestRows best = {scores, found, owners, count, most};
    double sums[ROWS_AT_ONCE];
    uint64_t seen[ROWS_AT_ONCE / 64] = {};
    double score = 0; // of the best row so far of the document `owner`, which has no place in the heap yet
    int64_t row_id = -1, owner = -1;
    for (int64_t base = 0; base < size;) {
        int64_t begin = size;
        for (int64_t w = 0; w < words; w++) {
            next[w] = advance_to(rows, next[w], last[w], base);
            if (next[w] < last[w])
                begin = least_of(begin, rows[next[w]]);
        }
        if (begin < base || begin >= size)
            break;
        base = begin;
        int64_t end = least_of(base + ROWS_AT_ONCE, size);
        double least_score = best.count < most ? 0 : best.scores[0];
        double rest = 0;
        int64_t essential = words;
        for (int64_t w = 0; w < words; w++)
            bounds[w] = bound_below(&all, weights[w], next[w], last[w], end);
        // From here on, bounds[w] is what the words from w on can add together.
        for (int64_t w = words - 1; w >= 0; w--) {
            rest += bounds[w];
            bounds[w] = rest;
            if (rest * SLACK <= least_score)
                essential = w;
        }
        for (int64_t w = 0; w < essential; w++) {
            int64_t i = next[w];
            for (; i < last[w]; i++) {
                uint64_t d = (uint64_t)rows[i] - (uint64_t)base;
                if (d >= (uint64_t)(end - base))
                    break;
                uint64_t bit = 1ull << (d & 63);
                double added = score_of(&all, weights[w], counts[i], lengths[rows[i]]);
                sums[d] = seen[d >> 6] & bit ? sums[d] + added : added;
                seen[d >> 6] |= bit;
            }
        }
        for (int64_t group = 0; group < ROWS_AT_ONCE / 64; group++) {
            uint64_t left = seen[group];
            seen[group] = 0;
            for (; left; left &= left - 1) {
                int64_t d = 64 * group + __builtin_ctzll(left), row = base + d;
                if (allowed && !allowed[row])
                    continue;
                double sum = sums[d];
                least_score = best.count < most ? 0 : best.scores[0];
                for (int64_t w = essential; w < words && (sum + bounds[w]) * SLACK > least_score; w++) {
                    int64_t i = next[w] = advance_to(rows, next[w], last[w], row);
                    if (i < last[w] && rows[i] == row)
                        sum += score_of(&all, weights[w], counts[i], lengths[row]);
                }
                if (sum <= least_score)
                    continue;
                if (numbers[row] != owner) {
                    if (owner >= 0)
                        add_best(&best, score, row_id, owner);
                    owner = numbers[row];
                    score = 0;
                }
                if (sum > score) {
                    score = sum;
                    row_id = row_ids[row];
                }
            }
        }
        base = end;
    }
    if (owner >= 0)
        add_best(&best, score, row_id, owner);
    return best.count;
}
