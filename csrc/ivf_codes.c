// Tokens as codes, and back.

#include "ivf_codes.h"

// Replace sixteen numbers by their Hadamard transform.
INLINE floats mix_lanes(floats x) {
#define MIX(x, sign, ...) (x * (floats)sign + __builtin_shufflevector(x, x, __VA_ARGS__))
#define SIGNS(...) {__VA_ARGS__}
    x = MIX(x, SIGNS(1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1), 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13,
            12, 15, 14);
    x = MIX(x, SIGNS(1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1), 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14,
            15, 12, 13);
    x = MIX(x, SIGNS(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1), 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8,
            9, 10, 11);
    x = MIX(x, SIGNS(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1), 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3,
            4, 5, 6, 7);
    return x;
}

INLINE void mix_block(float *numbers, int count) {
    floats block[8];
    UNROLL
    for (int i = 0; i < count; i++)
        block[i] = mix_lanes(LOAD(floats, numbers + LANES * i));
    UNROLL
    for (int step = 1; step < count; step *= 2)
        UNROLL
    for (int i = 0; i < count; i++)
        if (!(i & step)) {
            floats x = block[i], y = block[i | step];
            block[i] = x + y;
            block[i | step] = x - y;
        }
    UNROLL
    for (int i = 0; i < count; i++)
        STORE(floats, numbers + LANES * i, block[i]);
}

// Replace `size` numbers, a power of two, by their Hadamard transform.
static void transform(float *numbers, int64_t size) {
    int64_t step = 1;
    if (size >= 8 * LANES) {
        step = 8 * LANES;
        for (int64_t first = 0; first < size; first += step)
            mix_block(numbers + first, 8);
    } else if (size >= LANES) {
        step = LANES;
        for (int64_t first = 0; first < size; first += step)
            mix_block(numbers + first, 1);
    }
    for (; step < size; step *= 2)
        for (int64_t first = 0; first < size; first += 2 * step)
            for (int64_t i = first; i < first + step; i++) {
                float x = numbers[i], y = numbers[i + step];
                numbers[i] = x + y;
                numbers[i + step] = x - y;
            }
}

// `axis`: ``(dim,)``; `flips`: ``(transforms, size)``: factors before each transform, of the first and the last
// numbers.
typedef struct {
    const float *axis, *flips;
    int64_t transforms, size;
} Rotation;

// Write the rotated rest of a vector; return its lead.
static float rotate(const float *vector, int64_t dim, const Rotation *rotation, float *rest) {
    float lead = dot(vector, rotation->axis, dim);
    int64_t size = rotation->size;
    for (int64_t i = 0; i < size; i++)
        rest[i] = (vector[i] - lead * rotation->axis[i]) * rotation->flips[i];
    for (int64_t i = size; i < dim; i++)
        rest[i] = vector[i] - lead * rotation->axis[i];
    transform(rest, size);
    if (rotation->transforms > 1) {
        for (int64_t i = 0; i < size; i++)
            rest[dim - size + i] *= rotation->flips[size + i];
        transform(rest + dim - size, size);
    }
    return lead;
}

KERNEL(rotate_rows)(const float *rows, int64_t count, int64_t dim, const float *axis, const float *flips,
                    int64_t transforms, int64_t size, float *rests, float *leads) {
    Rotation rotation = {axis, flips, transforms, size};
    for (int64_t n = 0; n < count; n++)
        leads[n] = rotate(rows + n * dim, dim, &rotation, rests + n * dim);
}

// Replace rotated rests by the vectors that they and their leads come from.
KERNEL(restore_rows)(float *rows, int64_t count, int64_t dim, const float *axis, const float *flips, int64_t transforms,
                     int64_t size, const float *leads) {
    for (int64_t n = 0; n < count; n++) {
        float *row = rows + n * dim;
        for (int64_t turn = transforms - 1; turn >= 0; turn--) {
            float *own = row + turn * (dim - size);
            transform(own, size);
            for (int64_t i = 0; i < size; i++)
                own[i] *= flips[turn * size + i];
        }
        // The code of a rest has a small component along the axis.
        float missing = leads[n] - dot(row, axis, dim);
        for (int64_t i = 0; i < dim; i++)
            row[i] += missing * axis[i];
    }
}

