/* test_failures.c: what the ranks are told when something goes wrong. */
#include "harness.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK_TEXT(words) CHECK(strstr(error.text, words) != NULL, "'%s' is not in: %s", words, error.text)

static int allreduce_of(npc_comm *comm, int64_t count, int dtype, int op, uint64_t key, const char *name,
                        npc_error *error) {
    void *data = calloc((size_t)count + 1, 16);
    npc_buf buffer = {data, count};
    npc_desc d = desc_of(NPC_ALLREDUCE, dtype, op, &buffer, &buffer, &count);
    d.key = key;
    d.name = name;
    int status = npc_comm_run(comm, &d, error);
    free(data);
    return status;
}

/* Every kind of disagreement, on every size of message, and the communicator goes on. */
static void mismatches(rank_context *c) {
    npc_error error;
    bool odd = c->rank == c->size - 1;
    for (uint64_t key = 0; key < 2; key++) {
        for (int64_t count = 1; count < 2000000; count *= 100) {
            int status = allreduce_of(c->comm, count + odd, NPC_FLOAT32, NPC_SUM, key, key ? "weights" : NULL, &error);
            CHECK(status == NPC_ERR_MISMATCH, "%d %s", status, error.text);
            CHECK_TEXT(key ? "allreduce 'weights' (float32, shape (" : "allreduce #");
            CHECK_TEXT(c->size == 2 ? "rank 0: " : "0 and 1: ");
            status = allreduce_of(c->comm, count, odd ? NPC_INT32 : NPC_FLOAT32, NPC_SUM, key, NULL, &error);
            CHECK(status == NPC_ERR_MISMATCH, "%d %s", status, error.text);
            CHECK_TEXT("int32");
            status = allreduce_of(c->comm, count, NPC_FLOAT32, odd ? NPC_MEAN : NPC_SUM, key, NULL, &error);
            CHECK(status == NPC_ERR_MISMATCH, "%d %s", status, error.text);
            CHECK_TEXT("mean");
            CHECK_OK(allreduce_of(c->comm, count, NPC_FLOAT32, NPC_SUM, key, NULL, &error));
        }
        npc_desc d = desc_of(NPC_BARRIER, 0, 0, NULL, NULL, NULL);
        d.ndim = 0;
        d.key = key;
        int status = odd ? npc_comm_run(c->comm, &d, &error)
                         : allreduce_of(c->comm, 5, NPC_FLOAT32, NPC_SUM, key, NULL, &error);
        CHECK(status == NPC_ERR_MISMATCH, "%d %s", status, error.text);
        CHECK_TEXT("barrier");
        CHECK_OK(npc_comm_run(c->comm, &d, &error));
    }
    CHECK(npc_comm_ended(c->comm, &error) == NPC_OK, "%s", error.text);
}

