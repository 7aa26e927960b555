// Centroids in two levels: training, the nearest of each token, and the lists that a query probes.

#include "ivf.h"

// `packed`: ``(groups, words, 16, 4)`` int8; `start`: ``(groups, 16)``: ``-128 * sum`` of each, or NO_CENTROID.
typedef struct {
    const int8_t *packed;
    const int32_t *start;
    int64_t groups;
} Groups;

// Two levels: coarse centroid c has the fine groups ``offsets[c]`` to ``offsets[c + 1] - 1``.
typedef struct {
    Groups coarse, fine;
    const int64_t *offsets;
    int64_t count, words;
} Centroids;

// The parameters of a kernel that takes centroids in two levels, and the centroids.
#define CENTROIDS                                                                                                      \
    const int8_t *coarse, const int32_t *coarse_start, int64_t coarse_groups, const int8_t *fine,                      \
        const int32_t *fine_start, const int64_t *offsets, int64_t coarse_count, int64_t words
#define GIVEN_CENTROIDS                                                                                                \
    {{coarse, coarse_start, coarse_groups}, {fine, fine_start, offsets[coarse_count]}, offsets, coarse_count, words}

// Find the centroid with the highest dot product for eight rows; of equal ones, the first.
static void nearest_of_rows(const row_number *rows, Groups groups, int64_t words, int32_t *found, int32_t *dots) {
    ints best[ROWS], where[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        best[r] = splat_int(INT32_MIN);
        where[r] = splat_int(0);
    }
    for (int64_t g = 0; g < groups.groups; g++) {
        ints totals[ROWS];
        multiply_rows(rows, groups.packed + 4 * LANES * words * g, false, groups.start + LANES * g, words, LANES,
                      totals);
        ints number = splat_int((int32_t)g);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            ints higher = totals[r] > best[r];
            best[r] = select_ints(higher, totals[r], best[r]);
            where[r] = select_ints(higher, number, where[r]);
        }
    }
    const ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        dots[r] = __builtin_reduce_max(best[r]);
        ints is_best = best[r] == splat_int(dots[r]);
        ints numbers = where[r] * LANES + lanes;
        found[r] = __builtin_reduce_min(select_ints(is_best, numbers, splat_int(INT32_MAX)));
    }
}

// The same for some rows, all of them without `order`. `scratch`: eight rows as bytes and as they are multiplied.
static void nearest_of(const uint8_t *rows, const int64_t *order, int64_t count, Groups groups, int64_t words,
                       uint8_t *scratch, int32_t *nearest, int32_t *dots) {
    int64_t width = 4 * words;
    row_number *wide = (row_number *)(scratch + ROWS * width);
    for (int64_t first = 0; first < count; first += ROWS) {
        int64_t some = least_of(ROWS, count - first);
        int64_t begin = order ? order[first] : first;
        bool consecutive = some == ROWS;
        for (int64_t r = 1; order && r < some; r++)
            consecutive &= order[first + r] == begin + r;
        const uint8_t *here = rows + begin * width;
        if (!consecutive) {
            for (int64_t r = 0; r < some; r++) {
                memcpy(scratch + r * width, rows + (order ? order[first + r] : first + r) * width, width);
                int64_t ahead = least_of(first + r + ROWS, count - 1);
                for (int64_t line = 0; line < width; line += 64)
                    prefetch(rows + (order ? order[ahead] : ahead) * width + line);
            }
            here = scratch;
        }
        int32_t found[ROWS], best[ROWS];
        nearest_of_rows(as_multiplied(here, ROWS * width, wide), groups, words, found, best);
        for (int64_t r = 0; r < some; r++) {
            int64_t row = order ? order[first + r] : first + r;
            nearest[row] = found[r];
            dots[row] = best[r];
        }
    }
}

static uint8_t *scratch_rows(int64_t words) {
    return allocate_zeros(ROWS * 4 * words * (int64_t)(1 + sizeof(row_number)));
}

