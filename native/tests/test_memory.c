/* test_memory.c: communication memory, shared results, and plans. */
#include "harness.h"

#include <unistd.h>

static float value(int rank, int64_t i, int round) {
    return (float)((i * 7 + round * 3) % 101 + rank);
}

static float total(int size, int64_t i, int round) {
    float sum = value(0, i, round);
    for (int r = 1; r < size; r++)
        sum += value(r, i, round);
    return sum;
}

static float *new_floats(rank_context *c, int64_t count, bool shared) {
    npc_error error;
    void *data = NULL;
    if (shared)
        CHECK_OK(npc_memory_new(c->comm, count * 4, &data, &error));
    else
        data = malloc((size_t)count * 4 + 4);
    return data;
}

static void drop(rank_context *c, float *data, bool shared) {
    if (shared)
        npc_memory_release(c->comm, data);
    else
        free(data);
}

static void fill(rank_context *c, float *data, int64_t count, int round) {
    for (int64_t i = 0; i < count; i++)
        data[i] = value(c->rank, i, round);
}

static void check_sum(rank_context *c, const float *data, int64_t count, int round, const char *what) {
    for (int64_t i = 0; i < count; i++)
        CHECK(data[i] == total(c->size, i, round), "%s, round %d: element %ld is %g", what, round, (long)i, data[i]);
}

/* Every mixture of private and communication memory for input and output, differing between ranks. */
static void mixtures(rank_context *c) {
    npc_error error;
    for (int round = 0; round < 48; round++) {
        int64_t count = 1 + (int64_t)(harness_random(&c->same) % (round % 3 == 0 ? 3000 : 900000));
        unsigned in_kinds = (unsigned)harness_random(&c->same), out_kinds = (unsigned)harness_random(&c->same);
        if (round % 4 == 0)
            in_kinds = out_kinds = ~0u;
        bool in_shared = in_kinds >> c->rank & 1, out_shared = out_kinds >> c->rank & 1, in_place = round % 5 == 0;
        float *in = new_floats(c, count, in_shared), *out = in_place ? in : new_floats(c, count, out_shared);
        fill(c, in, count, round);
        npc_buf from = {in, count}, to = {out, count};
        npc_desc d = desc_of(NPC_ALLREDUCE, NPC_FLOAT32, NPC_SUM, &from, &to, &count);
        d.key = round % 2 ? 7 : 0;
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        check_sum(c, out, count, round, "allreduce");
        for (int64_t i = 0; !in_place && i < count; i++)
            CHECK(in[i] == value(c->rank, i, round), "an input was written to");
        int root = round % c->size;
        fill(c, in, count, round);
        npc_desc b = desc_of(NPC_BROADCAST, NPC_FLOAT32, 0, &from, &to, &count);
        b.root = root;
        CHECK_OK(npc_comm_run(c->comm, &b, &error));
        for (int64_t i = 0; i < count; i++)
            CHECK(out[i] == value(root, i, round), "broadcast: element %ld is %g", (long)i, out[i]);
        fill(c, in, count, round);
        npc_desc r = desc_of(NPC_REDUCE, NPC_FLOAT32, NPC_SUM, &from, c->rank == root ? &to : NULL, &count);
        r.root = root;
        CHECK_OK(npc_comm_run(c->comm, &r, &error));
        if (c->rank == root)
            check_sum(c, out, count, round, "reduce");
        if (!in_place)
            drop(c, out, out_shared);
        drop(c, in, in_shared);
    }
}

