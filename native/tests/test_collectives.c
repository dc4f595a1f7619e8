/* test_collectives.c: every collective against plain loops, with sizes around the borders of all paths. */
#include "oracle.h"

/* Bytes at which paths change for some number of ranks: payload of a cell, middle buffer, chunk. */
static const int64_t borders[] = {0, 1, 16, 48, 4096, 16384, 32768, 65536, 262144, 524288, 1048576};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 12 };
#else
enum { ROUNDS = 30 };
#endif

static int64_t draw_count(rank_context *c, size_t item) {
    uint64_t kinds = sizeof borders / sizeof *borders, draw = harness_random(&c->same);
    int64_t border = borders[draw % 3 == 0 ? draw / 3 % kinds : draw / 3 % 7]; /* large ones less often */
    int64_t count = border / (int64_t)item + (int64_t)(harness_random(&c->same) % 5) - 2;
    if (harness_random(&c->same) % 8 == 0)
        count += (int64_t)(harness_random(&c->same) % 400000 / item);
    return count < 0 ? 0 : count;
}

static int draw_dtype(rank_context *c) {
    return NPC_BOOL + (int)(harness_random(&c->same) % NPC_COMPLEX128);
}

static void *memory_for(int64_t count, size_t item) {
    void *memory = malloc((size_t)count * item + 1);
    CHECK(memory != NULL);
    return memory;
}

typedef struct inputs {
    void *of[16];
} inputs;

static inputs inputs_of(rank_context *c, int dtype, int64_t count) {
    inputs all;
    uint64_t seed = harness_random(&c->same);
    for (int r = 0; r < c->size; r++) {
        all.of[r] = memory_for(count, npc_dtype_size(dtype));
        oracle_fill(all.of[r], dtype, count, seed + (uint64_t)r);
    }
    return all;
}

static void inputs_free(rank_context *c, inputs *all) {
    for (int r = 0; r < c->size; r++)
        free(all->of[r]);
}

/* buffers_cut cuts memory into up to 6 buffers, some of them empty, at random places; ranks need not agree. */
static int buffers_cut(rank_context *c, npc_buf *buffers, void *memory, int64_t count, size_t item) {
    int n = 1 + (int)(harness_random(&c->seed) % 6);
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        int64_t piece = i == n - 1 ? count - at : (int64_t)(harness_random(&c->seed) % (uint64_t)(count - at + 1));
        buffers[i].data = (char *)memory + at * (int64_t)item;
        buffers[i].count = piece;
        at += piece;
    }
    return n;
}

static void check_same(const void *got, const void *expected, int dtype, int64_t count, const npc_desc *d) {
    int64_t at = oracle_difference(got, expected, dtype, count);
    CHECK(at < 0, "%s %s %s of %ld: element %ld differs", npc_kind_name(d->kind), npc_dtype_name(dtype),
          npc_op_name(d->op), (long)count, (long)at);
}

static void reductions(rank_context *c) {
    npc_error error;
    npc_buf in[6], out[6];
    for (int round = 0; round < 2 * ROUNDS; round++) {
        int dtype = draw_dtype(c), op = NPC_SUM + (int)(harness_random(&c->same) % 5);
        double scales[2] = {1.0, 1.0};
        bool to_root = harness_random(&c->same) % 3 == 0, in_place = harness_random(&c->same) % 3 == 0;
        int root = (int)(harness_random(&c->same) % (uint64_t)c->size);
        if (dtype >= NPC_FLOAT16 && harness_random(&c->same) % 2 == 0) {
            scales[0] = 0.25 + (double)(harness_random(&c->same) % 7) / 3.0;
            scales[1] = 1.0 / 3.0;
        }
        int64_t count = draw_count(c, npc_dtype_size(dtype));
        size_t item = npc_dtype_size(dtype);
        if (npc_reduce_check(dtype, op, scales[0] != 1.0, &error) != NPC_OK)
            continue;
        inputs all = inputs_of(c, dtype, count);
        void *expected = memory_for(count, item), *result = memory_for(count, item);
        oracle_reduce(expected, all.of, c->size, dtype, op, count, scales[0], scales[1]);
        npc_desc d = desc_of(to_root ? NPC_REDUCE : NPC_ALLREDUCE, dtype, op, in, out, &count);
        d.root = root;
        d.n_in = buffers_cut(c, in, all.of[c->rank], count, item);
        d.n_out = buffers_cut(c, out, in_place ? all.of[c->rank] : result, count, item);
        if (in_place) {
            d.out = in;
            d.n_out = d.n_in;
        }
        if (to_root && c->rank != root)
            d.n_out = 0;
        d.prescale = scales[0];
        d.postscale = scales[1];
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        if (!to_root || c->rank == root)
            check_same(in_place ? all.of[c->rank] : result, expected, dtype, count, &d);
        inputs_free(c, &all);
        free(expected);
        free(result);
    }
}

