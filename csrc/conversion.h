// Conversion of document rows before they are multiplied: half precision becomes float32, int8 is shifted by 128.

#ifndef LATELIER_CONVERSION_H
#define LATELIER_CONVERSION_H

#include "common.h"

// What rows hold: float32 or pairs of bfloat16, which are multiplied as they are; half precision, which becomes
// float32.
enum { PLAIN_WORDS, FLOAT16, BFLOAT16 };

typedef uint16_t shorts8 __attribute__((vector_size(16)));
typedef uint32_t words8 __attribute__((vector_size(32)));
typedef float floats8 __attribute__((vector_size(32)));

INLINE words8 widen_float16(shorts8 value) {
#if defined(__F16C__) || defined(__aarch64__)
    typedef _Float16 halves8 __attribute__((vector_size(16)));
    return (words8) __builtin_convertvector((halves8)value, floats8);
#else
    // Exponent and fraction, moved to where a float32 has them, are a float32 that is too small by 2**112, the
    // difference of the two exponent biases, also if the float16 is subnormal.
    words8 bits = __builtin_convertvector(value, words8);
    words8 size = bits & 0x7fff;
    words8 finite = (words8)((floats8)(size << 13) * 0x1p112f);
    // Infinity and NaN have the largest exponent in both.
    words8 other = size << 13 | 0x7f800000;
    words8 is_finite = (words8)(size < 0x7c00);
    return (finite & is_finite) | (other & ~is_finite) | (bits & 0x8000) << 16;
#endif
}

// A bfloat16 is the upper half of a float32.
INLINE words8 widen_bfloat16(shorts8 value) {
    return __builtin_convertvector(value, words8) << 16;
}

INLINE void widen_eight(int64_t kind, const char *source, char *target) {
    shorts8 value;
    memcpy(&value, source, sizeof value);
    words8 wide = kind == FLOAT16 ? widen_float16(value) : widen_bfloat16(value);
    memcpy(target, &wide, sizeof wide);
}

// Copies or widens one row of `numbers` numbers.
INLINE void convert_row(int64_t kind, const char *source, char *target, int64_t numbers) {
    if (kind == PLAIN_WORDS) {
        memcpy(target, source, 4 * numbers);
        return;
    }
    int64_t whole = numbers - numbers % 8;
    for (int64_t i = 0; i < whole; i += 8) {
        widen_eight(kind, source + 2 * i, target + 4 * i);
    }
    if (whole < numbers) {
        char last[16] = {0};
        char wide[32];
        memcpy(last, source + 2 * whole, 2 * (numbers - whole));
        widen_eight(kind, last, wide);
        memcpy(target + 4 * whole, wide, 4 * (numbers - whole));
    }
}

#endif
