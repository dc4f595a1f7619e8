/* bench_kernels.c: bytes that each kernel reads in a second, from the first-level cache, by instruction set.
 *
 * Usage: bench_kernels [ranks]. The figures are GB/s: the best of many short runs, as anything else that runs on the
 * processor makes a run longer, never shorter. */
#include "harness.h"
#include "npci_comm.h"
#include "npci_kernel_table.h"

#include <string.h>

enum { BYTES = 8192, MOST_RANKS = 8, TURNS = 200, RUNS = 40 };

static double speed(npci_kernel kernel, int ranks, size_t item) {
    static _Alignas(64) unsigned char memory[MOST_RANKS][BYTES], to[BYTES];
    const void *from[MOST_RANKS];
    double best = 1e9;
    for (int r = 0; r < ranks; r++)
        from[r] = memory[r];
    for (int run = 0; run < RUNS; run++) {
        double start = harness_seconds();
        for (int turn = 0; turn < TURNS; turn++)
            kernel(to, from, ranks, BYTES / item, 0.5, 2.0);
        double taken = harness_seconds() - start;
        best = taken < best ? taken : best;
    }
    return (double)BYTES * ranks * TURNS / best / 1e9;
}

static void bench(const char *name, const npci_kernel_table *table, int ranks) {
    printf("%s, %d ranks", name, ranks);
    for (int op = NPC_SUM; op <= NPC_PROD; op++)
        printf("%10s", npc_op_name(op));
    printf("    scaled mean\n");
    for (int dtype = NPC_BOOL; dtype <= NPC_COMPLEX128; dtype++) {
        printf("%20s", npc_dtype_name(dtype));
        bool parts = dtype == NPC_COMPLEX64 || dtype == NPC_COMPLEX128;
        for (int op = NPC_SUM; op <= NPC_PROD + 1; op++) {
            npci_kernel kernel = op > NPC_PROD ? table->scaled[dtype][NPC_MEAN - NPC_SUM] : table->plain[dtype][op - NPC_SUM];
            size_t item = (size_t)npc_dtype_size(dtype) / (parts && op != NPC_PROD ? 2 : 1);
            printf(op > NPC_PROD ? "%15.1f" : "%10.1f", kernel != NULL ? speed(kernel, ranks, item) : 0.0);
        }
        printf("\n");
    }
}

int main(int argc, char **argv) {
    int ranks = argc > 1 ? atoi(argv[1]) : 2;
    ranks = ranks < 1 ? 1 : ranks > MOST_RANKS ? MOST_RANKS : ranks;
    bench("base", &npci_kernels_base, ranks);
#if defined(__x86_64__)
    if (npci_processor() >= NPCI_AVX2_F16C)
        bench("avx2", &npci_kernels_avx2, ranks);
#if defined(NPCI_AVX512)
    if (npci_processor() >= NPCI_AVX512_VBMI)
        bench("avx512", &npci_kernels_avx512, ranks);
#endif
#endif
    return 0;
}
