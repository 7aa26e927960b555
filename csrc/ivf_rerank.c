// Reranking: MaxSim of codes with a query in 8 bits, and of the best documents in single precision.

#include "ivf_codes.h"

// Digits of a number, what a unit of one is worth in units of the next, and groups of query tokens whose products with
// a document are kept at a time, which limits the memory for long queries.
enum { DIGITS = 3, BASE = 254, GROUPS = 4 };

#if WIDE_ROWS
typedef int16_t packed_number;
#else
typedef int8_t packed_number;
#endif

// A query as ``scale * (d0 + d1 / 254 + d2 / 254 ** 2)``, each digit in -127 to 127: as precise as float32. `digits`:
// ``(3, tokens, width)``; `packed`: the first ones, ``(groups, words, 16, 4)``; `start`: ``(3, groups, 16)``, ``-128 *
// (sum of a token's digits)``, which cancels the shift of document rows; `leads`: in units of the scales; `margins`:
// how far a product in 8 bits can be below that of all digits, for a row's scale of 1.
typedef struct {
    int64_t tokens, groups, width;
    int16_t *digits;
    packed_number *packed;
    int32_t *start;
    float *scales, *leads, *margins;
} Query;

static void release_query(Query *query) {
    release(query->digits), release(query->packed), release(query->start), release(query->scales);
}

// Quantise a query; the scale of each token is its largest absolute number / 127.
static bool quantise_query(Query *query, const float *vectors, const float *leads, int64_t dim) {
    int64_t tokens = query->tokens, lanes = LANES * query->groups, width = query->width;
    query->digits = allocate_zeros(2 * DIGITS * tokens * width);
    query->packed = allocate_zeros(lanes * width * (int64_t)sizeof(packed_number));
    query->start = allocate_zeros(4 * DIGITS * lanes);
    query->scales = allocate_zeros(4 * 3 * lanes);
    query->leads = query->scales + lanes;
    query->margins = query->leads + lanes;
    double *rest = allocate(8 * dim);
    if (!query->digits || !query->packed || !query->start || !query->scales || !rest) {
        release(rest);
        return false;
    }
    for (int64_t t = 0; t < tokens; t++) {
        const float *vector = vectors + t * dim;
        // The rest of a token is taken to be at least so long, beside its lead: a smaller one adds nothing to a score.
        float peak = 0x1p-24f * fabsf(leads[t]);
        for (int64_t i = 0; i < dim; i++)
            peak = fabsf(vector[i]) > peak ? fabsf(vector[i]) : peak;
        float scale = peak / 127;
        // Smaller scales are rounded so much that digits would be above 127: the token is taken as zeros.
        double inverse = scale > 1e-42f ? 1 / (double)scale : 0;
        query->scales[t] = scale;
        query->leads[t] = (float)(leads[t] * inverse);
        for (int64_t i = 0; i < dim; i++)
            rest[i] = vector[i] * inverse;
        int64_t low[DIGITS] = {};
        for (int place = 0; place < DIGITS; place++) {
            int16_t *digits = query->digits + (tokens * place + t) * width;
            int32_t total = 0, sizes = 0;
            for (int64_t i = 0; i < dim; i++) {
                // floor(rest + 1/2): the shift by 128 makes the number positive, and truncation then rounds it down.
                // The new rest is 254 times a number in [-1/2, 1/2], so the next digit is in [-127, 127].
                int32_t digit = (int32_t)(rest[i] + 128.5) - 128;
                rest[i] = (rest[i] - digit) * BASE;
                digits[i] = (int16_t)digit;
                total += digit;
                sizes += abs(digit);
            }
            query->start[lanes * place + t] = -128 * total;
            low[place] = sizes;
        }
        packed_number *own = query->packed + t / LANES * LANES * width + 4 * (t % LANES);
        for (int64_t i = 0; i < dim; i++)
            own[4 * LANES * (i / 4) + i % 4] = (packed_number)query->digits[t * width + i];
        // The numbers of a row are at most 128. Rounding both products to float32 adds less than the first term.
        query->margins[t] = (float)(dim / 128.0 + 128.0 / BASE * (low[1] + (double)low[2] / BASE));
    }
    release(rest);
    return true;
}