/* Those that move blocks: rank r's block b holds value(r, b * block + i). */
static void blocks(rank_context *c) {
    npc_error error;
    for (int round = 0; round < 24; round++) {
        int64_t block = 1 + (int64_t)(harness_random(&c->same) % 200000), all = block * c->size;
        unsigned kinds = round % 3 == 0 ? ~0u : (unsigned)harness_random(&c->same);
        bool shared = kinds >> c->rank & 1;
        float *in = new_floats(c, all, shared), *out = malloc((size_t)all * 4);
        fill(c, in, all, round);
        npc_buf whole = {in, all}, part = {in, block}, to = {out, all}, to_part = {out, block};
        npc_desc d = desc_of(NPC_ALLGATHER, NPC_FLOAT32, 0, &part, &to, &block);
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        for (int64_t i = 0; i < all; i++)
            CHECK(out[i] == value((int)(i / block), i % block, round), "allgather");
        d = desc_of(NPC_REDUCE_SCATTER, NPC_FLOAT32, NPC_SUM, &whole, &to_part, &all);
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        for (int64_t i = 0; i < block; i++)
            CHECK(out[i] == total(c->size, c->rank * block + i, round), "reduce_scatter");
        d = desc_of(NPC_ALLTOALL, NPC_FLOAT32, 0, &whole, &to, &all);
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        for (int64_t i = 0; i < all; i++)
            CHECK(out[i] == value((int)(i / block), c->rank * block + i % block, round), "alltoall");
        int root = round % c->size;
        bool is_root = c->rank == root;
        d = desc_of(NPC_SCATTER, is_root ? NPC_FLOAT32 : 0, 0, is_root ? &whole : NULL, &to_part, is_root ? &all : NULL);
        d.ndim = is_root ? 1 : 0;
        d.root = root;
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        for (int64_t i = 0; i < block; i++)
            CHECK(out[i] == value(root, c->rank * block + i, round), "scatter");
        d = desc_of(NPC_GATHER, NPC_FLOAT32, 0, &part, is_root ? &to : NULL, &block);
        d.root = root;
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        for (int64_t i = 0; is_root && i < all; i++)
            CHECK(out[i] == value((int)(i / block), i % block, round), "gather");
        drop(c, in, shared);
        free(out);
    }
}

/* Results that all ranks read in place stay as they are while anybody holds them. */
static void shared_results(rank_context *c) {
    npc_error error;
    enum { HELD = 4 };
    npc_buf held[HELD][2];
    for (int round = 0; round < 40; round++) {
        int64_t first = 1 + (int64_t)(harness_random(&c->same) % 300000), second = round % 4 == 0 ? 3 : 100000;
        int64_t count = first + second;
        int slot = round % HELD;
        float *a = malloc((size_t)first * 4), *b = malloc((size_t)second * 4);
        fill(c, a, first, round);
        fill(c, b, second, round);
        for (int k = 0; round >= HELD && k < 2; k++) {
            check_sum(c, held[slot][k].data, held[slot][k].count, round - HELD, "a held result");
            npc_memory_release(c->comm, held[slot][k].data);
        }
        npc_buf in[2] = {{a, first}, {b, second}};
        npc_desc d = desc_of(NPC_ALLREDUCE, NPC_FLOAT32, NPC_SUM, in, NULL, &count);
        d.n_in = 2;
        d.key = round % 2 ? 9 : 0;
        d.shared = held[slot];
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        for (int k = 0; k < 2; k++) {
            CHECK((uintptr_t)held[slot][k].data % 64 == 0 && held[slot][k].count == in[k].count, "buffer %d", k);
            check_sum(c, held[slot][k].data, held[slot][k].count, round, "a shared result");
        }
        free(a);
        free(b);
    }
    /* They outlive the communicator of this process. */
    npc_comm *comm = c->comm;
    npc_comm_close(comm);
    c->comm = NULL;
    for (int slot = 0; slot < HELD; slot++) {
        for (int k = 0; k < 2; k++) {
            check_sum(c, held[slot][k].data, held[slot][k].count, 36 + slot, "after close");
            npc_memory_release(comm, held[slot][k].data);
        }
    }
}

