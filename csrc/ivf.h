// What kernels of IVF share: memory, bits of numbers, masks of lanes.

#ifndef LATELIER_IVF_H
#define LATELIER_IVF_H

#include "bytes.h"

#include <stdlib.h>

typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint8_t bytes32 __attribute__((vector_size(32)));

// Memory that begins with a cache line, so that no load of a vector crosses two; NULL if there is none.
INLINE void *allocate(int64_t size) {
    uint8_t *memory = malloc(size + 128);
    if (!memory)
        return NULL;
    void **place = (void **)(memory + 128 - (uintptr_t)memory % 64);
    place[-1] = memory;
    return place;
}

INLINE void *allocate_zeros(int64_t size) {
    void *memory = allocate(size);
    return memory ? memset(memory, 0, size) : NULL;
}

INLINE void release(void *memory) {
    if (memory)
        free(((void **)memory)[-1]);
}

INLINE uint32_t bits_of(float number) {
    uint32_t bits;
    memcpy(&bits, &number, 4);
    return bits;
}

INLINE float float_of(uint32_t bits) {
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

// A bit for each of sixteen lanes that are 0 or -1.
INLINE uint32_t mask_of(ints lanes) {
#if defined(__AVX512F__)
    return _mm512_cmplt_epi32_mask((__m512i)lanes, _mm512_setzero_si512());
#elif defined(__AVX2__)
    __m256i low = (__m256i)__builtin_shufflevector(lanes, lanes, 0, 1, 2, 3, 4, 5, 6, 7);
    __m256i high = (__m256i)__builtin_shufflevector(lanes, lanes, 8, 9, 10, 11, 12, 13, 14, 15);
    return (uint32_t)_mm256_movemask_ps((__m256)low) | (uint32_t)_mm256_movemask_ps((__m256)high) << 8;
#else
    typedef uint8_t lane_bytes __attribute__((vector_size(LANES)));
    lane_bytes each = __builtin_convertvector(lanes, lane_bytes);
#if defined(__x86_64__)
    return (uint32_t)_mm_movemask_epi8((__m128i)each);
#else
    uint64_t halves[2];
    each &= (lane_bytes){1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    memcpy(halves, &each, LANES);
    // The highest byte of the product is the sum of all bytes.
    const uint64_t ones = 0x0101010101010101;
    return (uint32_t)(halves[0] * ones >> 56) | (uint32_t)(halves[1] * ones >> 56) << 8;
#endif
#endif
}

// The dot product of two vectors, whose sum has the same order on all instruction sets.
INLINE float dot(const float *a, const float *b, int64_t count) {
    floats total = {};
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        total += LOAD(floats, a + i) * LOAD(floats, b + i);
    floats last[2] = {};
    memcpy(last, a + whole, 4 * (count - whole));
    memcpy(last + 1, b + whole, 4 * (count - whole));
    total += last[0] * last[1];
    total += __builtin_shufflevector(total, total, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    total += __builtin_shufflevector(total, total, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    total += __builtin_shufflevector(total, total, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    return total[0] + total[1];
}

#endif