// The tokens of a document as they are read, and memory for what is known of them: `products` is ``(tokens, 64)``.
typedef struct {
    float *scales, *leads, *products;
    uint8_t *rows;
    row_number *wide;
} Own;

// Raise the maxima of a group of query tokens by eight rows, and keep the products.
INLINE void raise_maxima(const Query *query, int64_t group, int lanes, const row_number *rows, const float *scales,
                         const float *leads, float *best, float *products) {
    ints totals[ROWS];
    multiply_rows(rows, query->packed + LANES * query->width * group, WIDE_ROWS, query->start + LANES * group,
                  query->width / 4, lanes, totals);
    floats highest = LOAD(floats, best), others = LOAD(floats, query->leads + LANES * group);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        floats product = __builtin_convertvector(totals[r], floats) * splat_float(scales[r]);
        product += splat_float(leads[r]) * others;
        ints higher = product > highest;
        highest = select_floats(higher, product, highest);
        STORE(floats, products + LANES * GROUPS * r, product);
    }
    STORE(floats, best, highest);
}

// Prefetch the integers of the cells of some tokens, at 2 and 1 bits.
INLINE void prefetch_cells(const CodeShape *shape, const uint8_t *cells, int64_t count) {
    for (int64_t r = 0; r < count; r++) {
        const int8_t *center =
            shape->codebook + (int64_t)(LOAD(uint16_t, cells + 2 * r) >> SIZE_BITS) * 32 * shape->words;
        for (int64_t line = 0; line < 32 * shape->words; line += 64)
            prefetch(center + line);
    }
}

// Write the products in 8 bits of a document with some groups of query tokens, and raise their maxima in `best`. The
// document `ahead` is prefetched.
static void raise_by_document(const Documents *documents, const CodeShape *shape, int64_t document, int64_t ahead,
                              const Query *query, int64_t first_group, int64_t groups, const Own *own, float *best) {
    int64_t tokens = documents->lengths[document], more = documents->lengths[ahead], width = query->width;
    for (int64_t token = 0; token < most_of(tokens, more); token += ROWS) {
        // As many bytes of the next document as this step reads; more at once would wait for each other.
        for (int64_t line = token * shape->code_bytes; line < least_of(token + ROWS, more) * shape->code_bytes;
             line += 64)
            prefetch((const void *)(documents->codes[ahead] + line));
        if (token >= tokens)
            continue;
        if (shape->bits < 4)
            prefetch_cells(shape, (const uint8_t *)documents->cells[document] + 2 * (token + ROWS),
                           least_of(ROWS, tokens - token - ROWS));
        // The last step begins earlier, to have eight rows; scoring a row twice does not change the maximum.
        int64_t first = most_of(0, least_of(token, tokens - ROWS)), count = least_of(ROWS, tokens - first);
        Token at = token_at(documents, shape, document, first);
        const uint8_t *rows = at.codes;
        if (!in_place(shape) || count < ROWS) {
            for (int64_t r = 0; r < ROWS; r++)
                load_row(shape, at, least_of(r, count - 1), own->rows + r * width);
            rows = own->rows;
        }
        const row_number *multiplied = as_multiplied(rows, ROWS * width, own->wide);
        for (int64_t g = 0; g < groups; g++) {
            const float *scales = own->scales + first, *leads = own->leads + first;
            float *highest = best + LANES * (first_group + g), *products = own->products + LANES * (GROUPS * first + g);
            // Only the sets with wide rows multiply fewer lanes in less time.
            int64_t lanes = WIDE_ROWS ? query->tokens - LANES * (first_group + g) : LANES;
            if (lanes <= 4)
                raise_maxima(query, first_group + g, 4, multiplied, scales, leads, highest, products);
            else if (lanes <= 8)
                raise_maxima(query, first_group + g, 8, multiplied, scales, leads, highest, products);
            else if (lanes <= 12)
                raise_maxima(query, first_group + g, 12, multiplied, scales, leads, highest, products);
            else
                raise_maxima(query, first_group + g, LANES, multiplied, scales, leads, highest, products);
        }
    }
}

