/* harness.h: runs a function on several ranks, as threads of this process or as processes. */
#ifndef HARNESS_H
#define HARNESS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "npucoll.h"

#define CHECK(condition, ...)                                                                                         \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                           \
            fprintf(stderr, " " __VA_ARGS__);                                                                          \
            fprintf(stderr, "\n");                                                                                    \
            abort();                                                                                                  \
        }                                                                                                             \
    } while (0)

/* CHECK_OK checks a call's status and shows its text. */
#define CHECK_OK(call)                                                                                                \
    do {                                                                                                              \
        int status_ = (call);                                                                                         \
        CHECK(status_ == NPC_OK, "status %d: %s", status_, error.text);                                               \
    } while (0)

typedef struct rank_context {
    npc_comm *comm;
    int rank, size, fd;
    void *argument; /* the same on all ranks */
    uint64_t seed;  /* of harness_random */
    uint64_t same;  /* of harness_random, where all ranks draw alike */
} rank_context;

typedef void (*rank_function)(rank_context *context);

/* run_threads runs body on `size` ranks that are threads, and returns when all have. The communicator is closed
 * afterwards unless body has set context->comm to NULL. */
void run_threads(int size, int64_t timeout_ms, rank_function body, void *argument);

/* run_processes does so with processes. codes[r] receives the wait status of rank r; NULL: all must succeed. */
void run_processes(int size, int64_t timeout_ms, rank_function body, void *argument, int *codes);

uint64_t harness_random(uint64_t *state);
double harness_seconds(void);

npc_desc desc_of(int kind, int dtype, int op, const npc_buf *in, const npc_buf *out, int64_t *shape);

#endif