// Find the centroid with the highest dot product for each row; of equal ones, the first: ``group * 16 + lane``.
EXPORT int64_t JOINED(nearest_centroids, ISA)(const uint8_t *rows, int64_t count, int64_t words, const int8_t *packed,
                                              const int32_t *start, int64_t groups, int32_t *nearest, int32_t *dots) {
    uint8_t *scratch = scratch_rows(words);
    if (!scratch)
        return -1;
    nearest_of(rows, NULL, count, (Groups){packed, start, groups}, words, scratch, nearest, dots);
    release(scratch);
    return 0;
}

// Find the nearest centroid of each row under its nearest coarse centroid.
EXPORT int64_t JOINED(nearest_in_two_levels, ISA)(const uint8_t *rows, int64_t count, CENTROIDS, int32_t *nearest,
                                                  int32_t *dots) {
    Centroids centroids = GIVEN_CENTROIDS;
    uint8_t *scratch = scratch_rows(words);
    int64_t *ends = allocate_zeros(8 * (centroids.count + 1));
    int64_t *order = allocate(8 * count);
    int32_t *nearest_coarse = allocate(4 * count);
    int failed = !scratch || !ends || !order || !nearest_coarse;
    if (!failed) {
        nearest_of(rows, NULL, count, centroids.coarse, words, scratch, nearest_coarse, dots);
        // A counting sort. Starting sums from a damaged file can make a lane without a centroid the nearest.
        for (int64_t n = 0; n < count; n++) {
            nearest_coarse[n] = (int32_t)least_of(nearest_coarse[n], centroids.count - 1);
            ends[nearest_coarse[n] + 1]++;
        }
        for (int64_t c = 0; c < centroids.count; c++)
            ends[c + 1] += ends[c];
        for (int64_t n = 0; n < count; n++)
            order[ends[nearest_coarse[n]]++] = n;
        int64_t begin = 0;
        for (int64_t c = 0; c < centroids.count; c++) {
            int64_t first = centroids.offsets[c];
            Groups own = {
                centroids.fine.packed + 4 * LANES * words * first,
                centroids.fine.start + LANES * first,
                centroids.offsets[c + 1] - first,
            };
            nearest_of(rows, order + begin, ends[c] - begin, own, words, scratch, nearest, dots);
            for (int64_t n = begin; n < ends[c]; n++)
                nearest[order[n]] += (int32_t)(LANES * first);
            begin = ends[c];
        }
    }
    release(scratch), release(ends), release(order), release(nearest_coarse);
    return failed ? -1 : 0;
}

// Quantise centroids, ``(count, dim)``, to 8 bits and pack them.
static void pack(const float *centroids, int64_t count, int64_t dim, int64_t words, int8_t *packed, int32_t *start) {
    // A float of at most 127, added to it, has no digits after the point: it is rounded, half to even.
    const float round = 3 << 22;
    float peak = 0;
    for (int64_t i = 0; i < count * dim; i++)
        peak = fabsf(centroids[i]) > peak ? fabsf(centroids[i]) : peak;
    float divisor = peak / 127 > 1e-30f ? peak / 127 : 1e-30f;
    for (int64_t c = 0; c < count; c++) {
        int8_t *own = packed + 4 * LANES * words * (c / LANES) + 4 * (c % LANES);
        int32_t total = 0;
        for (int64_t i = 0; i < dim; i++) {
            float value = (centroids[c * dim + i] / divisor + round) - round;
            int32_t code = (int32_t)(value > 127 ? 127 : value < -127 ? -127 : value);
            total += code;
            own[4 * LANES * (i / 4) + i % 4] = (int8_t)code;
        }
        start[c] = -128 * total;
    }
}

static void add_row(const uint8_t *row, int64_t dim, float scale, float *sum) {
    for (int64_t i = 0; i < dim; i++)
        sum[i] += (float)(row[i] - 128) * scale;
}