static void plans(rank_context *c) {
    npc_error error;
    npc_plan *plan = NULL;
    int64_t counts[3] = {1, 5000, 700000};
    npc_buf in[3], out[3], result = {NULL, 0};
    npc_desc d[5];
    for (int k = 0; k < 3; k++) {
        in[k] = (npc_buf){malloc((size_t)counts[k] * 4), counts[k]};
        out[k] = (npc_buf){malloc((size_t)counts[k] * 4), counts[k]};
        d[k] = desc_of(NPC_ALLREDUCE, NPC_FLOAT32, NPC_SUM, &in[k], &out[k], &counts[k]);
    }
    d[3] = desc_of(NPC_BARRIER, 0, 0, NULL, NULL, NULL);
    d[3].ndim = 0;
    d[4] = desc_of(NPC_ALLREDUCE, NPC_FLOAT32, NPC_SUM, &in[2], NULL, &counts[2]);
    d[4].shared = &result;
    CHECK_OK(npc_plan_new(c->comm, d, 5, &plan, &error));
    void *where = NULL;
    for (int round = 0; round < 30; round++) {
        for (int k = 0; k < 3; k++)
            fill(c, in[k].data, counts[k], round);
        CHECK_OK(npc_plan_run(plan, &error));
        for (int k = 0; k < 3; k++)
            check_sum(c, out[k].data, counts[k], round, "plan");
        check_sum(c, result.data, counts[2], round, "the plan's shared result");
        CHECK(round == 0 || result.data == where, "the shared result moved");
        where = result.data;
    }
    npc_plan_free(plan);
    npc_memory_release(c->comm, where);
    /* One prepared call on other memory; what it cannot do it leaves alone. */
    CHECK_OK(npc_plan_new(c->comm, &d[1], 1, &plan, &error));
    uint64_t calls = npc_comm_calls(c->comm);
    CHECK(npc_plan_run_on(plan, in[2].data, (char *)in[2].data + 4, &error) == -1, "an overlap");
    CHECK(npc_plan_run_on(plan, in[2].data, (char *)out[2].data + 1, &error) == -1, "not aligned");
    CHECK(npc_comm_calls(c->comm) == calls, "a refused call was counted");
    fill(c, in[2].data, counts[1], 77);
    CHECK_OK(npc_plan_run_on(plan, in[2].data, out[2].data, &error));
    check_sum(c, out[2].data, counts[1], 77, "elsewhere");
    CHECK_OK(npc_plan_run_on(plan, in[2].data, in[2].data, &error));
    check_sum(c, in[2].data, counts[1], 77, "in place");
    npc_plan_free(plan);
    d[0].key = 5;
    CHECK(npc_plan_new(c->comm, d, 1, &plan, &error) == NPC_ERR_ARGUMENT, "a named call: %s", error.text);
    for (int k = 0; k < 3; k++) {
        free(in[k].data);
        free(out[k].data);
    }
}

/* Memory that is given back is used again, and a mismatch loses none. */
static void reuse(rank_context *c) {
    npc_error error;
    void *first = NULL, *data = NULL;
    CHECK_OK(npc_memory_new(c->comm, 1 << 20, &first, &error));
    npc_memory_release(c->comm, first);
    for (int i = 0; i < 100; i++) {
        CHECK_OK(npc_memory_new(c->comm, 1 + i * 10000, &data, &error));
        CHECK(data == first, "memory was not used again");
        npc_memory_release(c->comm, data);
    }
    CHECK(npc_memory_new(c->comm, INT64_MAX / 2, &data, &error) == NPC_ERR_MEMORY, "%s", error.text);
    for (int i = 0; i < 20; i++) {
        int64_t count = 100000 + (i % 2 ? 0 : c->rank);
        float *in = malloc((size_t)count * 4);
        npc_buf from = {in, count}, result;
        fill(c, in, count, i);
        npc_desc d = desc_of(NPC_ALLREDUCE, NPC_FLOAT32, NPC_SUM, &from, NULL, &count);
        d.shared = &result;
        int status = npc_comm_run(c->comm, &d, &error);
        CHECK(status == (i % 2 || c->size == 1 ? NPC_OK : NPC_ERR_MISMATCH), "%d %s", status, error.text);
        if (status == NPC_OK) {
            check_sum(c, result.data, count, i, "after a mismatch");
            npc_memory_release(c->comm, result.data);
        }
        free(in);
    }
}

int main(void) {
    for (int size = 1; size <= 4; size++) {
        run_threads(size, 60000, mixtures, NULL);
        run_threads(size, 60000, blocks, NULL);
        run_threads(size, 60000, shared_results, NULL);
        run_threads(size, 60000, plans, NULL);
        run_threads(size, 60000, reuse, NULL);
    }
    run_processes(3, 60000, mixtures, NULL, NULL);
    run_processes(3, 60000, blocks, NULL, NULL);
    run_processes(3, 60000, shared_results, NULL, NULL);
    run_processes(2, 60000, plans, NULL, NULL);
    run_processes(2, 60000, reuse, NULL, NULL);
    return 0;
}