static void broadcasts(rank_context *c) {
    npc_error error;
    npc_buf in[6], out[6];
    for (int round = 0; round < ROUNDS; round++) {
        int dtype = draw_dtype(c), root = (int)(harness_random(&c->same) % (uint64_t)c->size);
        size_t item = npc_dtype_size(dtype);
        int64_t count = draw_count(c, item);
        inputs all = inputs_of(c, dtype, count);
        void *result = memory_for(count, item);
        npc_desc d = desc_of(NPC_BROADCAST, dtype, 0, in, out, &count);
        d.root = root;
        d.n_in = buffers_cut(c, in, all.of[c->rank], count, item);
        d.n_out = buffers_cut(c, out, result, count, item);
        if (c->rank != root)
            d.n_in = 0;
        else if (round % 3 == 0)
            d.n_out = 0;
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        if (d.n_out > 0)
            CHECK(memcmp(result, all.of[root], (size_t)count * item) == 0, "broadcast of %ld", (long)count);
        inputs_free(c, &all);
        free(result);
    }
}

typedef struct made {
    void *memory;
    int64_t shape[NPC_MAX_DIMS], counts[64];
    int ndim, dtype, size;
} made;

static void *make(void *user, int dtype, int ndim, const int64_t *shape, const int64_t *counts) {
    made *m = user;
    int64_t bytes = (int64_t)npc_dtype_size(dtype);
    for (int i = 0; i < ndim; i++) {
        m->shape[i] = shape[i];
        bytes *= shape[i];
    }
    for (int r = 0; counts != NULL && r < m->size; r++)
        m->counts[r] = counts[r];
    m->ndim = ndim;
    m->dtype = dtype;
    return m->memory = malloc((size_t)bytes + 1);
}

/* Parts of different lengths; rows of 3 elements. */
static void gathers(rank_context *c) {
    npc_error error;
    for (int round = 0; round < ROUNDS; round++) {
        int dtype = draw_dtype(c), root = (int)(harness_random(&c->same) % (uint64_t)c->size);
        size_t item = npc_dtype_size(dtype);
        bool everybody = round % 2 == 0;
        int64_t rows[16], total = 0;
        void *parts[16];
        for (int r = 0; r < c->size; r++) {
            rows[r] = round % 5 == 0 ? 4 : draw_count(c, 3 * item);
            parts[r] = memory_for(3 * rows[r], item);
            oracle_fill(parts[r], dtype, 3 * rows[r], harness_random(&c->same));
            total += rows[r];
        }
        made m = {.size = c->size};
        int64_t shape[2] = {rows[c->rank], 3};
        npc_buf in = {parts[c->rank], 3 * rows[c->rank]}, out = {memory_for(3 * total, item), 3 * total};
        npc_desc d = desc_of(everybody ? NPC_ALLGATHER : NPC_GATHER, dtype, 0, &in, NULL, shape);
        d.root = root;
        d.ndim = 2;
        d.alloc = make;
        d.alloc_user = &m;
        if (round % 3 == 0) {
            d.out = &out;
            d.n_out = 1;
        }
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        if (everybody || c->rank == root) {
            char *result = round % 3 == 0 ? out.data : m.memory;
            if (round % 3 != 0)
                CHECK(m.ndim == 2 && m.shape[0] == total && m.shape[1] == 3 && m.dtype == dtype, "shape");
            for (int r = 0; r < c->size; r++) {
                CHECK(memcmp(result, parts[r], (size_t)rows[r] * 3 * item) == 0, "part %d", r);
                CHECK(round % 3 == 0 || m.counts[r] == rows[r], "counts");
                result += (size_t)rows[r] * 3 * item;
            }
        } else {
            CHECK(m.memory == NULL, "only the root makes an output");
        }
        for (int r = 0; r < c->size; r++)
            free(parts[r]);
        free(m.memory);
        free(out.data);
    }
}

static void reduce_scatters(rank_context *c) {
    npc_error error;
    for (int round = 0; round < ROUNDS; round++) {
        int dtype = draw_dtype(c), op = NPC_SUM + (int)(harness_random(&c->same) % 5);
        size_t item = npc_dtype_size(dtype);
        int64_t block = draw_count(c, item * (size_t)c->size), count = block * c->size;
        if (npc_reduce_check(dtype, op, 0, &error) != NPC_OK)
            continue;
        inputs all = inputs_of(c, dtype, count);
        char *expected = memory_for(count, item);
        npc_buf in = {all.of[c->rank], count}, out = {memory_for(block, item), block};
        npc_desc d = desc_of(NPC_REDUCE_SCATTER, dtype, op, &in, &out, &count);
        oracle_reduce(expected, all.of, c->size, dtype, op, count, 1.0, 1.0);
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        check_same(out.data, expected + (size_t)(c->rank * block) * item, dtype, block, &d);
        inputs_free(c, &all);
        free(expected);
        free(out.data);
    }
}

