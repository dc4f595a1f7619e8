/* reduce.c: which kernel computes a reduction, and the state of the processor in which it runs. */
#include "npci_comm.h"
#include "npci_kernel_table.h"

/* A thread of a framework may have told its processor to flush subnormal numbers to zero. Ranks must agree to the bit,
 * so kernels run with the standard's arithmetic, and the thread gets its own back. */
#if defined(__x86_64__)
typedef unsigned npci_arithmetic;
#define NPCI_ARITHMETIC_MASK 0xe040u /* flush to zero, rounding, denormals are zeros */

static npci_arithmetic npci_arithmetic_standard(void) {
    npci_arithmetic before = __builtin_ia32_stmxcsr();
    if ((before & NPCI_ARITHMETIC_MASK) != 0)
        __builtin_ia32_ldmxcsr(before & ~NPCI_ARITHMETIC_MASK);
    return before;
}

static void npci_arithmetic_restore(npci_arithmetic before) {
    if ((before & NPCI_ARITHMETIC_MASK) != 0)
        __builtin_ia32_ldmxcsr(before);
}
#elif defined(__aarch64__)
typedef uint64_t npci_arithmetic;
/* The other float16, default NaNs, flush to zero for float32/64 and float16, rounding. */
#define NPCI_ARITHMETIC_MASK UINT64_C(0x7c80000)

static npci_arithmetic npci_arithmetic_standard(void) {
    npci_arithmetic before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    if ((before & NPCI_ARITHMETIC_MASK) != 0)
        __asm__ volatile("msr fpcr, %0" : : "r"(before & ~NPCI_ARITHMETIC_MASK));
    return before;
}

static void npci_arithmetic_restore(npci_arithmetic before) {
    if ((before & NPCI_ARITHMETIC_MASK) != 0)
        __asm__ volatile("msr fpcr, %0" : : "r"(before));
}
#else
typedef int npci_arithmetic;

static npci_arithmetic npci_arithmetic_standard(void) {
    return 0;
}

static void npci_arithmetic_restore(npci_arithmetic before) {
    (void)before;
}
#endif

const npci_kernel_table *npci_kernels_choose(void) {
#if defined(__x86_64__)
    npci_instructions instructions = npci_processor();
#if defined(NPCI_AVX512)
    if (instructions >= NPCI_AVX512_VBMI)
        return &npci_kernels_avx512;
#endif
    if (instructions >= NPCI_AVX2_F16C)
        return &npci_kernels_avx2;
#endif
    return &npci_kernels_base;
}

npci_reduction npci_reduction_of(const npci_call *call) {
    const npc_desc *d = &call->d;
    const npci_kernel_table *table = call->comm->kernels;
    bool scaled = d->prescale != 1.0 || d->postscale != 1.0;
    npci_reduction reduction = {
        .kernel = (scaled ? table->scaled : table->plain)[d->dtype][d->op - NPC_SUM],
        .size = call->comm->size,
        .item = call->item,
        .prescale = d->prescale,
        .postscale = d->postscale,
    };
    /* The parts of a complex number are added one by one; only products see whole numbers. */
    if ((d->dtype == NPC_COMPLEX64 || d->dtype == NPC_COMPLEX128) && d->op != NPC_PROD)
        reduction.item /= 2;
    return reduction;
}

void npci_reduce(const npci_reduction *reduction, void *to, const void *const *from, int64_t bytes) {
    npci_arithmetic before = npci_arithmetic_standard();
    reduction->kernel(to, from, reduction->size, (size_t)bytes / reduction->item, reduction->prescale,
                      reduction->postscale);
    npci_arithmetic_restore(before);
}
