// The binary stage: MaxSim of a query with the signs of documents, by tables of four signs.

#include "ivf_codes.h"

#include <float.h>

typedef uint16_t halves16 __attribute__((vector_size(32)));

// Dims of a table; tables of a word of 32 signs; document tokens that are looked up together; words that are transposed
// together, of so many bytes; blocks of tokens that are compared with a query token; documents that are fetched ahead.
enum { FOUR = 4, TABLES = 8, TOKENS = 32, WORDS = 4, BYTES = 16, BLOCKS = 4, AHEAD = 2 };

// Absolute integers of a table add up to at most 15, so that all sums of a word's lookups, 8 * 30, fit a byte. Rounding
// adds at most half a unit to each.
static const double ROOM = 15.5 - FOUR / 2;

// Write the integers of a query token and its tables, ``(8 * words, 2, 32)`` of which it has one of two; return its
// unit. A table has for each value of four bits ``sum of integer * sign + sum of absolute integers``, twice; the lowest
// bit is the sign of the first dim.
static float fill_tables(const float *vector, int64_t dim, int64_t words, uint8_t *tables) {
    double largest = 0;
    dim = least_of(dim, 32 * words);
    for (int64_t first = 0; first < dim; first += FOUR) {
        double total = 0;
        for (int64_t i = first; i < least_of(first + FOUR, dim); i++)
            total += fabs((double)vector[i]);
        largest = total > largest ? total : largest;
    }
    double unit = largest / ROOM, divisor = unit > 1e-300 ? unit : 1e-300;
    for (int64_t g = 0; g < TABLES * words; g++, tables += 2 * TOKENS) {
        int lowest = 0;
        int integers[FOUR];
        for (int b = 0; b < FOUR; b++) {
            int64_t i = FOUR * g + b;
            integers[b] = i < dim ? (int)floor(vector[i] / divisor + 0.5) : 0;
            lowest += abs(integers[b]) - integers[b];
        }
        tables[0] = (uint8_t)lowest;
        for (int b = 0; b < FOUR; b++)
            for (int i = 0; i < 1 << b; i++)
                tables[(1 << b) + i] = (uint8_t)(tables[i] + 2 * integers[b]);
        memcpy(tables + BYTES, tables, BYTES);
    }
    return unit < FLT_MAX ? (float)unit : FLT_MAX;
}