static void alltoalls(rank_context *c) {
    npc_error error;
    for (int round = 0; round < ROUNDS; round++) {
        int dtype = draw_dtype(c);
        size_t item = npc_dtype_size(dtype);
        bool equal = round % 3 == 0, in_place = round % 6 == 0;
        int64_t splits[16][16], rows[16], received = 0;
        char *parts[16];
        int64_t even = draw_count(c, item * (size_t)c->size);
        for (int r = 0; r < c->size; r++) {
            rows[r] = 0;
            for (int to = 0; to < c->size; to++) {
                splits[r][to] = equal ? even : draw_count(c, item * (size_t)c->size * (size_t)(1 + round % 4));
                rows[r] += splits[r][to];
            }
            parts[r] = memory_for(rows[r], item);
            oracle_fill(parts[r], dtype, rows[r], harness_random(&c->same));
            received += splits[r][c->rank];
        }
        npc_buf in = {memory_for(rows[c->rank], item), rows[c->rank]}, out = {memory_for(received, item), received};
        memcpy(in.data, parts[c->rank], (size_t)rows[c->rank] * item);
        npc_desc d = desc_of(NPC_ALLTOALL, dtype, 0, &in, in_place ? &in : &out, &rows[c->rank]);
        d.splits = equal ? NULL : splits[c->rank];
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        char *result = in_place ? in.data : out.data;
        for (int r = 0; r < c->size; r++) {
            int64_t before = 0;
            for (int to = 0; to < c->rank; to++)
                before += splits[r][to];
            size_t bytes = (size_t)splits[r][c->rank] * item;
            CHECK(memcmp(result, parts[r] + (size_t)before * item, bytes) == 0, "from %d: %zu bytes", r, bytes);
            result += bytes;
        }
        for (int r = 0; r < c->size; r++)
            free(parts[r]);
        free(in.data);
        free(out.data);
    }
}

static void scatters(rank_context *c) {
    npc_error error;
    for (int round = 0; round < ROUNDS; round++) {
        int dtype = draw_dtype(c), root = (int)(harness_random(&c->same) % (uint64_t)c->size);
        size_t item = npc_dtype_size(dtype);
        int64_t block = draw_count(c, item * (size_t)c->size), count = block * c->size;
        char *data = memory_for(count, item);
        oracle_fill(data, dtype, count, harness_random(&c->same));
        made m = {.size = c->size};
        npc_buf in = {data, count};
        npc_desc d = desc_of(NPC_SCATTER, dtype, 0, &in, NULL, &count);
        d.root = root;
        d.alloc = make;
        d.alloc_user = &m;
        if (c->rank != root) {
            d.n_in = d.ndim = d.dtype = 0;
            d.in = NULL;
            d.shape = NULL;
        }
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        CHECK(m.dtype == dtype && m.ndim == 1 && m.shape[0] == block, "scatter describes its result");
        CHECK(memcmp(m.memory, data + (size_t)(c->rank * block) * item, (size_t)block * item) == 0, "scatter");
        free(data);
        free(m.memory);
    }
}

/* The result of one rank's half is 30000 where a float16 sum would be infinite. */
static void half_means(rank_context *c) {
    npc_error error;
    uint16_t in_data = 0x7753, out_data = 0; /* 30000 */
    int64_t one = 1;
    npc_buf in = {&in_data, 1}, out = {&out_data, 1};
    npc_desc d = desc_of(NPC_ALLREDUCE, NPC_FLOAT16, NPC_MEAN, &in, &out, &one);
    CHECK_OK(npc_comm_run(c->comm, &d, &error));
    CHECK(out_data == in_data, "mean is %04x", out_data);
}

/* All values of float16 survive the way to float32 and back. */
static void half_values(rank_context *c) {
    npc_error error;
    int64_t count = 65536;
    uint16_t *data = malloc(131072), *copy = malloc(131072);
    for (int i = 0; i < 65536; i++)
        data[i] = (uint16_t)i;
    npc_buf in = {data, count}, out = {copy, count};
    npc_desc d = desc_of(NPC_ALLREDUCE, NPC_FLOAT16, NPC_MAX, &in, &out, &count);
    CHECK_OK(npc_comm_run(c->comm, &d, &error));
    check_same(copy, data, NPC_FLOAT16, count, &d);
    free(data);
    free(copy);
}

static void all_kinds(rank_context *c) {
    half_means(c);
    half_values(c);
    reductions(c);
    broadcasts(c);
    gathers(c);
    reduce_scatters(c);
    alltoalls(c);
    scatters(c);
}

int main(void) {
    for (int size = 1; size <= 5; size += size < 3 ? 1 : 2)
        run_threads(size, 20000, all_kinds, NULL);
    run_processes(3, 20000, all_kinds, NULL, NULL);
    return 0;
}
