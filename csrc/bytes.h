// Exact products of rows of bytes with groups of sixteen packed vectors.
//
// Rows are `4 * words` bytes, shifted by 128; on some instruction sets they are widened to 16 bits first
// (`row_number`, `as_multiplied`). A group is `(words, 16, 4)` int8, which may be widened too. `start`: `(16,)` int32,
// `-128 * sum` of each vector, which cancels the shift, or NO_CENTROID for a lane without one.

#ifndef LATELIER_BYTES_H
#define LATELIER_BYTES_H

#include "common.h"

enum { NO_CENTROID = -(1 << 30) };

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define VNNI_LANES 16
#elif defined(__AVXVNNI__)
#define VNNI_LANES 8
#elif defined(__ARM_FEATURE_DOTPROD)
#define SDOT
#elif defined(__AVX512BW__)
#define PAIRS 32
#elif defined(__AVX2__)
#define PAIRS 16
#else
#define PAIRS 8
#endif

#ifdef PAIRS

#define WIDE_ROWS 1
typedef int16_t row_number;
typedef int16_t shorts __attribute__((vector_size(2 * PAIRS)));
typedef int32_t pairs __attribute__((vector_size(2 * PAIRS)));
typedef int8_t octets __attribute__((vector_size(PAIRS)));
typedef int64_t longs __attribute__((vector_size(2 * PAIRS)));

// Lanes of which a register holds one word, and registers of a group.
enum { PART = PAIRS / 4, PARTS = LANES / PART };

INLINE pairs multiply_pairs(shorts a, shorts b) {
#if PAIRS == 32
    return (pairs)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif PAIRS == 16
    return (pairs)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__) || defined(_M_X64)
    return (pairs)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
    return (pairs)vpaddq_s32(vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b)),
                             vmull_high_s16((int16x8_t)a, (int16x8_t)b));
#else
    pairs sums;
    UNROLL
    for (int i = 0; i < PAIRS / 2; i++)
        sums[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return sums;
#endif
}

// Add to the sums of some rows and some registers of a group.
INLINE void multiply_block(const int16_t *rows, const void *vectors, bool widened, int64_t words, int first_row,
                           int count, int first_part, int parts, pairs sums[][PARTS]) {
    pairs own[ROWS][PARTS];
    UNROLL
    for (int r = 0; r < count; r++)
        UNROLL
    for (int p = 0; p < parts; p++)
        own[r][p] = (pairs){0};
    for (int64_t word = 0; word < words; word++) {
        shorts packed[PARTS];
        UNROLL
        for (int p = 0; p < parts; p++) {
            int64_t place = 4 * LANES * word + PAIRS * (first_part + p);
            if (widened)
                packed[p] = LOAD(shorts, (const int16_t *)vectors + place);
            else
                packed[p] = __builtin_convertvector(LOAD(octets, (const int8_t *)vectors + place), shorts);
        }
        UNROLL
        for (int r = 0; r < count; r++) {
            int64_t four = LOAD(int64_t, rows + 4 * (words * (first_row + r) + word));
            shorts row = (shorts)(four - (longs){0});
            UNROLL
            for (int p = 0; p < parts; p++)
                own[r][p] += multiply_pairs(row, packed[p]);
        }
    }
    UNROLL
    for (int r = 0; r < count; r++)
        UNROLL
    for (int p = 0; p < parts; p++)
        sums[first_row + r][first_part + p] = own[r][p];
}

