/* processor.c: which instructions this processor and its system offer. It asks the processor itself: not every compiler's
 * own test works in every build, and one that finds nothing goes unnoticed. */
#include "npci_kernel_table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>

/* The registers that the system saves: bits 1 and 2 are the vectors of AVX, 5 to 7 those of AVX-512. */
static uint64_t npci_saved_registers(void) {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

npci_instructions npci_processor(void) {
    unsigned a, b, c, d, one;
    const unsigned avx = 1u << 27 | 1u << 28 | 1u << 29; /* of leaf 1, ecx: xgetbv, AVX, F16C */
    if (__get_cpuid(1, &a, &b, &one, &d) == 0 || (one & avx) != avx || (npci_saved_registers() & 0x6) != 0x6)
        return NPCI_BASE;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (b & 1u << 5) == 0)
        return NPCI_BASE;
#if defined(NPCI_AVX512)
    const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    /* Of the processors with AVX-512, the older ones slow down when they use it: those without VBMI. */
    if ((b & avx512) == avx512 && (c & 1u << 1) != 0 && (npci_saved_registers() & 0xe6) == 0xe6)
        return NPCI_AVX512_VBMI;
#endif
    return NPCI_AVX2_F16C;
}
#else
npci_instructions npci_processor(void) {
    return NPCI_BASE;
}
#endif

const char *npc_instructions(void) {
    static const char *const names[] = {
#if defined(__x86_64__)
        "SSE2",
#elif defined(__aarch64__)
        "NEON",
#else
        "what every processor of its kind has",
#endif
        "AVX2", "AVX-512"};
    return names[npci_processor()];
}
