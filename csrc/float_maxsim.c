// Floating-point MaxSim in one pass: no matrix of similarities is ever written.
//
// A matrix product as narrow as a query runs at half the processor's speed, and its result has to be read again for the
// maxima. Here groups of sixteen query tokens fill the lanes of one or more registers, the document tokens of a tile
// are scored at a time, and only maxima leave the registers. Sums are float32 for every dtype.
//
// A word of four bytes is one float32 or two bfloat16. A row's word is copied to all lanes and multiplied by the same
// word of sixteen query tokens, so no sum goes across lanes. Half-precision rows are widened to float32, those of one
// tile while those before them are multiplied, which hides the time it takes.

#include "common.h"
#include "conversion.h"

// Query tokens are packed in a multiple of so many words, so that loops are unrolled without a remainder.
enum { STEP = 4 };

// Rows and groups of a tile: as many sums as registers hold, beside what they are computed from.
#if defined(__AVX512F__)
enum { TILE_ROWS = 8, TILE_GROUPS = 2 };
#elif defined(__AVX2__)
enum { TILE_ROWS = 6, TILE_GROUPS = 1 };
#elif defined(__aarch64__)
enum { TILE_ROWS = 4, TILE_GROUPS = 1 };
#else
enum { TILE_ROWS = 2, TILE_GROUPS = 1 };
#endif

// What is done while a tile is multiplied: rows of `kind` are converted from `source` to `target`, both contiguous, and
// those at `ahead` are prefetched.
typedef struct {
    int64_t kind;
    const char *source;
    char *target;
    const char *ahead;
} Following;

// One step of it, of those that take `STEP` words of each row.
INLINE void convert_step(Following following, int64_t step) {
    enum { COUNT = TILE_ROWS * STEP };
    if (following.kind == PLAIN_WORDS) {
        for (int64_t line = 0; line < 4 * COUNT; line += 64) {
            prefetch(following.ahead + 4 * COUNT * step + line);
        }
        return;
    }
    for (int64_t line = 0; line < 2 * COUNT; line += 64) {
        prefetch(following.ahead + 2 * COUNT * step + line);
    }
    const char *source = following.source + 2 * COUNT * step;
    char *target = following.target + 4 * COUNT * step;
    if (following.kind == FLOAT16) {
        for (int64_t i = 0; i < COUNT; i += 8) {
            widen_eight(FLOAT16, source + 2 * i, target + 4 * i);
        }
    } else {
        for (int64_t i = 0; i < COUNT; i += 8) {
            widen_eight(BFLOAT16, source + 2 * i, target + 4 * i);
        }
    }
}

// `sums` with the products of a row's word, in all lanes, and a word of each of sixteen query tokens added.
INLINE floats add_products(floats sums, const char *row, const char *query, bool pairs) {
#if defined(__AVX512BF16__)
    if (pairs) {
        __m512bh word = (__m512bh)splat_int(LOAD(int32_t, row));
        return (floats)_mm512_dpbf16_ps((__m512)sums, word, (__m512bh)LOAD(ints, query));
    }
#endif
    return multiply_add(splat_float(LOAD(float, row)), LOAD(floats, query), sums);
}

// best[g][lane] = max(best[g][lane], <rows[r], query[g][lane]>) for the rows of a tile, whose first has the number
// `first`; `where` gets the number of the row. `words` is a multiple of STEP; a group of the query has 16 * words.
INLINE void raise_float_maxima(const char *rows, const char *query, int64_t words, int groups, bool pairs,
                         Following following, int64_t first, float *best, int32_t *where) {
    floats sums[TILE_ROWS][TILE_GROUPS] = {};
    for (int64_t step = 0; step < words / STEP; step++) {
        convert_step(following, step);
        UNROLL
        for (int i = 0; i < STEP; i++) {
            int64_t word = STEP * step + i;
            UNROLL
            for (int r = 0; r < TILE_ROWS; r++) {
                UNROLL
                for (int g = 0; g < groups; g++) {
                    const char *lanes = query + 4 * LANES * (words * g + word);
                    sums[r][g] = add_products(sums[r][g], rows + 4 * (words * r + word), lanes, pairs);
                }
            }
        }
    }
    UNROLL
    for (int g = 0; g < groups; g++) {
        floats highest = LOAD(floats, best + LANES * g);
        ints found = LOAD(ints, where + LANES * g);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            ints higher = sums[r][g] > highest;
            highest = select_floats(higher, sums[r][g], highest);
            found = select_ints(higher, splat_int((int32_t)(first + r)), found);
        }
        STORE(floats, best + LANES * g, highest);
        STORE(ints, where + LANES * g, found);
    }
}

typedef struct {
    int64_t kind;
    int64_t numbers;
    int64_t row_bytes;
    int64_t words; // of a row in a buffer and of the queries
    int64_t groups;
    const char *packed;
    char *buffers[2];
    float *best;
    int32_t *where;
} FloatScoring;