static void normalise(float *vector, int64_t dim) {
    float norm = sqrtf(dot(vector, vector, dim));
    norm = norm > 1e-30f ? norm : 1e-30f;
    for (int64_t i = 0; i < dim; i++)
        vector[i] /= norm;
}

// Train unit centroids on some tokens, ``(members, 4 * words)`` and their scales: see the Python function.
EXPORT int64_t JOINED(spherical_kmeans, ISA)(const uint8_t *rows, const float *scales, int64_t members, int64_t words,
                                             int64_t iterations, float *centroids, int64_t count, int64_t dim) {
    int64_t groups = (count + LANES - 1) / LANES, width = 4 * words;
    uint8_t *scratch = scratch_rows(words);
    int32_t *nearest = allocate(8 * members);
    int32_t *start = allocate(4 * LANES * groups);
    int8_t *packed = allocate_zeros(groups * LANES * width);
    int64_t *counts = allocate(8 * count);
    int failed = !scratch || !nearest || !start || !packed || !counts;
    for (int64_t c = 0; !failed && c < LANES * groups; c++)
        start[c] = NO_CENTROID;
    for (int64_t i = 0; !failed && i <= iterations; i++) {
        if (i) {
            pack(centroids, count, dim, words, packed, start);
            nearest_of(rows, NULL, members, (Groups){packed, start, groups}, words, scratch, nearest,
                       nearest + members);
        }
        memset(centroids, 0, 4 * count * dim);
        memset(counts, 0, 8 * count);
        for (int64_t n = 0; i && n < members; n++) {
            add_row(rows + n * width, dim, scales[n], centroids + nearest[n] * dim);
            counts[nearest[n]]++;
        }
        for (int64_t c = 0; c < count; c++) {
            if (!counts[c]) // at first, all are without tokens
                add_row(rows + (c * members + i * members / (iterations + 1)) / count * width, dim, 1,
                        centroids + c * dim);
            normalise(centroids + c * dim, dim);
        }
    }
    release(scratch), release(nearest), release(start), release(packed), release(counts);
    return failed ? -1 : 0;
}

// Reorder numbers so that the n highest come first, and return the lowest of these: Hoare's quickselect.
static int64_t nth_highest(int64_t *numbers, int64_t count, int64_t n) {
    int64_t first = 0, last = count - 1, wanted = n - 1;
    while (first < last) {
        int64_t pivot = numbers[(first + last) / 2], i = first, j = last;
        while (i <= j) {
            while (numbers[i] > pivot)
                i++;
            while (numbers[j] < pivot)
                j--;
            if (i <= j) {
                int64_t other = numbers[i];
                numbers[i++] = numbers[j];
                numbers[j--] = other;
            }
        }
        if (wanted <= j)
            last = j;
        else if (wanted >= i)
            first = i;
        else
            break;
    }
    return numbers[wanted];
}

// Reorder distinct numbers so that the n highest come first, in descending order.
static void sort_falling(int64_t *numbers, int64_t count, int64_t n) {
    int64_t block[128];
    for (int64_t first = 0; first < least_of(n, count); first += 128) {
        int64_t *rest = numbers + first, some = least_of(128, count - first);
        if (first + some < count)
            nth_highest(rest, count - first, some);
        memcpy(block, rest, 8 * some);
        // Counting has no branch that a processor could predict wrongly, and compares many numbers at a time.
        for (int64_t i = 0; i < some; i++) {
            int64_t place = 0;
            for (int64_t j = 0; j < some; j++)
                place += block[j] > block[i];
            rest[place] = block[i];
        }
    }
}

typedef struct {
    int64_t first, last;
} Range;

// What the search for the best centroids of a token needs: dots of all groups, the highest of each eight, and keys.
typedef struct {
    int32_t *dots;
    int64_t *highest, *keys;
} Scratch;

