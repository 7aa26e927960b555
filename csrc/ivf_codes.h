// Codes of tokens in memory: see latelier/indexes/ivf/kernels/codes.py.

#ifndef LATELIER_CODES_H
#define LATELIER_CODES_H

#include "ivf.h"

// Of what a token stores of its cell, the lowest bits are the number of a size. Stored scales from INFINITE on are
// infinity or NaN, as are floats whose exponent has all bits.
enum { SIZE_BITS = 4, SIZE_COUNT = 1 << SIZE_BITS, CELLS = 4096, INFINITE = 0xFF00, INFINITY_BITS = 0x7F800000 };

// `words`: of 32 bits, in a binary code; `code_bytes`: of a token without its binary code; `codebook`: ``(4096, 32 *
// words)``, and `masks` of it, see `Cells`: unused at 8 and 4 bits. The others are the choices of layout.py: `levels`,
// 128 plus the integer of each code of 4 bits; its `edges`, and the one of 2 bits; by number of a size, the standard
// deviation of what a cell leaves, its upper edge, and the integers of 2 bits, or of 1.
typedef struct {
    int64_t bits, dim, words, code_bytes;
    const int8_t *codebook;
    const uint8_t *masks;
    uint8_t levels[16];
    float edges[7], edge;
    float deviations[SIZE_COUNT], ends[SIZE_COUNT];
    uint8_t small[SIZE_COUNT], large[SIZE_COUNT];
} CodeShape;

// For each document the address of its first token in each array, and its number of tokens.
typedef struct {
    const int64_t *signs, *codes, *scales, *leads, *cells, *lengths;
} Documents;

// The parameters of a kernel that takes documents, and the documents.
#define DOCUMENTS                                                                                                      \
    const int64_t *signs, const int64_t *codes, const int64_t *scales, const int64_t *leads, const int64_t *cells,     \
        const int64_t *lengths
#define GIVEN_DOCUMENTS {signs, codes, scales, leads, cells, lengths}

typedef struct {
    const uint8_t *signs, *codes, *scales, *leads, *cells;
} Token;

INLINE Token token_at(const Documents *documents, const CodeShape *shape, int64_t document, int64_t token) {
    return (Token){
        (const uint8_t *)documents->signs[document] + 4 * shape->words * token,
        (const uint8_t *)documents->codes[document] + shape->code_bytes * token,
        (const uint8_t *)documents->scales[document] + 2 * token,
        (const uint8_t *)documents->leads[document] + 3 * token,
        (const uint8_t *)documents->cells[document] + 2 * token,
    };
}

#define EACH_BIT 1, 2, 4, 8, 16, 32, 64, 128
#define EIGHT(n) n, n, n, n, n, n, n, n

// The bits of a word as bytes, 0 or 255.
INLINE bytes32 bytes_of(const uint8_t *word) {
    typedef uint32_t words8 __attribute__((vector_size(32)));
    uint32_t bits = LOAD(uint32_t, word);
    bytes32 all = (bytes32)(words8){bits, bits, bits, bits, bits, bits, bits, bits};
    all = __builtin_shufflevector(all, all, EIGHT(0), EIGHT(1), EIGHT(18), EIGHT(19));
    return (bytes32)((all & (bytes32){EACH_BIT, EACH_BIT, EACH_BIT, EACH_BIT}) != 0);
}

INLINE bytes32 choose(bytes32 mask, bytes32 a, bytes32 b) {
    return (mask & a) | (~mask & b);
}

INLINE bytes32 splat_byte(uint8_t x) {
    return (bytes32){} + x;
}

