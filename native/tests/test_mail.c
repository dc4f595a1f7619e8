/* test_mail.c: send and receive. */
#include "harness.h"

#include <unistd.h>

static int send_to(npc_comm *comm, int to, int tag, void *data, int64_t count, int dtype, npc_error *error) {
    npc_buf buffer = {data, count};
    npc_desc d = desc_of(NPC_SEND, dtype, 0, &buffer, NULL, &count);
    d.root = to;
    d.tag = tag;
    return npc_comm_run(comm, &d, error);
}

static int receive_from(npc_comm *comm, int from, int tag, void *data, int64_t count, int dtype, npc_error *error) {
    npc_buf buffer = {data, count};
    npc_desc d = desc_of(NPC_RECV, dtype, 0, NULL, &buffer, &count);
    d.root = from;
    d.tag = tag;
    return npc_comm_run(comm, &d, error);
}

/* Every rank sends to all others first and receives afterwards, more than the rings hold. */
static void crossing(rank_context *c) {
    npc_error error;
    for (int64_t count = 1; count < 1000000; count = count * 10 + 3) {
        int32_t *data = malloc((size_t)count * 4);
        for (int to = 0; to < c->size; to++) {
            for (int64_t i = 0; i < count; i++)
                data[i] = (int32_t)(i + c->rank * 10 + to);
            CHECK_OK(send_to(c->comm, to, 3, data, count, NPC_INT32, &error));
        }
        for (int from = c->size - 1; from >= 0; from--) {
            CHECK_OK(receive_from(c->comm, from, 3, data, count, NPC_INT32, &error));
            for (int64_t i = 0; i < count; i++)
                CHECK(data[i] == i + from * 10 + c->rank, "element %ld", (long)i);
        }
        free(data);
    }
}

/* Messages are taken in another order than they were sent in, by tag; equal tags keep their order. */
static void tags(rank_context *c) {
    npc_error error;
    int next = (c->rank + 1) % c->size, previous = (c->rank + c->size - 1) % c->size;
    for (int i = 0; i < 50; i++) {
        double value = i;
        CHECK_OK(send_to(c->comm, next, i % 5, &value, 1, NPC_FLOAT64, &error));
    }
    for (int tag = 4; tag >= 0; tag--) {
        for (int i = 0; i < 10; i++) {
            double value = -1;
            CHECK_OK(receive_from(c->comm, previous, tag, &value, 1, NPC_FLOAT64, &error));
            CHECK(value == tag + 5 * i, "%g", value);
        }
    }
}

static void *make(void *user, int dtype, int ndim, const int64_t *shape, const int64_t *counts) {
    int64_t *seen = user;
    CHECK(dtype == NPC_INT16 && ndim == 2 && counts == NULL, "description");
    seen[0] = shape[0];
    seen[1] = shape[1];
    return malloc((size_t)(shape[0] * shape[1]) * 2 + 1);
}

typedef struct memory {
    int64_t shape[2];
    void *data;
} memory;

static void *make_memory(void *user, int dtype, int ndim, const int64_t *shape, const int64_t *counts) {
    memory *m = user;
    return m->data = make(m->shape, dtype, ndim, shape, counts);
}

/* A receiver that knows nothing gets dtype and shape; one that expects something else is told. */
static void described(rank_context *c) {
    npc_error error;
    int16_t data[6] = {1, 2, 3, 4, 5, 6};
    int64_t shape[2] = {2, 3};
    if (c->rank == 0) {
        npc_buf buffer = {data, 6};
        npc_desc d = desc_of(NPC_SEND, NPC_INT16, 0, &buffer, NULL, shape);
        d.ndim = 2;
        d.root = 1;
        for (int i = 0; i < 3; i++)
            CHECK_OK(npc_comm_run(c->comm, &d, &error));
    } else if (c->rank == 1) {
        memory m = {{0, 0}, NULL};
        npc_desc d = desc_of(NPC_RECV, 0, 0, NULL, NULL, NULL);
        d.ndim = 0;
        d.alloc = make_memory;
        d.alloc_user = &m;
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        CHECK(m.shape[0] == 2 && m.shape[1] == 3 && memcmp(m.data, data, sizeof data) == 0, "contents");
        free(m.data);
        float wrong[6];
        CHECK(receive_from(c->comm, 0, 0, wrong, 6, NPC_FLOAT32, &error) == NPC_ERR_MISMATCH, "dtype");
        CHECK(strstr(error.text, "int16, shape (2, 3)") != NULL, "%s", error.text);
        int16_t few[5];
        CHECK(receive_from(c->comm, 0, 0, few, 5, NPC_INT16, &error) == NPC_ERR_MISMATCH, "size");
        CHECK(npc_comm_ended(c->comm, &error) == NPC_OK, "%s", error.text);
    }
}

/* Receives submitted before the sends, on all ranks, in the "wrong" order. */
static void submitted(rank_context *c) {
    npc_error error;
    enum { COUNT = 100000 };
    npc_request *requests[16];
    int32_t *in = malloc(COUNT * sizeof *in), *out = malloc((size_t)c->size * COUNT * sizeof *out);
    int64_t count = COUNT;
    npc_buf buffers[16], mine = {in, count};
    for (int i = 0; i < COUNT; i++)
        in[i] = i + c->rank;
    for (int r = 0; r < c->size; r++) {
        buffers[r] = (npc_buf){out + (size_t)r * COUNT, count};
        npc_desc d = desc_of(NPC_RECV, NPC_INT32, 0, NULL, &buffers[r], &count);
        d.root = r;
        CHECK_OK(npc_request_start(c->comm, &d, &requests[r], &error));
    }
    for (int r = 0; r < c->size; r++) {
        npc_desc d = desc_of(NPC_SEND, NPC_INT32, 0, &mine, NULL, &count);
        d.root = r;
        if (r % 2 == 0) {
            CHECK_OK(npc_comm_run(c->comm, &d, &error));
            requests[c->size + r] = NULL;
        } else {
            CHECK_OK(npc_request_start(c->comm, &d, &requests[c->size + r], &error));
        }
    }
    for (int r = 0; r < 2 * c->size; r++) {
        if (requests[r] == NULL)
            continue;
        CHECK(npc_request_wait(requests[r], -1, &error) == NPC_OK, "%s", error.text);
        npc_request_free(requests[r]);
    }
    for (int r = 0; r < c->size; r++) {
        for (int i = 0; i < COUNT; i++)
            CHECK(out[(size_t)r * COUNT + (size_t)i] == i + r, "from %d", r);
    }
    free(in);
    free(out);
}

int main(void) {
    for (int size = 1; size <= 4; size++) {
        run_threads(size, 10000, crossing, NULL);
        run_threads(size, 10000, tags, NULL);
        run_threads(size, 10000, submitted, NULL);
    }
    run_threads(2, 10000, described, NULL);
    run_processes(3, 10000, crossing, NULL, NULL);
    run_processes(3, 10000, submitted, NULL, NULL);
    return 0;
}