// Find the `most` centroids with the highest dot products in some ranges of groups, best first; of equal ones, the
// first. The centroid is -1 if there are fewer.
static void best_centroids(const Scratch *scratch, const Range *ranges, int64_t count, int64_t most, int32_t *best,
                           int32_t *values) {
    const int64_t last = UINT32_MAX;
    int64_t groups = 0;
    for (int64_t n = 0; n < count; n++)
        groups += ranges[n].last - ranges[n].first;
    int64_t lowest = NO_CENTROID / 2;
    if (2 * groups >= most && most > 0) {
        // Of groups of eight, as many as are wanted hold a number of at least this.
        for (int64_t g = 0; g < groups; g++) {
            ints own = LOAD(ints, scratch->dots + LANES * g);
            scratch->highest[2 * g] = __builtin_reduce_max(__builtin_shufflevector(own, own, 0, 1, 2, 3, 4, 5, 6, 7));
            scratch->highest[2 * g + 1] =
                __builtin_reduce_max(__builtin_shufflevector(own, own, 8, 9, 10, 11, 12, 13, 14, 15));
        }
        lowest = most_of(lowest, nth_highest(scratch->highest, 2 * groups, most));
    }
    int64_t found = 0, g = 0;
    for (int64_t n = 0; n < count; n++)
        for (int64_t group = ranges[n].first; group < ranges[n].last; group++, g++) {
            uint32_t mask = mask_of(LOAD(ints, scratch->dots + LANES * g) >= splat_int((int32_t)lowest));
            for (; mask; mask &= mask - 1) {
                int lane = __builtin_ctz(mask);
                // One key that sorts by dot product, highest first, then by centroid, lowest first.
                scratch->keys[found++] =
                    (int64_t)((uint64_t)scratch->dots[LANES * g + lane] << 32) + (last - (group * LANES + lane));
            }
            if (found > 2 * most) {
                lowest = nth_highest(scratch->keys, found, most) >> 32;
                found = most;
            }
        }
    sort_falling(scratch->keys, found, most);
    for (int64_t n = 0; n < most; n++) {
        best[n] = n < found ? (int32_t)(last - (scratch->keys[n] & last)) : -1;
        values[n] = n < found ? (int32_t)(scratch->keys[n] >> 32) : NO_CENTROID;
    }
}

// The numbers of a query token in 8 bits, shifted by 128: the largest is 127 times the scale. Returns the scale.
static float round_token(const float *vector, int64_t dim, uint8_t *row) {
    float peak = 0;
    for (int64_t i = 0; i < dim; i++)
        peak = fabsf(vector[i]) > peak ? fabsf(vector[i]) : peak;
    float scale = peak / 127;
    // Smaller scales are rounded so much that numbers would be above 127: the token is taken as zeros.
    double inverse = scale > 1e-42f ? 1 / (double)scale : 0;
    for (int64_t i = 0; i < dim; i++)
        row[i] = (uint8_t)(int32_t)(vector[i] * inverse + 128.5);
    return scale;
}

// Replace the dot products of the lists that a query probes by the scores they impute to their documents: the excess of
// a list over the last one is ``floor((dot - last) * scale * share) + 1`` with ``share = room / sum over tokens of
// (first - last) * scale``; 0 where there is no list.
static void impute(const int32_t *lists, int32_t *values, const float *scales, int64_t tokens, int64_t nprobe,
                   int64_t room) {
    if (!nprobe)
        return;
    double total = 1e-30;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t t = 0; t < tokens; t++) {
            const int32_t *own = lists + t * nprobe;
            int32_t *dots = values + t * nprobe;
            int32_t last = dots[0];
            for (int64_t n = 0; n < nprobe && own[n] >= 0; n++)
                last = dots[n];
            if (!pass) {
                total += (double)(dots[0] - last) * scales[t];
                continue;
            }
            double share = scales[t] * (room / total);
            for (int64_t n = 0; n < nprobe; n++)
                dots[n] = own[n] >= 0 ? (int32_t)((dots[n] - last) * share) + 1 : 0;
        }
}