/* Wrong calls fail at once and send nothing: the next right call matches. */
static void arguments(rank_context *c) {
    npc_error error;
    int64_t four = 4, minus = -1;
    float data[8] = {0};
    npc_buf in = {data, 4}, out = {data + 4, 3};
    if (c->rank == 0) {
        npc_desc d = desc_of(NPC_ALLREDUCE, NPC_FLOAT32, NPC_SUM, &in, &out, &four);
        CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_ARGUMENT, "counts");
        CHECK_TEXT("3 elements");
        d.out = &in;
        d.dtype = 99;
        CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_ARGUMENT, "dtype");
        d.dtype = NPC_BOOL;
        CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_UNSUPPORTED, "bool");
        d.dtype = NPC_INT32;
        d.prescale = 0.5;
        CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_UNSUPPORTED, "scaled integers");
        d = desc_of(NPC_BROADCAST, NPC_FLOAT32, 0, &in, NULL, &four);
        d.root = c->size;
        CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_ARGUMENT, "root");
        CHECK_TEXT("no rank");
        d = desc_of(NPC_ALLGATHER, NPC_FLOAT32, 0, &in, NULL, &minus);
        CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_ARGUMENT, "negative");
        d.size = 0;
        CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_ARGUMENT, "size");
        CHECK(npc_comm_run(NULL, &d, &error) == NPC_ERR_ARGUMENT, "no communicator");
        CHECK(npc_comm_calls(c->comm) == 0, "calls");
    }
    CHECK_OK(allreduce_of(c->comm, 3, NPC_FLOAT32, NPC_SUM, 0, NULL, &error));
    /* What all ranks can see to be wrong fails on all of them alike, and the communicator goes on. */
    int64_t rows = 2 * c->size + 1;
    float *block = calloc((size_t)rows, sizeof *block);
    npc_buf whole = {block, rows}, part = {block, 2}, big = {block, rows};
    npc_desc d = desc_of(NPC_REDUCE_SCATTER, NPC_FLOAT32, NPC_SUM, &whole, &part, &rows);
    CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_ARGUMENT, "reduce_scatter");
    CHECK_TEXT("multiple");
    d = desc_of(NPC_SCATTER, NPC_FLOAT32, 0, &whole, &part, &rows);
    if (c->rank != 0)
        d.n_in = 0;
    CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_ARGUMENT, "scatter");
    d = desc_of(NPC_ALLTOALL, NPC_FLOAT32, 0, &whole, &big, &rows);
    CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_ARGUMENT, "alltoall");
    CHECK_TEXT("give splits");
    d = desc_of(NPC_ALLGATHER, NPC_FLOAT32, 0, &part, c->rank == 0 ? &part : NULL, &part.count);
    CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_ARGUMENT, "allgather output");
    CHECK_OK(allreduce_of(c->comm, 3, NPC_FLOAT32, NPC_SUM, 0, NULL, &error));
    free(block);
}

/* The last rank never comes: all others fail, soon after the deadline, and say who was missing. */
static void timeouts(rank_context *c) {
    npc_error error;
    uint64_t key = (uint64_t)(uintptr_t)c->argument;
    double start = harness_seconds();
    if (c->rank == c->size - 1) {
        while (npc_comm_ended(c->comm, &error) == NPC_OK)
            usleep(1000);
    } else {
        CHECK(allreduce_of(c->comm, 7, NPC_FLOAT32, NPC_SUM, key, key ? "late" : NULL, &error) == NPC_ERR_TIMEOUT,
              "%s", error.text);
    }
    CHECK(harness_seconds() - start < 3.0, "%f", harness_seconds() - start);
    char missing[32];
    snprintf(missing, sizeof missing, "for rank %d", c->size - 1);
    CHECK_TEXT(missing);
    CHECK_TEXT(key ? "allreduce 'late' (float32, shape (7,), sum)" : "allreduce #0 (float32, shape (7,), sum)");
    /* Later calls repeat the cause. */
    npc_error again;
    CHECK(allreduce_of(c->comm, 7, NPC_FLOAT32, NPC_SUM, key, NULL, &again) == NPC_ERR_TIMEOUT, "%s", again.text);
    CHECK(strcmp(again.text, error.text) == 0, "%s\n%s", again.text, error.text);
    if (c->size > 1 && key)
        CHECK_TEXT("waits in no named call");
}

static void mail_timeout(rank_context *c) {
    npc_error error;
    npc_desc d = desc_of(NPC_RECV, 0, 0, NULL, NULL, NULL);
    d.ndim = 0;
    d.root = 1;
    d.tag = 5;
    if (c->rank == 0) {
        CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_TIMEOUT, "%s", error.text);
        CHECK_TEXT("recv from rank 1 with tag 5");
    }
    while (npc_comm_ended(c->comm, &error) == NPC_OK)
        usleep(1000);
}

/* One rank closes while the others wait. */
static void leaves(rank_context *c) {
    npc_error error;
    uint64_t key = (uint64_t)(uintptr_t)c->argument;
    CHECK_OK(allreduce_of(c->comm, 400000, NPC_FLOAT32, NPC_SUM, key, NULL, &error));
    if (c->rank == c->size - 1)
        return;
    CHECK(allreduce_of(c->comm, 7, NPC_FLOAT32, NPC_SUM, key, NULL, &error) == NPC_ERR_PEER_LOST, "%s", error.text);
    CHECK_TEXT("has left");
}

