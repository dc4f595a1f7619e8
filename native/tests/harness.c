/* harness.c: see harness.h. */
#include "harness.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct rank_start {
    rank_context context;
    rank_function body;
    int64_t timeout_ms;
    bool threads;
} rank_start;

static void rank_run(rank_start *start) {
    npc_error error;
    npc_options options = {.size = sizeof options, .threads = start->threads, .timeout_ms = start->timeout_ms};
    rank_context *context = &start->context;
    CHECK_OK(npc_comm_open(context->fd, context->rank, context->size, 0, "world", &options, &context->comm, &error));
    start->body(context);
    if (context->comm != NULL)
        npc_comm_close(context->comm);
}

static void *rank_thread(void *argument) {
    rank_run(argument);
    return NULL;
}

static rank_start start_of(int rank, int size, int fd, int64_t timeout_ms, rank_function body, void *argument) {
    rank_start start = {.body = body, .timeout_ms = timeout_ms};
    start.context.rank = rank;
    start.context.size = size;
    start.context.fd = fd;
    start.context.argument = argument;
    start.context.seed = (uint64_t)rank * 7919 + 1;
    start.context.same = 12345;
    return start;
}

void run_threads(int size, int64_t timeout_ms, rank_function body, void *argument) {
    npc_error error;
    int fd;
    pthread_t threads[64];
    rank_start starts[64];
    CHECK_OK(npc_area_create(size, &fd, &error));
    for (int r = 0; r < size; r++) {
        starts[r] = start_of(r, size, fd, timeout_ms, body, argument);
        starts[r].threads = true;
        CHECK(pthread_create(&threads[r], NULL, rank_thread, &starts[r]) == 0);
    }
    for (int r = 0; r < size; r++)
        pthread_join(threads[r], NULL);
    close(fd);
}

void run_processes(int size, int64_t timeout_ms, rank_function body, void *argument, int *codes) {
    npc_error error;
    int fd, code;
    pid_t pids[64];
    CHECK_OK(npc_area_create(size, &fd, &error));
    for (int r = 0; r < size; r++) {
        pids[r] = fork();
        CHECK(pids[r] >= 0);
        if (pids[r] == 0) {
            rank_start start = start_of(r, size, fd, timeout_ms, body, argument);
            rank_run(&start);
            exit(0);
        }
    }
    for (int r = 0; r < size; r++) {
        CHECK(waitpid(pids[r], &code, 0) == pids[r]);
        if (codes != NULL)
            codes[r] = code;
        else
            CHECK(code == 0, "rank %d ended with %d", r, code);
    }
    close(fd);
}

/* SplitMix64 (Steele, Lea, Flood). */
uint64_t harness_random(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

double harness_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

npc_desc desc_of(int kind, int dtype, int op, const npc_buf *in, const npc_buf *out, int64_t *shape) {
    npc_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.size = sizeof desc;
    desc.kind = kind;
    desc.dtype = dtype;
    desc.op = op;
    desc.n_in = in != NULL;
    desc.n_out = out != NULL;
    desc.in = in;
    desc.out = out;
    desc.ndim = 1;
    desc.shape = shape;
    return desc;
}