// The dot products of a row with the three digits of a query token, `stride` numbers apart.
INLINE void dots_of_digits(const uint8_t *row, const int16_t *digits, int64_t stride, int64_t width,
                           int32_t dots[DIGITS]) {
#if defined(__AVX512BW__)
    ints sums[DIGITS] = {};
    for (int64_t i = 0; i < width; i += 32) {
        __m512i codes = _mm512_cvtepu8_epi16(LOAD(__m256i, row + i));
        UNROLL
        for (int place = 0; place < DIGITS; place++)
            sums[place] += (ints)_mm512_madd_epi16(codes, LOAD(__m512i, digits + stride * place + i));
    }
#elif defined(__AVX2__)
    typedef int32_t ints8 __attribute__((vector_size(32)));
    ints8 sums[DIGITS] = {};
    for (int64_t i = 0; i < width; i += 16) {
        __m256i codes = _mm256_cvtepu8_epi16(LOAD(__m128i, row + i));
        UNROLL
        for (int place = 0; place < DIGITS; place++)
            sums[place] += (ints8)_mm256_madd_epi16(codes, LOAD(__m256i, digits + stride * place + i));
    }
#else
    int32_t sums[DIGITS][8] = {};
    for (int64_t i = 0; i < width; i += 8)
        UNROLL
    for (int place = 0; place < DIGITS; place++)
        UNROLL
    for (int j = 0; j < 8; j++)
        sums[place][j] += row[i + j] * digits[stride * place + i + j];
#endif
    UNROLL
    for (int place = 0; place < DIGITS; place++) {
#if defined(__AVX2__)
        dots[place] = __builtin_reduce_add(sums[place]);
#else
        dots[place] = 0;
        UNROLL
        for (int j = 0; j < 8; j++)
            dots[place] += sums[place][j];
#endif
    }
}

// Raise maxima by products of a document's tokens with all digits of some groups of query tokens. Only tokens whose
// product in 8 bits may reach the edge of a query token are multiplied, and each once: their products in 8 bits become
// minus infinity. `margins` may be NULL for zeros, and `edges` be the maxima.
static void multiply_all_digits(const CodeShape *shape, Token at, int64_t tokens, const Query *query,
                                int64_t first_group, int64_t groups, const Own *own, const float *edges,
                                const float *margins, float *best) {
    int64_t width = query->width, stride = query->tokens * width, all = LANES * query->groups;
    for (int64_t r = 0; r < tokens; r++) {
        const uint8_t *row = NULL;
        for (int64_t g = 0; g < groups; g++) {
            float *products = own->products + LANES * (GROUPS * r + g);
            floats most = LOAD(floats, products);
            if (margins)
                most += LOAD(floats, margins + LANES * g) * splat_float(own->scales[r]);
            uint32_t mask = mask_of(most >= LOAD(floats, edges + LANES * g));
            for (; mask; mask &= mask - 1) {
                int lane = __builtin_ctz(mask);
                int64_t t = LANES * (first_group + g) + lane;
                if (!row && in_place(shape))
                    row = at.codes + r * width;
                else if (!row)
                    load_row(shape, at, r, own->rows), row = own->rows;
                int32_t dots[DIGITS];
                dots_of_digits(row, query->digits + t * width, stride, width, dots);
                float value = (float)(dots[2] + query->start[2 * all + t]);
                value = value * (1.0f / BASE) + (float)(dots[1] + query->start[all + t]);
                value = value * (1.0f / BASE) + (float)(dots[0] + query->start[t]);
                value = value * own->scales[r] + own->leads[r] * query->leads[t];
                best[LANES * g + lane] = value > best[LANES * g + lane] ? value : best[LANES * g + lane];
                products[lane] = -INFINITY;
            }
        }
    }
}

// Whether a score is among the highest, of which it then replaces the lowest; always if there are none.
static bool enters(float *highest, int64_t count, float score) {
    int64_t lowest = 0;
    for (int64_t i = 1; i < count; i++)
        lowest = highest[i] < highest[lowest] ? i : lowest;
    if (count && score < highest[lowest])
        return false;
    if (count)
        highest[lowest] = score;
    return true;
}