// Write the integers of a token's 4-bit codes + 128, given the planes: signs, then the number of the size.
INLINE void merge_4(const uint8_t *levels, const uint8_t *signs, const uint8_t *low, uint8_t *row, int64_t words) {
    for (int64_t word = 0; word < words; word++) {
        bytes32 planes[4] = {bytes_of(signs + 4 * word)};
        UNROLL
        for (int plane = 0; plane < 3; plane++)
            planes[plane + 1] = bytes_of(low + 4 * (words * plane + word));
#if defined(__AVX2__) || defined(__aarch64__)
        bytes32 code = (planes[0] & 8) | (planes[1] & 4) | (planes[2] & 2) | (planes[3] & 1);
#if defined(__AVX2__)
        __m256i table = _mm256_broadcastsi128_si256(LOAD(__m128i, levels));
        STORE(bytes32, row + 32 * word, (bytes32)_mm256_shuffle_epi8(table, (__m256i)code));
#else
        uint8x16_t table = vld1q_u8(levels);
        STORE(bytes32, row + 32 * word, code);
        vst1q_u8(row + 32 * word, vqtbl1q_u8(table, vld1q_u8(row + 32 * word)));
        vst1q_u8(row + 32 * word + 16, vqtbl1q_u8(table, vld1q_u8(row + 32 * word + 16)));
#endif
#else
        bytes32 some[16];
        UNROLL
        for (int i = 0; i < 16; i++)
            some[i] = splat_byte(levels[i]);
        UNROLL
        for (int plane = 3; plane >= 0; plane--)
            UNROLL
        for (int i = 0; i < 1 << plane; i++)
            some[i] = choose(planes[plane], some[2 * i + 1], some[2 * i]);
        STORE(bytes32, row + 32 * word, some[0]);
#endif
    }
}

// Write the integers of a token's 2-bit codes, or 1-bit ones without `low`, + 128: a size with a sign beside its cell.
INLINE void merge_cell(const uint8_t *signs, const uint8_t *low, uint8_t *row, int64_t words, const int8_t *center,
                       uint8_t small, uint8_t large) {
    for (int64_t word = 0; word < words; word++) {
        bytes32 base = LOAD(bytes32, center + 32 * word) ^ 128;
        bytes32 size = splat_byte(small);
        if (low)
            size = choose(bytes_of(low + 4 * word), splat_byte(large), size);
        bytes32 above = __builtin_elementwise_add_sat(base, size);
        bytes32 below = __builtin_elementwise_sub_sat(base, size);
        STORE(bytes32, row + 32 * word, choose(bytes_of(signs + 4 * word), above, below));
    }
}

// Write a token at 4, 2 or 1 bits as it is multiplied, ``32 * words`` bytes: integers + 128, any beyond the dim.
INLINE void merge_planes(const CodeShape *shape, const uint8_t *signs, const uint8_t *low, uint32_t cell,
                         uint8_t *row) {
    if (shape->bits == 4) {
        merge_4(shape->levels, signs, low, row, shape->words);
        return;
    }
    uint32_t size = cell % SIZE_COUNT;
    const int8_t *center = shape->codebook + (cell >> SIZE_BITS) * 32 * shape->words;
    if (shape->bits == 2)
        merge_cell(signs, low, row, shape->words, center, shape->small[size], shape->large[size]);
    else
        merge_cell(signs, NULL, row, shape->words, center, shape->small[size], 0);
}

// Write a token, `token` after the one at `at`, as it is multiplied.
INLINE void load_row(const CodeShape *shape, Token at, int64_t token, uint8_t *row) {
    const uint8_t *codes = at.codes + shape->code_bytes * token;
    if (shape->bits == 8) {
        memcpy(row, codes, shape->dim);
        return;
    }
    uint32_t cell = shape->bits < 4 ? LOAD(uint16_t, at.cells + 2 * token) : 0;
    merge_planes(shape, at.signs + 4 * shape->words * token, codes, cell, row);
}

// What only a damaged file holds, infinity and NaN, is read as zero.
INLINE float load_scale(const uint8_t *place) {
    uint32_t bits = LOAD(uint16_t, place);
    return float_of((bits < INFINITE ? bits : 0) << 15);
}

INLINE float load_lead(const uint8_t *place) {
    uint32_t bits = (uint32_t)LOAD(uint16_t, place) << 8 | (uint32_t)place[2] << 24;
    return float_of((bits & INFINITY_BITS) < INFINITY_BITS ? bits : 0);
}

// Whether the codes of eight tokens can be multiplied where they are.
INLINE bool in_place(const CodeShape *shape) {
    return shape->bits == 8 && shape->dim == 32 * shape->words;
}

#endif
