// Which instruction sets the processor and the operating system support.

#include "common.h"

#if defined(__x86_64__) || defined(_M_X64)

#include <cpuid.h>

static unsigned bit(unsigned word, int number) {
    return word >> number & 1;
}

// The registers that the operating system saves when it switches threads: bits 1 and 2 are SSE and AVX, 5 to 7 AVX-512.
static unsigned saved_registers(void) {
    unsigned low;
    unsigned high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

EXPORT const char *latelier_instruction_sets(void) {
    unsigned a, b, c, d, basic;
    unsigned vendor[3];
    if (!__get_cpuid(0, &basic, &vendor[0], &vendor[2], &vendor[1]) || basic < 7) {
        return "";
    }
    // "AuthenticAMD". On Intel's processors `vdpbf16ps` takes more than twice as long as the float32 instruction.
    int is_amd = vendor[0] == 0x68747541 && vendor[1] == 0x69746e65 && vendor[2] == 0x444d4163;
    __get_cpuid(1, &a, &b, &c, &d);
    int v2 = bit(c, 0) && bit(c, 9) && bit(c, 13) && bit(c, 19) && bit(c, 20) && bit(c, 23);
    int saves = bit(c, 27);
    unsigned saved = saves ? saved_registers() : 0;
    int avx = bit(c, 12) && bit(c, 22) && bit(c, 28) && bit(c, 29) && (saved & 0x06) == 0x06;
    unsigned features, extended, more;
    __get_cpuid_count(7, 0, &a, &features, &extended, &d);
    __get_cpuid_count(7, 1, &more, &b, &c, &d);
    __get_cpuid(0x80000001, &a, &b, &c, &d);
    int avx2 = v2 && avx && bit(features, 3) && bit(features, 5) && bit(features, 8) && bit(c, 5);
    int avx512 = avx2 && (saved & 0xe6) == 0xe6 && bit(features, 16) && bit(features, 17) && bit(features, 28) &&
                 bit(features, 30) && bit(features, 31);
    int vnni = avx512 && bit(extended, 11);
    if (vnni && is_amd && bit(more, 5)) {
        return "avx512bf16 avx512vnni avx512 avx2 generic";
    }
    if (vnni) {
        return "avx512vnni avx512 avx2 generic";
    }
    if (avx512) {
        return "avx512 avx2 generic";
    }
    if (avx2 && bit(more, 4)) {
        return "avxvnni avx2 generic";
    }
    if (avx2) {
        return "avx2 generic";
    }
    return v2 ? "generic" : "";
}

#elif defined(__aarch64__)

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <stddef.h>
#include <sys/sysctl.h>
#endif

static int has_dot_product(void) {
#if defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1; // HWCAP_ASIMDDP
#elif defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, NULL, 0) == 0 && has;
#else
    return 0;
#endif
}

EXPORT const char *latelier_instruction_sets(void) {
    return has_dot_product() ? "dotprod neon" : "neon";
}

#else

EXPORT const char *latelier_instruction_sets(void) {
    return "generic";
}

#endif