static void aborts(rank_context *c) {
    npc_error error;
    uint64_t key = (uint64_t)(uintptr_t)c->argument;
    if (c->rank == 0) {
        usleep(20000);
        npc_comm_abort(c->comm, "ValueError: no such file");
        CHECK(npc_comm_ended(c->comm, &error) == NPC_ERR_PEER_LOST, "%s", error.text);
    } else {
        CHECK(allreduce_of(c->comm, 7, NPC_FLOAT32, NPC_SUM, key, NULL, &error) == NPC_ERR_PEER_LOST, "%s", error.text);
    }
    CHECK_TEXT("rank 0 failed: ValueError: no such file");
}

static void *close_later(void *argument) {
    usleep(30000);
    npc_comm_close(argument);
    return NULL;
}

/* A close in another thread ends a waiting call of this rank. */
static void closes_under_call(rank_context *c) {
    npc_error error;
    pthread_t thread;
    npc_comm *comm = c->comm;
    uint64_t key = (uint64_t)(uintptr_t)c->argument;
    if (c->rank != 0)
        return;
    const npc_api *api = npc_api_get();
    npc_comm *mine = api->comm_acquire(0);
    CHECK(mine != NULL, "acquire");
    CHECK(pthread_create(&thread, NULL, close_later, comm) == 0, "thread");
    int status = allreduce_of(mine, 7, NPC_FLOAT32, NPC_SUM, key, NULL, &error);
    CHECK(status == NPC_ERR_CLOSED || status == NPC_ERR_PEER_LOST, "%d %s", status, error.text);
    pthread_join(thread, NULL);
    CHECK(npc_comm_ended(mine, &error) == NPC_ERR_CLOSED, "%s", error.text);
    c->comm = mine; /* what acquire gave is dropped by the harness's close */
}

/* One rank is killed while the others are in a call with it. */
static void killed(rank_context *c) {
    npc_error error;
    uint64_t key = (uint64_t)(uintptr_t)c->argument;
    CHECK_OK(allreduce_of(c->comm, 100000, NPC_FLOAT32, NPC_SUM, key, NULL, &error));
    if (c->rank == c->size - 1) {
        usleep(50000);
        kill(getpid(), SIGKILL);
    }
    double start = harness_seconds();
    int status = allreduce_of(c->comm, 100000, NPC_FLOAT32, NPC_SUM, key, NULL, &error);
    CHECK(status == NPC_ERR_PEER_LOST, "%d %s", status, error.text);
    CHECK(harness_seconds() - start < 1.0, "%f", harness_seconds() - start);
    CHECK_TEXT("is gone");
}

/* The same while a receive waits, and at random moments of a stream of large calls. */
static void killed_in_mail(rank_context *c) {
    npc_error error;
    npc_desc d = desc_of(NPC_RECV, 0, 0, NULL, NULL, NULL);
    d.ndim = 0;
    d.root = c->size - 1;
    if (c->rank == c->size - 1) {
        usleep(50000);
        kill(getpid(), SIGKILL);
    }
    CHECK(npc_comm_run(c->comm, &d, &error) == NPC_ERR_PEER_LOST, "%s", error.text);
}

/* die_in kills this process in a moment. */
static void die_in(uintptr_t microseconds) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec when = {.it_value = {.tv_nsec = (long)microseconds * 1000}};
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer");
    CHECK(timer_settime(timer, 0, &when, NULL) == 0, "timer");
}

static void killed_at_random(rank_context *c) {
    npc_error error;
    if (c->rank == 0)
        die_in(1000 + (uintptr_t)c->argument * 3000);
    double start = harness_seconds();
    int status = NPC_OK;
    for (int64_t i = 0; status == NPC_OK && harness_seconds() - start < 5.0; i++)
        status = allreduce_of(c->comm, 1 + i * 5000, NPC_FLOAT32, NPC_SUM, i % 2 ? 9 : 0, NULL, &error);
    CHECK(status == NPC_ERR_PEER_LOST, "%d %s", status, error.text);
}

