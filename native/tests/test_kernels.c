/* test_kernels.c: the arithmetic of every instruction set this processor has, against plain loops. */
#include "npci_comm.h"
#include "npci_kernel_table.h"
#include "oracle.h"

enum { LENGTH = 1100, MOST_RANKS = 5 };

static void check_kernel(const npci_kernel_table *table, int dtype, int op, bool scaled, int size, int64_t count) {
    npci_kernel kernel = (scaled ? table->scaled : table->plain)[dtype][op - NPC_SUM];
    bool parts = (dtype == NPC_COMPLEX64 || dtype == NPC_COMPLEX128) && op != NPC_PROD;
    double prescale = scaled ? 0.7 : 1.0, postscale = scaled ? 1.0 / 3.0 : 1.0;
    /* One element of the widest dtype off the start, so that vectors are not aligned. */
    static _Alignas(64) unsigned char memory[MOST_RANKS][16 * (LENGTH + 1)], result[16 * LENGTH], expected[16 * LENGTH];
    void *from[MOST_RANKS];
    for (int r = 0; r < size; r++) {
        from[r] = memory[r] + npc_dtype_size(dtype);
        oracle_fill(from[r], dtype, count, (uint64_t)(dtype * 100 + op * 10 + r));
    }
    oracle_reduce(expected, from, size, dtype, op, count, prescale, postscale);
    kernel(result, (const void *const *)from, size, (size_t)count * (parts ? 2 : 1), prescale, postscale);
    int64_t at = oracle_difference(result, expected, dtype, count);
    CHECK(at < 0, "%s of %d %s: element %ld", npc_op_name(op), size, npc_dtype_name(dtype), (long)at);
    int place = size / 2;
    kernel(from[place], (const void *const *)from, size, (size_t)count * (parts ? 2 : 1), prescale, postscale);
    at = oracle_difference(from[place], expected, dtype, count);
    CHECK(at < 0, "in place: %s of %d %s: element %ld", npc_op_name(op), size, npc_dtype_name(dtype), (long)at);
}

static void check_table(const npci_kernel_table *table) {
    npc_error error;
    static const int64_t counts[] = {1, 7, 9, 511, 512, LENGTH};
    for (int dtype = NPC_BOOL; dtype <= NPC_COMPLEX128; dtype++) {
        for (int op = NPC_SUM; op <= NPC_PROD; op++) {
            for (int scaled = 0; scaled < 2; scaled++) {
                if (npc_reduce_check(dtype, op, scaled, &error) != NPC_OK)
                    continue;
                for (int size = 1; size <= MOST_RANKS; size++) {
                    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
                        check_kernel(table, dtype, op, scaled, size, counts[i]);
                }
            }
        }
    }
}

#if defined(__x86_64__)
/* A thread that flushes subnormal numbers to zero gets the same bits, and keeps its own arithmetic. */
static void flushing(rank_context *c) {
    npc_error error;
    float in[2] = {1e-40f, -3e-42f}, out[2];
    int64_t count = 2;
    npc_buf a = {in, 2}, b = {out, 2};
    npc_desc d = desc_of(NPC_ALLREDUCE, NPC_FLOAT32, NPC_MAX, &a, &b, &count);
    unsigned mine = __builtin_ia32_stmxcsr() | (c->rank == 0 ? 0x8040u : 0u);
    __builtin_ia32_ldmxcsr(mine);
    CHECK_OK(npc_comm_run(c->comm, &d, &error));
    CHECK((__builtin_ia32_stmxcsr() & ~0x3fu) == (mine & ~0x3fu), "%x", __builtin_ia32_stmxcsr()); /* but for flags */
    CHECK(memcmp(in, out, sizeof in) == 0, "subnormal numbers");
    d.op = NPC_SUM;
    CHECK_OK(npc_comm_run(c->comm, &d, &error));
    __builtin_ia32_ldmxcsr(mine & ~0x8040u);
    CHECK(out[0] == in[0] + in[0] && out[1] == in[1] + in[1], "subnormal sums");
}
#endif

#if defined(__linux__) && defined(__x86_64__)
/* What the kernel lists is used. */
static void check_processor(void) {
    static char text[1 << 16];
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file == NULL)
        return;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    bool avx2 = strstr(text, " avx2 ") != NULL && strstr(text, " f16c ") != NULL;
    CHECK((npci_processor() >= NPCI_AVX2_F16C) == avx2, "AVX2 is listed: %d, found: %s", avx2, npc_instructions());
#if defined(NPCI_AVX512)
    bool avx512 = avx2 && strstr(text, "avx512dq") != NULL && strstr(text, "avx512vbmi ") != NULL;
    CHECK((npci_processor() == NPCI_AVX512_VBMI) == avx512, "AVX-512: %d, found: %s", avx512, npc_instructions());
#endif
}
#endif

int main(void) {
#if defined(__linux__) && defined(__x86_64__)
    check_processor();
#endif
    check_table(&npci_kernels_base);
#if defined(__x86_64__)
    if (npci_processor() >= NPCI_AVX2_F16C)
        check_table(&npci_kernels_avx2);
#if defined(NPCI_AVX512)
    if (npci_processor() >= NPCI_AVX512_VBMI)
        check_table(&npci_kernels_avx512);
#endif
    run_threads(2, 5000, flushing, NULL);
#endif
    return 0;
}