// The score of a document, given the highest product of each query token.
static float add_up(const float *best, const float *scales, int64_t tokens) {
    float total = 0;
    for (int64_t t = 0; t < tokens; t++)
        total += best[t] * scales[t];
    // The selection of the best does not accept NaN, the score of a document without tokens or with damaged scales.
    return total == total ? total : -INFINITY;
}

// Write the MaxSim of the chosen documents with a query in 8 bits, and of the best in single precision: see the Python
// function. `highest`: ``(most,)``; `scores`: ``(count, 2)``.
EXPORT int64_t JOINED(rerank_scores, ISA)(DOCUMENTS, const int64_t *chosen, int64_t count, const CodeShape *shape,
                                          const float *vectors, const float *query_leads, int64_t tokens,
                                          float *highest, int64_t most, float *scores) {
    Documents documents = GIVEN_DOCUMENTS;
    Query query = {.tokens = tokens, .groups = (tokens + LANES - 1) / LANES, .width = 32 * shape->words};
    int64_t longest = ROWS, lanes = LANES * query.groups;
    for (int64_t n = 0; n < count; n++)
        longest = most_of(longest, lengths[chosen[n]]);
    float *best = allocate(8 * lanes);
    Own own = {
        .scales = allocate(8 * longest),
        .products = allocate(4 * LANES * GROUPS * longest),
        .rows = allocate(ROWS * query.width * (1 + sizeof(row_number))),
    };
    bool failed =
        !quantise_query(&query, vectors, query_leads, shape->dim) || !best || !own.scales || !own.products || !own.rows;
    own.leads = own.scales + longest;
    own.wide = (row_number *)(own.rows + ROWS * query.width);
    float *edges = best + lanes;
    for (int64_t n = 0; !failed && n < count; n++) {
        int64_t document = chosen[n], ahead = chosen[least_of(n + 1, count - 1)], length = lengths[document];
        for (int64_t line = 0; line < 2 * lengths[ahead]; line += 64) {
            prefetch((const uint8_t *)scales[ahead] + line);
            prefetch((const uint8_t *)leads[ahead] + line);
            if (shape->bits < 4)
                prefetch((const uint8_t *)cells[ahead] + line);
        }
        Token at = token_at(&documents, shape, document, 0);
        // Eight of them are read: copies of the last token follow.
        for (int64_t t = 0; length && t < most_of(length, ROWS); t++) {
            own.scales[t] = load_scale(at.scales + 2 * least_of(t, length - 1));
            own.leads[t] = load_lead(at.leads + 3 * least_of(t, length - 1));
        }
        for (int64_t i = 0; i < lanes; i++)
            best[i] = -INFINITY;
        for (int64_t first = 0; first < query.groups; first += GROUPS)
            raise_by_document(&documents, shape, document, ahead, &query, first, least_of(GROUPS, query.groups - first),
                              &own, best);
        scores[2 * n] = add_up(best, query.scales, tokens);
        scores[2 * n + 1] = NAN;
        if (!enters(highest, most, scores[2 * n]))
            continue;
        for (int64_t first = 0; length && first < query.groups; first += GROUPS) {
            int64_t groups = least_of(GROUPS, query.groups - first);
            if (query.groups > GROUPS) // these products were overwritten
                raise_by_document(&documents, shape, document, document, &query, first, groups, &own, best);
            float *own_best = best + LANES * first, *own_edges = edges + LANES * first;
            for (int64_t i = 0; i < LANES * groups; i++) {
                bool is_token = LANES * first + i < tokens;
                own_edges[i] = is_token ? own_best[i] : INFINITY;
                own_best[i] = is_token ? -INFINITY : INFINITY;
            }
            // The tokens with the highest products in 8 bits, which are then the edges of the others.
            multiply_all_digits(shape, at, length, &query, first, groups, &own, own_edges, NULL, own_best);
            multiply_all_digits(shape, at, length, &query, first, groups, &own, own_best, query.margins + LANES * first,
                                own_best);
        }
        scores[2 * n + 1] = add_up(best, query.scales, tokens);
    }
    release_query(&query);
    release(best), release(own.scales), release(own.products), release(own.rows);
    return failed ? -1 : 0;
}