static int stop_asked(void) {
    return 1;
}

/* The poll function interrupts a wait of npc_comm_run, and the others learn of it. */
/* A rank dies in the midst of large transfers. What a survivor got with NPC_OK is right, whatever it is. */
static void killed_in_transfer(rank_context *c) {
    npc_error error;
    int64_t count = 4 << 20;
    int32_t *data = malloc((size_t)count * sizeof *data);
    if (c->rank == 1)
        die_in((uintptr_t)c->argument);
    for (int round = 1;; round++) {
        npc_buf in = {data, count};
        bool reduces = round % 2 == 0;
        for (int64_t i = 0; i < count; i += 512)
            data[i] = reduces || c->rank == 0 ? round * 1009 + (int)i : -1;
        npc_desc d = desc_of(reduces ? NPC_ALLREDUCE : NPC_BROADCAST, NPC_INT32, NPC_MAX, &in, &in, &count);
        int status = npc_comm_run(c->comm, &d, &error);
        if (status != NPC_OK) {
            CHECK(status == NPC_ERR_PEER_LOST, "%d %s", status, error.text);
            break;
        }
        for (int64_t i = 0; i < count; i += 512)
            CHECK(data[i] == round * 1009 + (int)i, "round %d, element %ld is %d", round, (long)i, data[i]);
    }
    free(data);
}

static void interrupted(void) {
    npc_error error;
    int fd;
    npc_comm *comms[2];
    npc_options options = {.size = sizeof options, .threads = 1, .poll = stop_asked};
    for (uint64_t key = 0; key < 2; key++) {
        CHECK_OK(npc_area_create(2, &fd, &error));
        for (int r = 0; r < 2; r++)
            CHECK_OK(npc_comm_open(fd, r, 2, 0, "world", &options, &comms[r], &error));
        close(fd);
        int status = allreduce_of(comms[0], 7, NPC_FLOAT32, NPC_SUM, key, NULL, &error);
        CHECK(status == NPC_ERR_INTERRUPTED, "%d %s", status, error.text);
        status = allreduce_of(comms[1], 7, NPC_FLOAT32, NPC_SUM, key, NULL, &error);
        CHECK(status == NPC_ERR_PEER_LOST, "%d %s", status, error.text);
        CHECK_TEXT("rank 0 was interrupted");
        for (int r = 0; r < 2; r++)
            npc_comm_close(comms[r]);
    }
}

int main(void) {
    for (int size = 2; size <= 3; size++) {
        run_threads(size, 10000, mismatches, NULL);
        run_threads(size, 10000, arguments, NULL);
        for (uintptr_t key = 0; key < 2; key++) {
            run_threads(size, 300, timeouts, (void *)key);
            run_threads(size, 10000, leaves, (void *)key);
            run_threads(size, 10000, aborts, (void *)key);
            run_threads(size, 10000, closes_under_call, (void *)key);
        }
    }
    run_threads(2, 200, mail_timeout, NULL);
    interrupted();
    int codes[3];
    for (uintptr_t key = 0; key < 2; key++) {
        run_processes(3, 10000, killed, (void *)key, codes);
        CHECK(codes[0] == 0 && codes[1] == 0, "%d %d", codes[0], codes[1]);
        CHECK(WTERMSIG(codes[2]) == SIGKILL, "%d", codes[2]);
    }
    run_processes(2, 10000, killed_in_mail, NULL, codes);
    CHECK(codes[0] == 0, "%d", codes[0]);
    for (uintptr_t i = 0; i < 12; i++) {
        run_processes(3, 10000, killed_at_random, (void *)i, codes);
        CHECK(codes[1] == 0 && codes[2] == 0, "%d %d", codes[1], codes[2]);
    }
    for (uintptr_t i = 0; i < 8; i++) {
        run_processes(3, 10000, killed_in_transfer, (void *)(20000 + i * 1700), codes);
        CHECK(codes[0] == 0 && codes[2] == 0, "%d %d", codes[0], codes[2]);
    }
    return 0;
}