// Sixteen sums from the registers of a group, which hold two numbers for each lane.
INLINE ints join_pairs(const pairs *sums) {
#if PAIRS == 32
    return __builtin_shufflevector(sums[0], sums[1], 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           __builtin_shufflevector(sums[0], sums[1], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif PAIRS == 16
    pairs quarter[2];
    UNROLL
    for (int i = 0; i < 2; i++)
        quarter[i] = __builtin_shufflevector(sums[2 * i], sums[2 * i + 1], 0, 2, 4, 6, 8, 10, 12, 14) +
                     __builtin_shufflevector(sums[2 * i], sums[2 * i + 1], 1, 3, 5, 7, 9, 11, 13, 15);
    return __builtin_shufflevector(quarter[0], quarter[1], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    ints joined;
    UNROLL
    for (int i = 0; i < 4; i++) {
        pairs four = __builtin_shufflevector(sums[2 * i], sums[2 * i + 1], 0, 2, 4, 6) +
                     __builtin_shufflevector(sums[2 * i], sums[2 * i + 1], 1, 3, 5, 7);
        UNROLL
        for (int j = 0; j < 4; j++)
            joined[4 * i + j] = four[j];
    }
    return joined;
#endif
}

// Write the dot products of eight rows with the first `lanes` vectors of a group.
INLINE void multiply_rows(const row_number *rows, const void *vectors, bool widened, const int32_t *start,
                          int64_t words, int lanes, ints totals[ROWS]) {
    pairs sums[ROWS][PARTS];
    int parts = (lanes + PART - 1) / PART;
    UNROLL
    for (int r = 0; r < ROWS; r++)
        UNROLL
    for (int p = 0; p < PARTS; p++)
        sums[r][p] = (pairs){0};
    UNROLL
    for (int row = 0; row < ROWS; row += 4)
        UNROLL
    for (int part = 0; part + 2 <= parts; part += 2)
        multiply_block(rows, vectors, widened, words, row, 4, part, 2, sums);
    if (parts % 2)
        multiply_block(rows, vectors, widened, words, 0, ROWS, parts - 1, 1, sums);
    ints begin = LOAD(ints, start);
    UNROLL
    for (int r = 0; r < ROWS; r++)
        totals[r] = begin + join_pairs(sums[r]);
}

// Write the dot products of one row with consecutive groups.
INLINE void multiply_groups(const row_number *row, const int8_t *vectors, const int32_t *start, int64_t words,
                            int64_t groups, int32_t *out) {
    for (int64_t g = 0; g < groups; g++) {
        pairs sums[1][PARTS];
        multiply_block(row, vectors + 4 * LANES * words * g, false, words, 0, 1, 0, PARTS, sums);
        STORE(ints, out + LANES * g, LOAD(ints, start + LANES * g) + join_pairs(sums[0]));
    }
}

INLINE const row_number *as_multiplied(const uint8_t *rows, int64_t count, row_number *wide) {
    for (int64_t i = 0; i < count; i++)
        wide[i] = rows[i];
    return wide;
}

#else

#define WIDE_ROWS 0
typedef uint8_t row_number;

INLINE const row_number *as_multiplied(const uint8_t *rows, int64_t count, row_number *wide) {
    (void)count, (void)wide;
    return rows;
}

#endif

#ifdef VNNI_LANES

enum { PARTS = LANES / VNNI_LANES };
#if VNNI_LANES == 16
typedef __m512i register_t_;
#define DOT(total, row, packed) _mm512_dpbusd_epi32(total, row, packed)
#define SPLAT(word) _mm512_set1_epi32(word)
enum { TOGETHER = ROWS, GROUPS_TOGETHER = 8 };
#else
typedef __m256i register_t_;
#define DOT(total, row, packed) _mm256_dpbusd_avx_epi32(total, row, packed)
#define SPLAT(word) _mm256_set1_epi32(word)
enum { TOGETHER = ROWS / 2, GROUPS_TOGETHER = 4 };
#endif

INLINE void multiply_block(const uint8_t *rows, const int8_t *vectors, const int32_t *start, int64_t words, int count,
                           int groups, int32_t *out, int64_t row_stride, int64_t group_stride) {
    register_t_ sums[TOGETHER][GROUPS_TOGETHER * PARTS];
    UNROLL
    for (int r = 0; r < count; r++)
        UNROLL
    for (int p = 0; p < groups * PARTS; p++)
        sums[r][p] = LOAD(register_t_, start + VNNI_LANES * p);
    for (int64_t word = 0; word < words; word++)
        UNROLL
    for (int g = 0; g < groups; g++)
        UNROLL
    for (int p = 0; p < PARTS; p++) {
        register_t_ packed = LOAD(register_t_, vectors + 4 * LANES * (words * g + word) + 4 * VNNI_LANES * p);
        UNROLL
        for (int r = 0; r < count; r++) {
            register_t_ row = SPLAT(LOAD(int32_t, rows + 4 * (words * r + word)));
            sums[r][g * PARTS + p] = DOT(sums[r][g * PARTS + p], row, packed);
        }
    }
    UNROLL
    for (int r = 0; r < count; r++)
        UNROLL
    for (int g = 0; g < groups; g++)
        UNROLL
    for (int p = 0; p < PARTS; p++)
        STORE(register_t_, out + row_stride * r + group_stride * g + VNNI_LANES * p, sums[r][g * PARTS + p]);
}

INLINE void multiply_rows(const row_number *rows, const void *vectors, bool widened, const int32_t *start,
                          int64_t words, int lanes, ints totals[ROWS]) {
    (void)widened, (void)lanes;
    UNROLL
    for (int row = 0; row < ROWS; row += TOGETHER)
        multiply_block(rows + 4 * words * row, vectors, start, words, TOGETHER, 1, (int32_t *)(totals + row), LANES, 0);
}

INLINE void multiply_groups(const row_number *row, const int8_t *vectors, const int32_t *start, int64_t words,
                            int64_t groups, int32_t *out) {
    int64_t g = 0;
    for (; g + GROUPS_TOGETHER <= groups; g += GROUPS_TOGETHER)
        multiply_block(row, vectors + 4 * LANES * words * g, start + LANES * g, words, 1, GROUPS_TOGETHER,
                       out + LANES * g, 0, LANES);
    for (; g < groups; g++)
        multiply_block(row, vectors + 4 * LANES * words * g, start + LANES * g, words, 1, 1, out + LANES * g, 0, 0);
}

#endif

#ifdef SDOT

// Both factors are signed: rows are shifted back, and only a lane without a vector needs its starting sum.
INLINE void multiply_four(const uint8_t *rows, const int8_t *vectors, const int32_t *start, int64_t words, int count,
                          ints *totals) {
    int32x4_t sums[4][4];
    UNROLL
    for (int part = 0; part < 4; part++) {
        int32x4_t begin = vld1q_s32(start + 4 * part);
        begin = vandq_s32(begin, vreinterpretq_s32_u32(vcleq_s32(begin, vdupq_n_s32(NO_CENTROID))));
        UNROLL
        for (int r = 0; r < count; r++)
            sums[r][part] = begin;
    }
    for (int64_t word = 0; word < words; word += 4) {
        int8x16_t row[4];
        UNROLL
        for (int r = 0; r < count; r++)
            row[r] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(rows + 4 * (words * r + word)), vdupq_n_u8(128)));
#define STEP(w)                                                                                                        \
    UNROLL                                                                                                             \
    for (int part = 0; part < 4; part++) {                                                                             \
        int8x16_t packed = vld1q_s8(vectors + 4 * LANES * (word + w) + 16 * part);                                     \
        UNROLL                                                                                                         \
        for (int r = 0; r < count; r++)                                                                                \
            sums[r][part] = vdotq_laneq_s32(sums[r][part], packed, row[r], w);                                         \
    }
        STEP(0) STEP(1) STEP(2) STEP(3)
#undef STEP
    }
    UNROLL
    for (int r = 0; r < count; r++)
        UNROLL
    for (int part = 0; part < 4; part++)
        vst1q_s32((int32_t *)(totals + r) + 4 * part, sums[r][part]);
}

INLINE void multiply_rows(const row_number *rows, const void *vectors, bool widened, const int32_t *start,
                          int64_t words, int lanes, ints totals[ROWS]) {
    (void)widened, (void)lanes;
    UNROLL
    for (int row = 0; row < ROWS; row += 4)
        multiply_four(rows + 4 * words * row, vectors, start, words, 4, totals + row);
}

INLINE void multiply_groups(const row_number *row, const int8_t *vectors, const int32_t *start, int64_t words,
                            int64_t groups, int32_t *out) {
    for (int64_t g = 0; g < groups; g++) {
        ints total;
        multiply_four(row, vectors + 4 * LANES * words * g, start + LANES * g, words, 1, &total);
        STORE(ints, out + LANES * g, total);
    }
}

#endif

#endif
