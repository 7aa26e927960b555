// Int8 MaxSim in one pass: no matrix of similarities is ever written.
//
// Groups of sixteen query tokens fill the lanes of registers, eight document tokens are scored at a time, and only
// maxima leave the registers. The multiplication takes unsigned by signed numbers, so document codes are shifted by
// 128.

#include "bytes.h"

// Writes `count` codes as they are multiplied.
static void shift_codes(const int8_t *restrict codes, row_number *restrict rows, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        rows[i] = (uint8_t)(codes[i] ^ 0x80);
    }
}

// Eight rows that are multiplied with all groups of the query: they need not be longer than the codes of a row, since
// the query has zeros there.
static void shift_rows(const int8_t *codes, int64_t dim, int64_t count, row_number *rows, int64_t words) {
    if (count == ROWS && dim == 4 * words) {
        shift_codes(codes, rows, ROWS * dim);
        return;
    }
    for (int64_t r = 0; r < ROWS; r++) { // missing rows are copies of the last one
        shift_codes(codes + least_of(r, count - 1) * dim, rows + 4 * words * r, dim);
    }
}

// best[lane] = max(best[lane], scales[r] * totals[r][lane]) for eight rows.
INLINE void raise_int8_maxima(const ints *totals, const float *scales, float *best) {
    floats highest = LOAD(floats, best);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        floats products = __builtin_convertvector(totals[r], floats) * splat_float(scales[r]);
        highest = select_floats(products > highest, products, highest);
    }
    STORE(floats, best, highest);
}

typedef struct {
    int64_t groups;
    int64_t words;
    const void *packed; // widened where rows are
    int64_t group_bytes;
    const int32_t *start;
    row_number *rows;
    float *best;
} Int8Scoring;

// Updates the maxima with the document of `tokens` codes of `dim` numbers.
static void score_codes_of(const Int8Scoring *scoring, const int8_t *codes, int64_t dim, const float *scales,
                           int64_t tokens) {
    int64_t words = scoring->words;
    float few[ROWS];
    if (tokens < ROWS) {
        for (int64_t r = 0; r < ROWS; r++) {
            few[r] = scales[least_of(r, tokens - 1)];
        }
        scales = few;
    }
    for (int64_t token = 0; token < tokens; token += ROWS) {
        // The last step starts eight rows before the end and scores some rows twice, which changes no maximum.
        int64_t first = most_of(0, least_of(token, tokens - ROWS));
        shift_rows(codes + first * dim, dim, least_of(ROWS, tokens), scoring->rows, words);
        for (int64_t line = 0; line < ROWS * dim; line += 64) {
            prefetch(codes + (first + 2 * ROWS) * dim + line);
        }
        const char *packed = scoring->packed;
        for (int64_t g = 0; g < scoring->groups; g++) {
            ints totals[ROWS];
            multiply_rows(scoring->rows, packed, WIDE_ROWS, scoring->start + LANES * g, words, LANES, totals);
            raise_int8_maxima(totals, scales + first, scoring->best + LANES * g);
            packed += scoring->group_bytes;
        }
    }
}

// Scores `documents` documents against queries; the Python function has the meaning of the arguments. `columns` is the
// length of a row of `scores`. `scratch`: bytes, 64 * groups + 128 * groups * words + 64 * words.
KERNEL(score_int8)(const int8_t *codes, const float *scales, const int64_t *offsets, int64_t documents, int64_t dim,
                   const int8_t *packed, const int32_t *start, const float *query_scales, const int64_t *query_offsets,
                   int64_t queries, int64_t groups, int64_t words, float *scores, int64_t columns, int64_t column,
                   char *scratch) {
    Int8Scoring scoring = {groups, words, packed, 4 * LANES * words, start};
    scoring.best = (float *)scratch;
    scoring.rows = (row_number *)(scratch + 4 * LANES * groups);
#if WIDE_ROWS
    int16_t *widened = (int16_t *)(scoring.rows + 4 * ROWS * words);
    for (int64_t i = 0; i < 4 * LANES * groups * words; i++) {
        widened[i] = packed[i];
    }
    scoring.packed = widened;
    scoring.group_bytes *= 2;
#endif
    for (int64_t d = 0; d < documents; d++) {
        int64_t begin = offsets[d];
        int64_t tokens = offsets[d + 1] - begin;
        for (int64_t i = 0; i < LANES * groups; i++) {
            scoring.best[i] = -INFINITY;
        }
        score_codes_of(&scoring, codes + begin * dim, dim, scales + begin, tokens);
        for (int64_t q = 0; q < queries; q++) {
            double total = 0;
            for (int64_t i = query_offsets[q]; i < query_offsets[q + 1]; i++) {
                total += scoring.best[i] * query_scales[i];
            }
            scores[columns * q + column + d] = tokens > 0 ? (float)total : -INFINITY;
        }
    }
}
