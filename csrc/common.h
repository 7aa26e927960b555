// What all kernels share: vectors of sixteen lanes, how a kernel is exported, and small helpers.

#ifndef LATELIER_COMMON_H
#define LATELIER_COMMON_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

// ISA is the name of the instruction set that this file is compiled for; the library has each kernel once for each.
#define JOINED_(name, isa) name##_##isa
#define JOINED(name, isa) JOINED_(name, isa)
#define KERNEL(name) EXPORT void JOINED(name, ISA)

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("clang loop unroll(full)")

// Lanes of a vector, such as query tokens; rows that are multiplied together where numbers are integers.
enum { LANES = 16, ROWS = 8 };

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

// Loads and stores at any address.
#define ANYWHERE(type)                                                                                                 \
    struct {                                                                                                           \
        type value;                                                                                                    \
    } __attribute__((packed, aligned(1), may_alias))
#define LOAD(type, address) (((const ANYWHERE(type) *)(address))->value)
#define STORE(type, address, number) (((ANYWHERE(type) *)(address))->value = (number))

// The same number in every lane. (Plus zero would be an addition, since it changes minus zero.)
INLINE floats splat_float(float value) {
    return value - (floats){};
}

INLINE ints splat_int(int32_t value) {
    return value - (ints){};
}

// A comparison of vectors has all bits of a lane set where it holds: there `a`, elsewhere `b`.
INLINE floats select_floats(ints where, floats a, floats b) {
    return (floats)((where & (ints)a) | (~where & (ints)b));
}

INLINE ints select_ints(ints where, ints a, ints b) {
    return (where & a) | (~where & b);
}

// `a * b + c`, rounded once where the processor can.
INLINE floats multiply_add(floats a, floats b, floats c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_elementwise_fma(a, b, c);
#else
    return a * b + c;
#endif
}

// Into the first-level cache; an address that cannot be read is ignored.
INLINE void prefetch(const void *place) {
    __builtin_prefetch(place, 0, 3);
}

INLINE int64_t least_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}

INLINE int64_t most_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

#endif