// Write bit `bit` of each of ``32 * words`` bytes.
static void take_plane(const uint8_t *row, int bit, int64_t words, uint32_t *plane) {
    for (int64_t word = 0; word < words; word++) {
#if defined(__AVX2__)
        __m256i bytes = _mm256_sll_epi16(LOAD(__m256i, row + 32 * word), _mm_cvtsi32_si128(7 - bit));
        plane[word] = (uint32_t)_mm256_movemask_epi8(bytes);
#elif defined(__x86_64__)
        __m128i shift = _mm_cvtsi32_si128(7 - bit);
        uint32_t low = (uint32_t)_mm_movemask_epi8(_mm_sll_epi16(LOAD(__m128i, row + 32 * word), shift));
        uint32_t high = (uint32_t)_mm_movemask_epi8(_mm_sll_epi16(LOAD(__m128i, row + 32 * word + 16), shift));
        plane[word] = low | high << 16;
#else
        uint32_t found = 0;
        for (int i = 0; i < 32; i++)
            found |= (uint32_t)(row[32 * word + i] >> bit & 1) << i;
        plane[word] = found;
#endif
    }
}

// The largest absolute number, as bits: those of non-negative floats are ordered like these.
static uint32_t peak_bits(const float *numbers, int64_t count) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t size = bits_of(numbers[i]) & 0x7FFFFFFF;
        largest = size > largest ? size : largest;
    }
    return largest;
}

// The scale of very small numbers has no finite inverse, and that of very large ones an inexact one: tokens whose scale
// or norm is outside of these bounds are multiplied by 2**64 or 2**-64 before their numbers are divided by it.
#define SMALL 0x1p-64f
#define LARGE 0x1p64f

static void multiply(const float *numbers, int64_t count, float factor, float *scaled) {
    for (int64_t i = 0; i < count; i++)
        scaled[i] = numbers[i] * factor;
}

// Write ``round(number / scale) + 128`` as bytes; 128 if the scale is 0.
static void round_to_bytes(const float *numbers, int64_t count, float scale, uint8_t *row) {
    // A float in (-256, 256) is rounded by adding this, and the lowest bits of the sum hold the integer + 128.
    const float round = 0x1.8p23f + 128;
    float inverse = scale > 0 ? 1 / scale : 0;
    for (int64_t i = 0; i < count; i++)
        row[i] = (uint8_t)bits_of(numbers[i] * inverse + round);
}

// Write a token's numbers in 8 bits, shifted by 128; return the scale as it is stored.
static uint16_t encode_bytes(const float *rest, int64_t dim, float *scaled, uint8_t *row) {
    uint32_t highest = peak_bits(rest, dim);
    // Rounded up, so that the largest number is at most 127 * scale.
    uint32_t stored = (bits_of(float_of(highest) / 127) + 0x7FFF) >> 15;
    float scale = float_of(stored << 15);
    if (scale < SMALL) {
        multiply(rest, dim, LARGE, scaled);
        round_to_bytes(scaled, dim, scale * LARGE, row);
    } else {
        round_to_bytes(rest, dim, scale, row);
    }
    return highest < INFINITY_BITS ? (uint16_t)stored : INFINITE;
}

// Write a code per number: its sign in the highest bit, and the number of its size. Edges are those of normally
// distributed numbers.
static void quantise(const CodeShape *shape, const float *numbers, float deviation, uint8_t *row) {
    uint8_t sign = (uint8_t)(1 << (shape->bits - 1));
    for (int64_t i = 0; i < shape->dim; i++)
        row[i] = numbers[i] >= 0 ? sign : 0;
    int edges = shape->bits == 4 ? 7 : shape->bits == 2 ? 1 : 0;
    for (int n = 0; n < edges; n++) {
        float edge = (shape->bits == 4 ? shape->edges[n] : shape->edge) * deviation;
        for (int64_t i = 0; i < shape->dim; i++)
            row[i] += fabsf(numbers[i]) >= edge;
    }
}

