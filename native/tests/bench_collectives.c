/* bench_collectives.c: latency and throughput of allreduce between processes, beside plain memcpy in the same ones.
 *
 * Usage: bench_collectives [ranks]. Every iteration writes fresh data, outside the measured time. Figures are medians
 * over the iterations of rank 0; "copies" is what every rank takes at once to memcpy the same bytes. */
#include "harness.h"

#include <unistd.h>

enum { MOST = 20001 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

static void barrier(npc_comm *comm) {
    npc_error error;
    npc_desc d = desc_of(NPC_BARRIER, 0, 0, NULL, NULL, NULL);
    d.ndim = 0;
    CHECK_OK(npc_comm_run(comm, &d, &error));
}

static void bench(rank_context *c) {
    npc_error error;
    static double taken[MOST], copied[MOST], keyed[MOST];
    if (c->rank == 0)
        printf("%d ranks%10s %12s %12s %12s %12s\n", c->size, "bytes", "allreduce us", "named us", "copies us",
               "ratio");
    for (int64_t bytes = 4; bytes <= (INT64_C(64) << 20); bytes *= bytes < 65536 ? 16 : 4) {
        int64_t count = bytes / 4;
        int rounds = bytes <= 1024 ? 20001 : bytes <= 65536 ? 3001 : bytes <= 1 << 20 ? 501 : 21;
        rounds = c->size > 4 ? (rounds + 9) / 10 : rounds;
        float *in = aligned_alloc(64, (size_t)bytes + 64), *out = aligned_alloc(64, (size_t)bytes + 64);
        memset(out, 0, (size_t)bytes);
        npc_buf a = {in, count}, b = {out, count};
        npc_desc d = desc_of(NPC_ALLREDUCE, NPC_FLOAT32, NPC_SUM, &a, &b, &count);
        for (int i = 0; i < rounds; i++) {
            for (int64_t k = 0; k < count; k++)
                in[k] = (float)(k % 1000 + i % 7);
            barrier(c->comm);
            double start = harness_seconds();
            CHECK_OK(npc_comm_run(c->comm, &d, &error));
            taken[i] = harness_seconds() - start;
            CHECK(out[count - 1] == in[count - 1] * (float)c->size, "result");
            barrier(c->comm);
            start = harness_seconds();
            memcpy(out, in, (size_t)bytes);
            copied[i] = harness_seconds() - start;
            CHECK(out[count - 1] == in[count - 1], "result");
            if (i < rounds / 10 + 10) {
                d.key = 5;
                barrier(c->comm);
                start = harness_seconds();
                CHECK_OK(npc_comm_run(c->comm, &d, &error));
                keyed[i] = harness_seconds() - start;
                d.key = 0;
            }
        }
        int named = rounds / 10 + 10 < rounds ? rounds / 10 + 10 : rounds;
        double t = median(taken, rounds), m = median(copied, rounds), k = median(keyed, named);
        if (c->rank == 0)
            printf("%17ld %12.2f %12.2f %12.2f %12.2f\n", (long)bytes, t * 1e6, k * 1e6, m * 1e6, t / m);
        fflush(stdout);
        free(in);
        free(out);
    }
}

int main(int argc, char **argv) {
    run_processes(argc > 1 ? atoi(argv[1]) : 2, 60000, bench, NULL, NULL);
    return 0;
}
