/* test_async.c: named calls in any order from several threads; submitted numbered calls mixed with blocking ones. */
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

typedef struct named {
    float in[3], out[3];
    _Atomic int done;
    int expected_status;
} named;

static void named_done(void *user, int status, const char *text) {
    named *call = user;
    CHECK(status == call->expected_status, "%d %s", status, text);
    CHECK((text[0] == '\0') == (status == NPC_OK), "%s", text);
    atomic_store(&call->done, 1);
}

static npc_desc named_desc(npc_buf *in, npc_buf *out, named *call, uint64_t key, int64_t *count) {
    *in = (npc_buf){call->in, *count};
    *out = (npc_buf){call->out, *count};
    npc_desc d = desc_of(NPC_ALLREDUCE, NPC_FLOAT32, NPC_SUM, in, out, count);
    d.key = key;
    d.name = "gradient";
    return d;
}

static void shuffle(uint64_t *state, int *order, int count) {
    for (int i = count - 1; i > 0; i--) {
        int other = (int)(harness_random(state) % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

/* 200 named calls in another order on every rank, several times; a tenth of them mismatch. */
static void any_order(rank_context *c) {
    enum { CALLS = 200 };
    npc_error error;
    static const int64_t three = 3;
    named *calls = calloc(CALLS, sizeof *calls);
    int order[CALLS];
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < CALLS; i++) {
            order[i] = i;
            for (int k = 0; k < 3; k++)
                calls[i].in[k] = (float)(i * 3 + k + c->rank);
            atomic_store(&calls[i].done, 0);
            calls[i].expected_status = i % 10 == 3 && c->size > 1 ? NPC_ERR_MISMATCH : NPC_OK;
        }
        shuffle(&c->seed, order, CALLS);
        for (int i = 0; i < CALLS; i++) {
            int64_t count = three;
            npc_buf in, out;
            named *call = &calls[order[i]];
            npc_desc d = named_desc(&in, &out, call, (uint64_t)order[i] + 1, &count);
            if (order[i] % 10 == 3 && c->rank == 0)
                d.op = NPC_MAX;
            CHECK_OK(npc_comm_submit(c->comm, &d, named_done, call, &error));
            if (harness_random(&c->seed) % 50 == 0)
                usleep(1000);
        }
        for (int i = 0; i < CALLS; i++) {
            while (!atomic_load(&calls[i].done))
                usleep(100);
            for (int k = 0; k < 3 && calls[i].expected_status == NPC_OK; k++)
                CHECK(calls[i].out[k] == (float)((i * 3 + k) * c->size + c->size * (c->size - 1) / 2), "call %d", i);
        }
    }
    free(calls);
}

typedef struct caller {
    rank_context *context;
    int index;
} caller;

/* Each thread makes blocking calls under its own names; names repeat. */
static void *call_names(void *argument) {
    caller *self = argument;
    rank_context *c = self->context;
    npc_error error;
    for (int i = 0; i < 60; i++) {
        int64_t count = i % 7 == 0 ? 300000 : 3;
        float *data = malloc((size_t)count * sizeof *data);
        for (int64_t k = 0; k < count; k++)
            data[k] = (float)(k % 50 + self->index + c->rank);
        npc_buf buffer = {data, count};
        npc_desc d = desc_of(NPC_ALLREDUCE, NPC_FLOAT32, NPC_SUM, &buffer, &buffer, &count);
        d.key = 100 + (uint64_t)self->index;
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        for (int64_t k = 0; k < count; k++)
            CHECK(data[k] == (float)((k % 50 + self->index) * c->size + c->size * (c->size - 1) / 2), "thread %d",
                  self->index);
        free(data);
    }
    return NULL;
}

static void many_threads(rank_context *c) {
    pthread_t threads[3];
    caller callers[3];
    npc_error error;
    for (int i = 0; i < 3; i++) {
        callers[i] = (caller){c, i};
        CHECK(pthread_create(&threads[i], NULL, call_names, &callers[i]) == 0, "thread");
    }
    /* Numbered calls go on beside them. */
    for (int i = 0; i < 100; i++) {
        int64_t count = 5;
        double data[5] = {i, i, i, i, i};
        npc_buf buffer = {data, count};
        npc_desc d = desc_of(NPC_ALLREDUCE, NPC_FLOAT64, NPC_MEAN, &buffer, &buffer, &count);
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        CHECK(data[4] == i, "numbered");
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

/* Submitted and blocking numbered calls run in the order in which they are made. */
static void mixed_order(rank_context *c) {
    npc_error error;
    npc_request *requests[20];
    int64_t data[20][2], count = 2;
    npc_buf buffers[20];
    for (int round = 0; round < 10; round++) {
        int submitted = (int)(harness_random(&c->same) % 20);
        uint64_t before = npc_comm_calls(c->comm);
        for (int i = 0; i < submitted; i++) {
            data[i][0] = i;
            data[i][1] = c->rank;
            buffers[i] = (npc_buf){data[i], 2};
            npc_desc d = desc_of(NPC_ALLREDUCE, NPC_INT64, NPC_SUM, &buffers[i], &buffers[i], &count);
            CHECK_OK(npc_request_start(c->comm, &d, &requests[i], &error));
        }
        int32_t root_value = c->rank == 0 ? 1000 + round : 0;
        int64_t one = 1;
        npc_buf value = {&root_value, 1};
        npc_desc d = desc_of(NPC_BROADCAST, NPC_INT32, 0, &value, &value, &one);
        d.n_in = c->rank == 0;
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
        CHECK(root_value == 1000 + round, "broadcast gave %d", root_value);
        CHECK(npc_comm_calls(c->comm) == before + (uint64_t)submitted + 1, "calls");
        for (int i = 0; i < submitted; i++) {
            /* The blocking call came later, so these are complete. */
            CHECK(npc_request_wait(requests[i], 0, &error) == NPC_OK, "%s", error.text);
            CHECK(data[i][0] == i * c->size && data[i][1] == c->size * (c->size - 1) / 2, "submitted %d", i);
            npc_request_free(requests[i]);
        }
    }
}

/* A wait with a limit returns -1 while the other rank is late. */
static void waits(rank_context *c) {
    npc_error error;
    npc_request *request;
    for (uint64_t key = 0; key < 2; key++) {
        int64_t value = 1, one = 1;
        npc_buf buffer = {&value, 1};
        npc_desc d = desc_of(NPC_ALLREDUCE, NPC_INT64, NPC_SUM, &buffer, &buffer, &one);
        d.key = key;
        if (c->rank > 0)
            usleep(60000);
        CHECK_OK(npc_request_start(c->comm, &d, &request, &error));
        if (c->rank == 0) {
            CHECK(npc_request_wait(request, 0, &error) == -1, "too early");
            CHECK(npc_request_wait(request, 5, &error) == -1, "too early");
        }
        CHECK(npc_request_wait(request, -1, &error) == NPC_OK, "%s", error.text);
        CHECK(value == c->size, "%ld", (long)value);
        npc_request_free(request);
    }
}

static void *busy_call(void *argument) {
    rank_context *c = argument;
    npc_error error;
    npc_desc d = desc_of(NPC_BARRIER, 0, 0, NULL, NULL, NULL);
    d.ndim = 0;
    CHECK_OK(npc_comm_run(c->comm, &d, &error));
    return NULL;
}

/* Two threads in numbered calls at once are told so. */
static void busy(rank_context *c) {
    npc_error error;
    pthread_t thread;
    npc_desc d = desc_of(NPC_BARRIER, 0, 0, NULL, NULL, NULL);
    d.ndim = 0;
    if (c->rank == 0) {
        CHECK(pthread_create(&thread, NULL, busy_call, c) == 0, "thread");
        int status;
        do {
            usleep(1000); /* until the other thread is in its call */
        } while (npc_comm_calls(c->comm) == 0);
        status = npc_comm_run(c->comm, &d, &error);
        CHECK(status == NPC_ERR_BUSY, "%d %s", status, error.text);
        CHECK(strstr(error.text, "one thread at a time") != NULL, "%s", error.text);
        pthread_join(thread, NULL);
    } else {
        usleep(200000);
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
    }
}

/* More named calls than the table holds are refused in words; those that fit complete. */
static void limits(rank_context *c) {
    enum { CALLS = 1024 };
    npc_error error;
    int64_t three = 3;
    npc_buf in, out;
    named *calls = calloc(CALLS + 1, sizeof *calls);
    npc_desc barrier = desc_of(NPC_BARRIER, 0, 0, NULL, NULL, NULL);
    barrier.ndim = 0;
    for (int i = 0; i < CALLS; i++) {
        if (c->rank == 1 && i == 0)
            CHECK_OK(npc_comm_run(c->comm, &barrier, &error)); /* rank 0 has filled the table */
        npc_desc d = named_desc(&in, &out, &calls[i], (uint64_t)i * 7 + 1, &three);
        CHECK_OK(npc_comm_submit(c->comm, &d, named_done, &calls[i], &error));
    }
    if (c->rank == 0) {
        npc_desc d = named_desc(&in, &out, &calls[CALLS], 3, &three);
        CHECK(npc_comm_submit(c->comm, &d, named_done, &calls[CALLS], &error) == NPC_ERR_LIMIT, "%s", error.text);
        CHECK_OK(npc_comm_run(c->comm, &barrier, &error));
    }
    for (int i = 0; i < CALLS; i++) {
        while (!atomic_load(&calls[i].done))
            usleep(100);
    }
    free(calls);
}

static void ended_done(void *user, int status, const char *text) {
    CHECK(status == NPC_ERR_CLOSED || status == NPC_ERR_PEER_LOST, "%d %s", status, text);
    atomic_fetch_add((_Atomic int *)user, 1);
}

/* A close completes everything that was submitted. */
static void close_with_pending(rank_context *c) {
    npc_error error;
    _Atomic int *ended = c->argument;
    int64_t three = 3;
    named *calls = calloc(30, sizeof *calls);
    npc_buf in, out;
    if (c->rank == 0) {
        for (int i = 0; i < 30; i++) {
            npc_desc d = named_desc(&in, &out, &calls[i], i % 2 ? (uint64_t)i : 0, &three);
            if (i % 3 == 2) {
                d.kind = NPC_RECV;
                d.n_in = 0;
                d.root = 1;
            }
            CHECK_OK(npc_comm_submit(c->comm, &d, ended_done, ended, &error));
        }
        npc_comm_close(c->comm);
        CHECK(atomic_load(ended) == 30, "%d", atomic_load(ended));
        c->comm = NULL;
    } else {
        while (atomic_load(ended) < 30)
            usleep(1000);
    }
    free(calls);
}

int main(void) {
    for (int size = 1; size <= 4; size++) {
        run_threads(size, 20000, any_order, NULL);
        run_threads(size, 20000, many_threads, NULL);
        run_threads(size, 20000, mixed_order, NULL);
        if (size == 1)
            continue;
        _Atomic int ended = 0;
        run_threads(size, 20000, close_with_pending, &ended);
        run_threads(size, 20000, waits, NULL);
    }
    run_threads(2, 20000, busy, NULL);
    run_threads(2, 20000, limits, NULL);
    run_processes(3, 20000, any_order, NULL, NULL);
    run_processes(2, 20000, many_threads, NULL, NULL);
    return 0;
}