// The length of a vector, whose sum has the same order on all instruction sets.
static double norm_of(const float *numbers, int64_t count) {
    double sums[LANES] = {};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        UNROLL
    for (int lane = 0; lane < LANES; lane++)
        sums[lane] += (double)numbers[i + lane] * numbers[i + lane];
    for (int lane = 0; i < count; i++, lane++)
        sums[lane] += (double)numbers[i] * numbers[i];
    double total = 0;
    for (int lane = 0; lane < LANES; lane++)
        total += sums[lane];
    return sqrt(total);
}

// Write what a cell leaves of a rest, in integers, and their deviation; return the cell with the number of its size.
// Where the cell leaves more than the largest size, it is cell 0. `centers`: memory for its integers.
static uint16_t leave(const CodeShape *shape, const float *rest, double norm, uint32_t cell, float *centers,
                      float *left, float *deviation) {
    const int8_t *center = shape->codebook + (int64_t)cell * 32 * shape->words;
    int64_t dim = shape->dim;
    uint32_t largest = SIZE_COUNT - 1;
    for (int64_t i = 0; i < dim; i++)
        centers[i] = center[i];
    float product = dot(centers, rest, dim);
    if (product > 0) {
        float factor = dot(centers, centers, dim) / product;
        for (int64_t i = 0; i < dim; i++)
            left[i] = rest[i] * factor - centers[i];
        float found = sqrtf(dot(left, left, dim) / dim);
        if (found <= shape->deviations[largest]) {
            uint32_t size = 0;
            for (uint32_t n = 0; n < largest; n++)
                size += found >= shape->ends[n];
            *deviation = shape->deviations[size];
            return (uint16_t)(cell << SIZE_BITS | size);
        }
    }
    *deviation = shape->deviations[largest];
    float factor = norm > 0 ? (float)(*deviation * sqrt((double)dim) / norm) : 0;
    multiply(rest, dim, factor, left);
    return (uint16_t)largest;
}

// Write the codes of tokens: see the Python function.
EXPORT int64_t JOINED(encode_tokens, ISA)(const CodeShape *shape, const float *axis, const float *flips,
                                          int64_t transforms, int64_t size, const float *vectors, int64_t count,
                                          uint32_t *signs, uint8_t *codes, uint16_t *scales, uint8_t *leads,
                                          uint16_t *cells) {
    Rotation rotation = {axis, flips, transforms, size};
    int64_t dim = shape->dim, words = shape->words, planes = shape->bits - 1;
    float *rest = allocate(12 * dim);
    uint8_t *row = allocate_zeros(2 * 32 * words);
    if (!rest || !row) {
        release(rest), release(row);
        return -1;
    }
    float *scaled = rest + dim, *integers = scaled + dim;
    uint8_t *merged = row + 32 * words; // not the row, whose bytes beyond the dim stay zero
    for (int64_t t = 0; t < count; t++) {
        uint32_t lead = bits_of(rotate(vectors + t * dim, dim, &rotation, rest));
        lead += (lead & INFINITY_BITS) < INFINITY_BITS ? 0x80 : 0;
        for (int i = 0; i < 3; i++)
            leads[3 * t + i] = (uint8_t)(lead >> (8 * i + 8));
        uint32_t *own_signs = signs + t * words;
        if (shape->bits == 8) {
            scales[t] = encode_bytes(rest, dim, scaled, row);
            memcpy(codes + t * dim, row, dim);
            take_plane(row, 7, words, own_signs);
            continue;
        }
        double norm = norm_of(rest, dim);
        float power = 1;
        if (!(SMALL <= norm && norm <= LARGE)) {
            power = norm < SMALL ? LARGE : SMALL;
            multiply(rest, dim, power, rest);
        }
        uint32_t *own = (uint32_t *)codes + t * words * planes;
        if (shape->bits == 4) {
            quantise(shape, rest, (float)(norm * power / sqrt((double)dim)), row);
        } else {
            float deviation;
            cells[t] = leave(shape, rest, norm * power, cells[t], integers, scaled, &deviation);
            quantise(shape, scaled, deviation, row);
        }
        take_plane(row, (int)planes, words, own_signs);
        for (int64_t plane = 0; plane < planes; plane++)
            take_plane(row, (int)(planes - 1 - plane), words, own + words * plane);
        merge_planes(shape, (uint8_t *)own_signs, (uint8_t *)own, shape->bits < 4 ? cells[t] : 0, merged);
        for (int64_t i = 0; i < dim; i++)
            integers[i] = (float)(merged[i] - 128);
        float product = dot(integers, rest, dim);
        double scale = product > 0 ? (norm * power) * (norm * power) / product / power : 0;
        uint32_t stored = (bits_of((float)scale) + 0x4000) >> 15;
        // The largest numbers would be rounded up to infinity.
        scales[t] = norm < INFINITY ? (uint16_t)least_of(stored, INFINITE - 1) : INFINITE;
    }
    release(rest), release(row);
    return 0;
}