// Write the groups of four bits of 16 bytes of 32 rows, as 32 rows of 32 bytes `target_stride` apart, one per group.
// `masks`: for each cell, 16 bytes of bits on which it decides, and 16 of those of them that it sets; or NULL.
INLINE void transpose(const uint8_t *rows, int64_t stride, const uint8_t *cells, const uint8_t *masks, uint8_t *target,
                      int64_t target_stride) {
    bytes32 vectors[BYTES], others[BYTES];
    // Two tokens to a vector.
    UNROLL
    for (int i = 0; i < BYTES; i++) {
        bytes16 pair[2];
        UNROLL
        for (int half = 0; half < 2; half++) {
            int row = i + BYTES * half;
            pair[half] = LOAD(bytes16, rows + stride * row);
            if (masks) {
                const uint8_t *mask = masks + 2 * BYTES * (int64_t)(LOAD(uint16_t, cells + 2 * row) >> SIZE_BITS);
                pair[half] = (pair[half] & ~LOAD(bytes16, mask)) | LOAD(bytes16, mask + BYTES);
            }
        }
        vectors[i] = __builtin_shufflevector(pair[0], pair[1], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
                                             17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    // Interleaving vectors i and i + 8 four times transposes both halves of 16 x 16 bytes.
    UNROLL
    for (int round = 0; round < 4; round++) {
        UNROLL
        for (int i = 0; i < BYTES / 2; i++) {
            bytes32 x = vectors[i], y = vectors[i + BYTES / 2];
            others[2 * i] = __builtin_shufflevector(x, y, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 16,
                                                    48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55);
            others[2 * i + 1] =
                __builtin_shufflevector(x, y, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 24, 56, 25,
                                        57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
        }
        UNROLL
        for (int i = 0; i < BYTES; i++)
            vectors[i] = others[i];
    }
    UNROLL
    for (int i = 0; i < BYTES; i++) {
        STORE(bytes32, target + target_stride * 2 * i, vectors[i] & 15);
        STORE(bytes32, target + target_stride * (2 * i + 1), vectors[i] >> 4);
    }
}

// Write the groups of bits of 32 rows into one of several blocks; with fewer rows, the last one is repeated. `copies`:
// memory for 32 rows of `parts` times 16 bytes, and then of their cells.
static void spread(const CodeShape *shape, const uint8_t *signs, const uint8_t *cells, int64_t count, int64_t parts,
                   uint8_t *copies, uint8_t *groups, int64_t block, int64_t blocks) {
    int64_t row_bytes = 4 * shape->words, stride = row_bytes;
    if (count < TOKENS || BYTES * parts > row_bytes) { // otherwise, 16 bytes at a time are within the rows
        stride = BYTES * parts;
        for (int64_t r = 0; r < TOKENS; r++) {
            memcpy(copies + stride * r, signs + row_bytes * least_of(r, count - 1), least_of(stride, row_bytes));
            if (shape->masks)
                memcpy(copies + stride * TOKENS + 2 * r, cells + 2 * least_of(r, count - 1), 2);
        }
        signs = copies;
        cells = copies + stride * TOKENS;
    }
    for (int64_t part = 0; part < parts; part++) {
        uint8_t *target = groups + TOKENS * (blocks * WORDS * TABLES * part + block);
        if (shape->masks)
            transpose(signs + BYTES * part, stride, cells, shape->masks + 2 * BYTES * CELLS * part, target,
                      TOKENS * blocks);
        else
            transpose(signs + BYTES * part, stride, NULL, NULL, target, TOKENS * blocks);
    }
}

#if defined(__AVX512BW__)

typedef __m512i looked_up;
typedef uint16_t highest_of __attribute__((vector_size(64)));
INLINE looked_up look_up(const uint8_t *table, const uint8_t *row) {
    return _mm512_shuffle_epi8(LOAD(__m512i, table), _mm512_broadcast_i64x4(LOAD(__m256i, row)));
}

#else

typedef bytes32 looked_up;
typedef halves16 highest_of;
// The entries of a table, 32 bytes which repeat it, at 32 positions of 0 to 15.
INLINE looked_up look_up(const uint8_t *table, const uint8_t *row) {
#if defined(__AVX2__)
    return (bytes32)_mm256_shuffle_epi8(LOAD(__m256i, table), LOAD(__m256i, row));
#elif defined(__aarch64__)
    uint8x16_t own = vld1q_u8(table);
    bytes16 low = (bytes16)vqtbl1q_u8(own, vld1q_u8(row)), high = (bytes16)vqtbl1q_u8(own, vld1q_u8(row + 16));
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
                                   21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
#else
    // Each bit of a position adds a number, modulo 256.
    bytes32 places = LOAD(bytes32, row), total = splat_byte(table[0]);
    UNROLL
    for (int b = 0; b < FOUR; b++)
        total += (bytes32)((places & (uint8_t)(1 << b)) != 0) & splat_byte((uint8_t)(table[1 << b] - table[0]));
    return total;
#endif
}

#endif

// Raise the maxima of two query tokens, ``(2, 16)`` of which the largest counts, by the sums of the lookups of `blocks`
// times 32 document tokens.
INLINE void raise_sign_maxima(const uint8_t *groups, const uint8_t *tables, int64_t words, int blocks, uint16_t *best) {
    for (int first = 0; first < 2 * TOKENS; first += (int)sizeof(looked_up)) {
        highest_of even[BLOCKS], odd[BLOCKS];
        UNROLL
        for (int b = 0; b < blocks; b++)
            even[b] = odd[b] = (highest_of){};
        for (int64_t word = 0; word < words; word++) {
            typedef uint8_t sums_of __attribute__((vector_size(sizeof(looked_up))));
            sums_of totals[BLOCKS];
            UNROLL
            for (int g = 0; g < TABLES; g++)
                UNROLL
            for (int b = 0; b < blocks; b++) {
                int64_t row = TABLES * word + g;
                sums_of found =
                    (sums_of)look_up(tables + 2 * TOKENS * row + first, groups + TOKENS * (blocks * row + b));
                totals[b] = g ? totals[b] + found : found;
            }
            UNROLL
            for (int b = 0; b < blocks; b++) {
                even[b] += (highest_of)totals[b] & 255;
                odd[b] += (highest_of)totals[b] >> 8;
            }
        }
        highest_of highest = LOAD(highest_of, (uint8_t *)best + first);
        UNROLL
        for (int b = 0; b < blocks; b++)
            highest = __builtin_elementwise_max(highest, __builtin_elementwise_max(even[b], odd[b]));
        STORE(highest_of, (uint8_t *)best + first, highest);
    }
}

static void compare(const uint8_t *groups, const uint8_t *tables, int64_t pairs, int64_t words, int64_t blocks,
                    uint16_t *best) {
    for (int64_t pair = 0; pair < pairs; pair++, tables += 2 * TOKENS * TABLES * words, best += TOKENS) {
        if (blocks == 4)
            raise_sign_maxima(groups, tables, words, 4, best);
        else if (blocks == 2)
            raise_sign_maxima(groups, tables, words, 2, best);
        else
            raise_sign_maxima(groups, tables, words, 1, best);
    }
}

// Prefetch the cache lines from an address to another, and return where the next one begins.
static int64_t fetch(int64_t address, int64_t end) {
    for (; address < end; address += 64)
        prefetch((const void *)address);
    return address;
}

// Write for each chosen document, with at least one token, the sum over query tokens of ``unit * largest sum of
// lookups``; minus infinity where it is not finite. The first 32 * words dims are scored.
EXPORT int64_t JOINED(sign_scores, ISA)(DOCUMENTS, const int64_t *chosen, int64_t count, const CodeShape *shape,
                                        const float *vectors, int64_t query_tokens, int64_t words, float *scores) {
    Documents documents = GIVEN_DOCUMENTS;
    int64_t parts = (words + WORDS - 1) / WORDS, pairs = (query_tokens + 1) / 2, row_bytes = 4 * shape->words;
    float *units = allocate(4 * query_tokens);
    uint8_t *tables = allocate_zeros(2 * TOKENS * TABLES * words * pairs);
    uint16_t *best = allocate(2 * TOKENS * pairs);
    uint8_t *groups = allocate(parts * WORDS * TABLES * BLOCKS * TOKENS);
    uint8_t *copies = allocate_zeros((TOKENS + BYTES) * BYTES * parts);
    int failed = !units || !tables || !best || !groups || !copies;
    for (int64_t t = 0; !failed && t < query_tokens; t++) {
        uint8_t *own = tables + 2 * TOKENS * TABLES * words * (t / 2) + TOKENS * (t % 2);
        units[t] = fill_tables(vectors + t * shape->dim, shape->dim, words, own);
    }
    for (int64_t n = 0; !failed && n < count; n++) {
        int64_t ahead = chosen[least_of(n + AHEAD, count - 1)], tokens = lengths[chosen[n]];
        int64_t wanted = signs[ahead], end = wanted + lengths[ahead] * row_bytes;
        if (shape->masks)
            fetch(cells[ahead], cells[ahead] + 2 * lengths[ahead]);
        memset(best, 0, 2 * TOKENS * pairs);
        for (int64_t token = 0, blocks; token < tokens; token += blocks * TOKENS) {
            int64_t left = tokens - token;
            blocks = left > 3 * TOKENS ? 4 : left > TOKENS ? 2 : 1;
            // As many bytes of a later document as this step reads; more at once would wait for each other.
            wanted = fetch(wanted, least_of(end, wanted + blocks * TOKENS * row_bytes));
            for (int64_t b = 0; b < blocks; b++) {
                // The last block begins earlier, to have 32 tokens; comparing one twice does not change the maximum.
                int64_t first = most_of(0, least_of(token + b * TOKENS, tokens - TOKENS));
                Token at = token_at(&documents, shape, chosen[n], first);
                spread(shape, at.signs, at.cells, least_of(TOKENS, tokens), parts, copies, groups, b, blocks);
            }
            compare(groups, tables, pairs, words, blocks, best);
        }
        fetch(wanted, end);
        float total = 0;
        for (int64_t t = 0; t < query_tokens; t++)
            total += units[t] * __builtin_reduce_max(LOAD(halves16, best + TOKENS / 2 * t));
        // Units near the largest float can make the sum infinite, which the selection after this stage does not accept.
        scores[n] = total < INFINITY ? total : -INFINITY;
    }
    release(units), release(tables), release(best), release(groups), release(copies);
    return failed ? -1 : 0;
}