// Find the inverted lists that every query token probes, and the excess of each: see the Python function. `lists`,
// `excess`: ``(tokens, nprobe)``, of which ``(tokens, result)`` is used; the result is -1 without memory.
EXPORT int64_t JOINED(find_lists, ISA)(const float *vectors, int64_t tokens, int64_t dim, CENTROIDS,
                                       int64_t most_coarse, int64_t nprobe, int64_t room, int32_t *lists,
                                       int32_t *excess) {
    Centroids centroids = GIVEN_CENTROIDS;
    int64_t width = 4 * words, groups = centroids.coarse.groups;
    int64_t most_groups = 0;
    for (int64_t c = 0; c < centroids.count; c++)
        most_groups = most_of(most_groups, centroids.offsets[c + 1] - centroids.offsets[c]);
    most_groups = most_of(most_groups * most_coarse, groups);
    int64_t keys = 2 * most_of(most_coarse, nprobe) + LANES;
    uint8_t *rows = allocate(ROWS * width);
    row_number *wide = allocate(ROWS * width * sizeof(row_number));
    int32_t *block = allocate(4 * ROWS * LANES * groups);
    float *scales = allocate(4 * tokens);
    int32_t *best = allocate(8 * most_coarse);
    Range *ranges = allocate(sizeof(Range) * most_coarse);
    Scratch scratch = {allocate(4 * LANES * most_groups), allocate(16 * most_groups), allocate(8 * keys)};
    bool failed =
        !rows || !wide || !block || !scales || !best || !ranges || !scratch.dots || !scratch.highest || !scratch.keys;
    int64_t longest = 0;
    if (!failed)
        memset(rows, 128, ROWS * width);
    for (int64_t first = 0; !failed && first < tokens; first += ROWS) {
        int64_t some = least_of(ROWS, tokens - first);
        for (int64_t r = 0; r < some; r++)
            scales[first + r] = round_token(vectors + (first + r) * dim, dim, rows + r * width);
        const row_number *multiplied = as_multiplied(rows, ROWS * width, wide);
        for (int64_t g = 0; g < groups; g++) {
            ints totals[ROWS];
            multiply_rows(multiplied, centroids.coarse.packed + 4 * LANES * words * g, false,
                          centroids.coarse.start + LANES * g, words, LANES, totals);
            for (int64_t r = 0; r < some; r++)
                STORE(ints, block + LANES * (groups * r + g), totals[r]);
        }
        for (int64_t r = 0; r < some; r++) {
            Range all = {0, groups};
            Scratch own = {block + LANES * groups * r, scratch.highest, scratch.keys};
            best_centroids(&own, &all, 1, most_coarse, best, best + most_coarse);
            int64_t found = 0;
            for (int64_t n = 0; n < most_coarse; n++) {
                // With starting sums from a damaged file, a lane without a centroid can be among the best.
                bool exists = 0 <= best[n] && best[n] < centroids.count;
                ranges[n] =
                    exists ? (Range){centroids.offsets[best[n]], centroids.offsets[best[n] + 1]} : (Range){0, 0};
                int64_t begin = ranges[n].first, own_groups = ranges[n].last - begin;
                multiply_groups(multiplied + r * width, centroids.fine.packed + 4 * LANES * words * begin,
                                centroids.fine.start + LANES * begin, words, own_groups, scratch.dots + LANES * found);
                found += own_groups;
            }
            longest = most_of(longest, found);
            best_centroids(&scratch, ranges, most_coarse, nprobe, lists + (first + r) * nprobe,
                           excess + (first + r) * nprobe);
        }
    }
    int64_t most = least_of(nprobe, LANES * longest);
    if (!failed) {
        for (int64_t t = 1; t < tokens; t++) {
            memmove(lists + t * most, lists + t * nprobe, 4 * most);
            memmove(excess + t * most, excess + t * nprobe, 4 * most);
        }
        impute(lists, excess, scales, tokens, most, room);
    }
    release(rows), release(wide), release(block), release(scales), release(best), release(ranges);
    release(scratch.dots), release(scratch.highest), release(scratch.keys);
    return failed ? -1 : most;
}