// Write the tokens of some documents as they are multiplied: integers + 128, and 128 beyond the dim.
KERNEL(unpack_documents)(DOCUMENTS, const int64_t *chosen, int64_t count, const CodeShape *shape, uint8_t *rows,
                         float *row_scales) {
    Documents documents = GIVEN_DOCUMENTS;
    int64_t width = 32 * shape->words, done = 0;
    for (int64_t n = 0; n < count; n++) {
        Token at = token_at(&documents, shape, chosen[n], 0);
        for (int64_t t = 0; t < lengths[chosen[n]]; t++, done++) {
            load_row(shape, at, t, rows + done * width);
            memset(rows + done * width + shape->dim, 128, width - shape->dim);
            row_scales[done] = load_scale(at.scales + 2 * t);
        }
    }
}

// Prefetch the numbers, the scale and the cell of a token.
static void prefetch_token(const CodeShape *shape, Token at) {
    prefetch(at.scales);
    if (shape->bits < 4)
        prefetch(at.cells);
    if (shape->bits < 8)
        prefetch(at.signs);
    for (int64_t line = 0; line < shape->code_bytes; line += 64)
        prefetch(at.codes + line);
    if (shape->code_bytes)
        prefetch(at.codes + shape->code_bytes - 1);
}

// Write single tokens: token `tokens[n]` of document `owners[n]`.
KERNEL(unpack_tokens)(DOCUMENTS, const int64_t *owners, const int64_t *tokens, int64_t count, const CodeShape *shape,
                      uint8_t *rows, float *row_scales) {
    Documents documents = GIVEN_DOCUMENTS;
    int64_t width = 32 * shape->words;
    for (int64_t n = 0; n < count; n++) {
        int64_t ahead = least_of(n + ROWS, count - 1);
        prefetch_token(shape, token_at(&documents, shape, owners[ahead], tokens[ahead]));
        Token at = token_at(&documents, shape, owners[n], tokens[n]);
        load_row(shape, at, 0, rows + n * width);
        memset(rows + n * width + shape->dim, 128, width - shape->dim);
        row_scales[n] = load_scale(at.scales);
    }
}

// Write the rotated rests and the leads of some documents.
EXPORT int64_t JOINED(decode_documents, ISA)(DOCUMENTS, const int64_t *chosen, int64_t count, const CodeShape *shape,
                                             float *rests, float *rest_leads) {
    Documents documents = GIVEN_DOCUMENTS;
    int64_t dim = shape->dim, done = 0;
    uint8_t *row = allocate(32 * shape->words);
    if (!row)
        return -1;
    for (int64_t n = 0; n < count; n++) {
        Token at = token_at(&documents, shape, chosen[n], 0);
        for (int64_t t = 0; t < lengths[chosen[n]]; t++, done++) {
            load_row(shape, at, t, row);
            float scale = load_scale(at.scales + 2 * t);
            for (int64_t i = 0; i < dim; i++)
                rests[done * dim + i] = (float)(row[i] - 128) * scale;
            rest_leads[done] = load_lead(at.leads + 3 * t);
        }
    }
    release(row);
    return 0;
}