// Updates the maxima with the document at `address`; `next` is the address of the document after it.
INLINE void score_rows_of(const FloatScoring *scoring, const char *address, int64_t tokens, const char *next, bool pairs) {
    int64_t kind = scoring->kind;
    int64_t row_bytes = scoring->row_bytes;
    int64_t words = scoring->words;
    bool padded = scoring->numbers < words; // rows have to be copied, with zeros after them
    bool in_place = kind == PLAIN_WORDS && tokens >= TILE_ROWS && !padded;
    for (int64_t token = 0; token < tokens; token += TILE_ROWS) {
        // The last tile starts earlier, to have all its rows, and scores some rows twice, which changes no maximum.
        int64_t first = most_of(0, least_of(token, tokens - TILE_ROWS));
        int64_t after = least_of(token + TILE_ROWS, tokens - TILE_ROWS);
        const char *rows = address + first * row_bytes;
        const char *coming = address + after * row_bytes;
        int step = token / TILE_ROWS % 2;
        if (!in_place) {
            char *buffer = scoring->buffers[step];
            if (token == 0 || padded) {
                for (int64_t r = 0; r < TILE_ROWS; r++) { // missing rows are copies of the last one
                    const char *row = rows + least_of(r, tokens - 1) * row_bytes;
                    convert_row(kind, row, buffer + 4 * words * r, scoring->numbers);
                }
            }
            rows = buffer;
        }
        Following following = {kind, coming, scoring->buffers[1 - step], coming};
        if (padded || token + TILE_ROWS >= tokens) {
            following.kind = PLAIN_WORDS;
            following.ahead = next;
        } else if (!in_place) {
            following.ahead = coming + TILE_ROWS * row_bytes;
        }
        int64_t g = 0;
        for (; g + TILE_GROUPS <= scoring->groups; g += TILE_GROUPS) {
            raise_float_maxima(rows, scoring->packed + 4 * LANES * words * g, words, TILE_GROUPS, pairs, following, first,
                         scoring->best + LANES * g, scoring->where + LANES * g);
            following.kind = PLAIN_WORDS; // the first groups have converted them
            following.ahead = rows;
        }
        for (; g < scoring->groups; g++) {
            raise_float_maxima(rows, scoring->packed + 4 * LANES * words * g, words, 1, pairs, following, first,
                         scoring->best + LANES * g, scoring->where + LANES * g);
            following.kind = PLAIN_WORDS;
            following.ahead = rows;
        }
    }
}

// Scores `documents` documents at `addresses` against queries; the Python function has the meaning of the arguments.
// `columns` is the length of a row of `scores` and `positions`. `scratch`: zeros, 32 * groups + 16 * words of 4 bytes.
KERNEL(score_floats)(const int64_t *addresses, const int64_t *lengths, int64_t documents, int64_t kind, int64_t numbers,
                     int64_t row_bytes, int64_t pairs, const char *packed, int64_t groups, int64_t words,
                     const int64_t *query_offsets, int64_t queries, float *scores, int32_t *positions,
                     int64_t query_tokens, int64_t columns, int64_t column, char *scratch) {
    FloatScoring scoring = {kind, numbers, row_bytes, words, groups, packed};
    scoring.best = (float *)scratch;
    scoring.where = (int32_t *)(scratch + 4 * LANES * groups);
    scoring.buffers[0] = scratch + 8 * LANES * groups;
    scoring.buffers[1] = scoring.buffers[0] + 4 * TILE_ROWS * words;
    for (int64_t d = 0; d < documents; d++) {
        int64_t tokens = lengths[d];
        for (int64_t i = 0; i < LANES * groups; i++) {
            scoring.best[i] = -INFINITY;
            scoring.where[i] = -1;
        }
        const char *next = (const char *)addresses[least_of(d + 1, documents - 1)];
#if defined(__AVX512BF16__)
        if (pairs) {
            score_rows_of(&scoring, (const char *)addresses[d], tokens, next, true);
        } else
#endif
        {
            score_rows_of(&scoring, (const char *)addresses[d], tokens, next, false);
        }
        for (int64_t i = 0; i < query_tokens; i++) { // 0 where no positions are wanted
            positions[i * columns + column + d] = scoring.where[i];
        }
        for (int64_t q = 0; q < queries; q++) {
            double total = 0;
            for (int64_t i = query_offsets[q]; i < query_offsets[q + 1]; i++) {
                total += scoring.best[i];
            }
            scores[q * columns + column + d] = tokens > 0 ? (float)total : -INFINITY;
        }
    }
}

static void add_weighted(float *restrict out, float weight, const float *restrict row, int64_t dim) {
    for (int64_t i = 0; i < dim; i++) {
        out[i] += weight * row[i];
    }
}

// Adds the gradients of the tokens of queries first to last - 1 to `out`: that of query token i is the sum over the
// documents d of gradients[q, d] * document[position(i, d)].
KERNEL(add_query_gradients)(const float *gradients, const int32_t *positions, int64_t columns, const float *vectors,
                            const int64_t *offsets, int64_t dim, const int64_t *query_offsets, float *out,
                            int64_t first, int64_t last) {
    for (int64_t q = first; q < last; q++) {
        for (int64_t token = query_offsets[q]; token < query_offsets[q + 1]; token++) {
            for (int64_t d = 0; d < columns; d++) {
                float weight = gradients[columns * q + d];
                int64_t position = positions[columns * token + d];
                if (position >= 0 && weight != 0) {
                    add_weighted(out + dim * token, weight, vectors + dim * (offsets[d] + position), dim);
                }
            }
        }
    }
}

// The same for the tokens of documents first to last - 1: document[position(i, d)] grows by gradients[q, d] * query[i].
KERNEL(add_document_gradients)(const float *gradients, const int32_t *positions, int64_t columns, const float *vectors,
                               const int64_t *offsets, int64_t dim, const int64_t *document_offsets, float *out,
                               int64_t first, int64_t last, int64_t queries) {
    for (int64_t d = first; d < last; d++) {
        for (int64_t q = 0; q < queries; q++) {
            float weight = gradients[columns * q + d];
            for (int64_t token = offsets[q]; token < offsets[q + 1]; token++) {
                int64_t position = positions[columns * token + d];
                if (position >= 0 && weight != 0) {
                    add_weighted(out + dim * (document_offsets[d] + position), weight, vectors + dim * token, dim);
                }
            }
        }
    }
}
