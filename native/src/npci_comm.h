/* npci_comm.h: the engine's own structures in this process, and what its files offer each other. */
#ifndef NPCI_COMM_H
#define NPCI_COMM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "npci_area.h"

typedef struct npci_call npci_call;
typedef struct npci_keyed npci_keyed;
typedef struct npci_queue npci_queue;
typedef struct npci_mail npci_mail;
typedef struct npci_heap npci_heap;

/* npci_stager chooses between the two kinds of stores: see stage.c. */
typedef struct npci_stage_class {
    float cost[2]; /* nanoseconds for a byte, ordinary and streaming; 0: not known */
    uint32_t turns;
} npci_stage_class;

typedef struct npci_stager {
    bool streams;
    int64_t began; /* nanoseconds; 0: not measured */
    npci_stage_class classes[3];
} npci_stager;

/* npci_lane is this rank's view of one lane. One call at a time uses it. */
typedef struct npci_lane {
    uint64_t sequence; /* of the last meeting; equal on all ranks between calls */
    uint64_t rounds;   /* staging rounds so far; equal on all ranks between calls */
    npci_progress *progress;
    npci_cell *cells; /* two sets of p */
    unsigned char *groups; /* two sets of one for each group */
    unsigned char *asides;
    npci_note *notes;
    unsigned char *middle;
    unsigned char *staging;
    npci_stager stager;
} npci_lane;

struct npc_comm {
    _Atomic int references;
    _Atomic int closing; /* this process has closed it */
    _Atomic int forked;  /* this process is a forked child of the rank */
    int rank, size;
    uint64_t id;
    char name[NPCI_NAME];
    bool threads;
    int64_t timeout_ms;
    npc_poll_fn poll;
    int spins, yields;
    int area_fd;            /* keeps the memory file; -1 after close */
    _Atomic int lock_fd;    /* holds the liveness lock; -1 where there is none */
    npci_header *area;
    npci_layout layout;
    size_t chunk, middle;
    int group;      /* ranks that meet before their first one meets the others; 0: all meet at once */
    int64_t stream; /* results of so many bytes are written past the caches */
    const struct npci_kernel_table *kernels;
    npci_member *members;
    npci_lane lanes[NPCI_LANES];
    _Atomic int in_call;    /* a thread is making a numbered call */
    _Atomic uint64_t calls; /* numbered calls made */
    npci_queue *queue;      /* submitted numbered calls */
    npci_keyed *keyed;      /* named calls */
    npci_mail *mail;        /* send and receive */
    npci_heap *heap;        /* communication memory */
    int pid;                /* of the process that opened it */
    npc_comm *next;         /* in the registry */
};

/* npci_call is one call while it is made. */
struct npci_call {
    npc_comm *comm;
    npci_lane *lane;
    npc_desc d; /* complete: defaults filled in */
    int64_t shape[NPC_MAX_DIMS];
    size_t item;         /* bytes of an element */
    int64_t count;       /* elements the shape holds */
    int64_t bytes;       /* count * item */
    uint64_t fingerprint;
    int64_t packed;      /* bytes that every rank brings to the meeting in its cell, or 0 */
    uint64_t number;
    bool planned;        /* it is run again and again: a shared result is made once */
    uint64_t place;      /* of the shared result of a planned call, when it has been made */
    bool may_poll;       /* the thread is the caller's: it asks the poll function */
    int64_t started, deadline, polled; /* nanoseconds; zero until the first wait that is not short */
    npc_error *error;
};

struct npc_request {
    _Atomic uint32_t complete; /* a futex */
    _Atomic uint32_t waiters;  /* that sleep on it */
    _Atomic int references;
    npc_comm *comm;
    npc_done_fn done;
    void *user;
    int status;
    npc_request *next, *previous;
    uint32_t entry; /* of a named call */
    void *storage;  /* the descriptor's arrays */
    npci_call call;
    npc_error error;
};

/* ---- error.c: texts. */
/* npci_fail writes a text and returns `status`. error may be NULL. */
int npci_fail(npc_error *error, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* npci_fail_errno does so for a failed system call; `code` is its errno. */
int npci_fail_errno(npc_error *error, const char *doing, int code);
/* npci_append adds to a text that has room for `room` bytes in all; it is cut where the room ends. */
void npci_append(char *text, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- describe.c: calls in words. */
void npci_note_of(const npci_call *call, npci_note *note);
/* npci_describe writes for example `allreduce #12 (float32, shape (4, 5), sum)`. */
void npci_describe(const npci_note *note, char *text, size_t room);
void npci_describe_call(const npci_call *call, char *text, size_t room);
/* npci_describe_ranks writes `rank 1` or `ranks 1, 2 and 5` for the ranks whose flag is set. */
void npci_describe_ranks(const bool *flags, int size, char *text, size_t room);
/* npci_describe_mismatch writes what each rank called; note(context, r) gives rank r's. Returns NPC_ERR_MISMATCH. */
int npci_describe_mismatch(npc_error *error, int size, const npci_note *(*note)(const void *, int),
                           const void *context);

/* ---- fingerprint.c */
uint64_t npci_fingerprint(const npci_call *call);

/* ---- prepare.c: npci_prepare fills a call from a descriptor and checks everything this rank can check alone. */
int npci_prepare(npci_call *call, npc_comm *comm, const npc_desc *desc, npc_error *error);

/* ---- wait.c: time, futexes, and the one way to wait for another rank. */
int64_t npci_now(void);
void npci_pause(void);
/* npci_futex_wait sleeps while *word is `value`, at most `nanoseconds` (negative: without limit). May wake early. */
void npci_futex_wait(void *word, uint32_t value, int64_t nanoseconds);
void npci_futex_wake(void *word);
/* npci_low_half is the address of the low 32 bits of a counter, where waiters sleep. */
void *npci_low_half(_Atomic uint64_t *value);

#define NPCI_SLICE INT64_C(50000000)

/* npci_clock_start notes when a call began to wait and when it must give up. */
void npci_clock_start(npci_call *call);
/* npci_wait_check looks at everything but the awaited condition itself: the end of the communicator, this process's
 * close, the deadline, the caller's poll function. NPC_OK means: wait on. NPCI_EXPIRED: the deadline has passed. */
#define NPCI_EXPIRED (-2)
int npci_wait_check(npci_call *call);
/* npci_wait_slow waits until *value >= target; `peer` is the rank that will advance it, `missing` tells whether rank r
 * has not got there yet (for the message). Blocks; ends the communicator when the wait cannot be fulfilled. */
int npci_wait_slow(npci_call *call, int peer, _Atomic uint64_t *value, _Atomic uint32_t *waiters, uint64_t target,
                   int stage);
/* npci_wait_expired ends the communicator because of the deadline. */
int npci_wait_expired(npci_call *call, const bool *missing);
/* npci_wait_lost ends the communicator because `peer` has left or died. */
int npci_wait_lost(npci_call *call, int peer, int presence);

/* ---- stage.c: staging memory. */
unsigned char *npci_staging(const npci_call *call, int rank, uint64_t round);
/* npci_stage_begin and npci_stage_end come before and after a rank stages `bytes` of its input. */
void npci_stage_begin(npci_call *call, int64_t bytes);
void npci_stage_end(npci_call *call, int64_t bytes);
/* npci_stage_copy copies into memory that other ranks read; npci_stage_publish comes between the last such copy and the
 * npci_advance that tells them. */
void npci_stage_copy(const npci_call *call, void *to, const void *from, int64_t bytes);
void npci_stage_publish(const npci_call *call);

/* ---- stream.c: npci_stream_copy bypasses the caches; npci_stream_fence comes before others are told. */
void npci_stream_copy(void *to, const void *from, int64_t bytes);
/* npci_result_copy copies to a result, past the caches if `stream`. */
static inline void npci_result_copy(void *to, const void *from, int64_t bytes, bool stream) {
    if (stream)
        npci_stream_copy(to, from, bytes);
    else if (bytes > 0)
        memcpy(to, from, (size_t)bytes);
}
void npci_stream_fence(void);

/* ---- caches.c */
typedef struct npci_caches {
    size_t level2, level3; /* bytes */
    int sharers;           /* processors that share a third-level cache */
} npci_caches;
npci_caches npci_caches_find(void);

/* npci_advance publishes everything this rank wrote before it, and wakes those that wait for it.
 * Sequentially consistent store and load: the sleeper announces itself (RMW), then looks at the value; this side
 * stores, then looks for announcements. In the one total order at least one of them sees the other. */
static inline void npci_advance_word(_Atomic uint64_t *value, uint64_t to, _Atomic uint32_t *waiters) {
    atomic_store_explicit(value, to, memory_order_seq_cst);
    if (atomic_load_explicit(waiters, memory_order_seq_cst) != 0)
        npci_futex_wake(npci_low_half(value));
}

static inline void npci_advance(npci_counter *counter, uint64_t to) {
    npci_advance_word(&counter->value, to, &counter->waiters);
}

/* npci_wait_stage waits until rank `peer` has reached `target` in `stage`. Acquire: pairs with npci_advance, so what
 * the peer wrote before is visible. */
static inline int npci_wait_stage(npci_call *call, int peer, int stage, uint64_t target) {
    npci_counter *counter = &call->lane->progress[peer].stage[stage];
    if (atomic_load_explicit(&counter->value, memory_order_acquire) >= target)
        return NPC_OK;
    return npci_wait_slow(call, peer, &counter->value, &counter->waiters, target, stage);
}

/* npci_wait_all waits for every other rank. */
int npci_wait_all(npci_call *call, int stage, uint64_t target);
/* npci_advance_stage tells the others how far this rank is, and makes visible what it has staged. */
static inline void npci_advance_stage(npci_call *call, int stage, uint64_t to) {
    if (stage != NPCI_DRAINED)
        npci_stage_publish(call);
    npci_advance(&call->lane->progress[call->comm->rank].stage[stage], to);
}

/* Bells. A sleeper reads the event, looks for work, and sleeps only while the event has not changed. */
void npci_bell_ring(npci_bell *bell);
uint32_t npci_bell_read(npci_bell *bell);
void npci_bell_sleep(npci_bell *bell, uint32_t seen, int64_t nanoseconds);
npci_bell *npci_log_bell(npc_comm *comm, int rank);
npci_bell *npci_mail_bell(npc_comm *comm, int rank);

/* ---- liveness.c */
/* npci_liveness_take takes this rank's lock; an error names who holds it. */
int npci_liveness_take(npc_comm *comm, npc_error *error);
void npci_liveness_drop(npc_comm *comm);
typedef enum npci_peer { NPCI_PEER_HERE = 0, NPCI_PEER_LEFT = 1, NPCI_PEER_DEAD = 2 } npci_peer;
int npci_liveness_of(npc_comm *comm, int rank);

/* ---- ended.c: how a communicator ends. */
/* npci_end ends the communicator unless it has ended, wakes everybody, and reports the cause, whoever was first. */
int npci_end(npc_comm *comm, int status, const char *text, npc_error *error);
/* npci_ended returns NPC_OK or the cause. */
int npci_ended(npc_comm *comm, npc_error *error);
void npci_wake_everybody(npc_comm *comm);
/* npci_usable returns NPC_OK if calls may be made: not forked, not closed, not ended. */
int npci_usable(npc_comm *comm, npc_error *error);

/* ---- comm.c */
void npci_comm_retain(npc_comm *comm);
void npci_comm_release(npc_comm *comm);
int npci_cores(void);

/* ---- registry.c */
int npci_registry_add(npc_comm *comm, npc_error *error);
void npci_registry_remove(npc_comm *comm);
npc_comm *npci_registry_acquire(uint64_t id);

/* ---- buffers.c: several buffers seen as one. */
typedef struct npci_cursor {
    const npc_buf *buffers;
    int count, index;
    size_t item;
    int64_t start; /* byte position where the current buffer begins */
} npci_cursor;
npci_cursor npci_cursor_of(const npc_buf *buffers, int count, size_t item);
/* npci_cursor_at gives the memory at byte `position` and lowers *bytes to what is contiguous there. */
unsigned char *npci_cursor_at(npci_cursor *cursor, int64_t position, int64_t *bytes);
/* npci_cursor_stage copies to staging memory as npci_stage_copy does; npci_cursor_write copies from anywhere to the
 * buffers, past the caches if `stream`. */
void npci_cursor_stage(npci_cursor *cursor, const npci_call *call, int64_t position, int64_t bytes, void *to);
void npci_cursor_write(npci_cursor *cursor, int64_t position, int64_t bytes, const void *from, bool stream);
int64_t npci_buffers_count(const npc_buf *buffers, int count);
/* npci_part gives the part of `bytes` that belongs to rank `index` of `size`, on cache-line borders. */
static inline int64_t npci_part_start(int64_t bytes, int size, int index) {
    int64_t lines = (bytes + NPCI_LINE - 1) / NPCI_LINE;
    int64_t at = (lines * index / size) * NPCI_LINE;
    return at < bytes ? at : bytes;
}

/* ---- heap.c: communication memory. A place is a byte of the memory file, plus one; 0 is nowhere. */
int npci_heap_new(npc_comm *comm, npc_error *error);
void npci_heap_free(npc_comm *comm);
/* npci_heap_place finds the place of memory in this rank's own part or, unless `writable`, in a shared result. */
uint64_t npci_heap_place(npc_comm *comm, const void *memory, int64_t bytes, bool writable);
/* npci_heap_address gives the address of a place in this process; `view`: read-only. NULL: it cannot be mapped. */
unsigned char *npci_heap_address(npc_comm *comm, uint64_t place, bool view);

/* ---- memory.c: results that the engine provides. */
/* npci_result_place makes room for a shared result, in rank 0's part, by rank 0; 0 where there is none. A planned
 * call's result is made once: others may still read what it was until they are in the next meeting, and nobody writes
 * before that. */
uint64_t npci_result_place(npci_call *call);
/* npci_result_cancel gives up a result that no other rank has heard of. */
void npci_result_cancel(npci_call *call, uint64_t place);
/* npci_result_lay_out points the call's `shared` into the result at `place`: where this rank writes it, then, as a
 * view that it may keep, where it reads it. */
bool npci_result_lay_out(npci_call *call, uint64_t place, bool view);
/* npci_result_own gives this rank memory of its own for the result. */
int npci_result_own(npci_call *call);

/* ---- lend.c: inputs and outputs that others may use where they lie. */
/* npci_lend tells in the meeting's aside where this rank's input and output lie, if in communication memory. */
void npci_lend(npci_call *call, npci_aside *aside);
/* npci_lent_input gives the address of one rank's input, as it told in the last meeting; NULL where it lent none.
 * npci_lent_inputs gives those of all ranks. */
int npci_lent_input(npci_call *call, int rank, const unsigned char **input);
int npci_lent_inputs(npci_call *call, const unsigned char **inputs, int *lenders);
/* npci_lent_outputs gives all ranks' outputs; *all is false where one lent none. */
int npci_lent_outputs(npci_call *call, unsigned char **outputs, bool *all);
/* npci_lend_end is made by all ranks when they are done with each other's inputs; who lent waits for all. */
int npci_lend_end(npci_call *call, bool lent);

/* ---- meet.c: one synchronisation of all ranks in a lane. */
/* npci_meet_space is where this rank's data for the coming meeting goes (a cell or the middle buffer), or NULL where
 * `bytes` are too many. `alike`: every rank brings as many, and all read all. */
unsigned char *npci_meet_space(npci_call *call, int64_t bytes, bool alike);
npci_aside *npci_meet_aside(npci_call *call);
/* npci_meet_stage copies this rank's data, call->bytes of it, to that space. */
void npci_meet_stage(npci_call *call, npci_cursor *in, unsigned char *space);
/* npci_meet arrives, waits for all and compares fingerprints. */
int npci_meet(npci_call *call);
/* npci_group_of is a group's place for meeting `sequence`. */
npci_group *npci_group_of(const npc_comm *comm, const npci_lane *lane, uint64_t sequence, int group);
/* npci_met_data is where rank's data of the meeting that has just been lies. */
const unsigned char *npci_met_data(const npci_call *call, int rank, int64_t bytes);
const npci_aside *npci_met_aside(const npci_call *call, int rank);

/* ---- reduce.c: arithmetic. */
typedef struct npci_reduction {
    void (*kernel)(void *to, const void *const *from, int size, size_t count, double prescale, double postscale);
    int size;
    size_t item;
    double prescale, postscale;
} npci_reduction;
/* npci_kernels_choose asks the processor what it can; that takes microseconds in a virtual machine. */
const struct npci_kernel_table *npci_kernels_choose(void);
npci_reduction npci_reduction_of(const npci_call *call);
/* npci_reduce computes to[i] = from[0][i] op from[1][i] op ... in that order. `to` may be one of the inputs. */
void npci_reduce(const npci_reduction *reduction, void *to, const void *const *from, int64_t bytes);

/* ---- output.c: outputs whose size is known only after the meeting. */
/* npci_output_at finds or allocates the output; on failure *failure is the status to return after taking part, and
 * the result is NULL. */
unsigned char *npci_output_at(npci_call *call, int ndim, const int64_t *shape, const int64_t *counts, int *failure);

/* ---- the collectives, one a file. Each runs in the thread that has the lane. */
int npci_barrier(npci_call *call);
int npci_allreduce(npci_call *call);
int npci_reduce_to_root(npci_call *call);
int npci_reduce_all(npci_call *call, int root); /* root -1: every rank gets the result */
int npci_broadcast(npci_call *call);
int npci_allgather(npci_call *call);
int npci_gather(npci_call *call);
int npci_gather_all(npci_call *call, int root);
int npci_reduce_scatter(npci_call *call);
int npci_alltoall(npci_call *call);
int npci_scatter(npci_call *call);
/* npci_run runs the call's collective in the call's lane. */
int npci_run(npci_call *call);

/* ---- request.c */
/* npci_call_keep copies a prepared call and its arrays, which go into *storage, freed by the caller. Buffers and
 * `shared` stay the caller's. */
int npci_call_keep(npci_call *kept, const npci_call *call, void **storage, npc_error *error);
/* npci_request_new copies a prepared call with its arrays. One reference is the engine's. */
int npci_request_new(npc_request **request, const npci_call *call, npc_done_fn done, void *user, npc_error *error);
/* npci_request_complete tells whoever waits, and drops the engine's reference. */
void npci_request_complete(npc_request *request, int status);
void npci_request_release(npc_request *request);
/* npci_request_await waits at most timeout_ms (negative: without limit). It returns the call's status; -1 when the time
 * is over; NPCI_POLL about every 50 ms where the caller `polls`. */
#define NPCI_POLL (-3)
int npci_request_await(npc_request *request, int64_t timeout_ms, bool polls, npc_error *error);

/* ---- worker.c: npci_worker_start makes a thread that takes no signals; it holds a reference to comm. */
int npci_worker_start(npc_comm *comm, pthread_t *thread, void *(*body)(void *), npc_error *error);
void npci_worker_join(pthread_t thread);

/* ---- queue.c: the numbered lane. */
int npci_queue_new(npc_comm *comm, npc_error *error);
void npci_queue_free(npc_comm *comm);
void npci_queue_close(npc_comm *comm); /* completes what is queued, joins the worker */
int npci_queue_run(npci_call *call);
int npci_queue_submit(npci_call *call, npc_done_fn done, void *user, npc_request **request);

/* ---- keyed.c: the keyed lane. */
int npci_keyed_new(npc_comm *comm, npc_error *error);
void npci_keyed_free(npc_comm *comm);
void npci_keyed_close(npc_comm *comm);
int npci_keyed_run(npci_call *call);
int npci_keyed_submit(npci_call *call, npc_done_fn done, void *user, npc_request **request);
/* npci_table_lock takes the table's lock; it fails where the communicator ends meanwhile. */
int npci_table_lock(npc_comm *comm, npc_error *error);
void npci_table_unlock(npc_comm *comm);

/* ---- mail.c: send and receive. */
int npci_mail_new(npc_comm *comm, npc_error *error);
void npci_mail_free(npc_comm *comm);
void npci_mail_close(npc_comm *comm);
int npci_mail_run(npci_call *call);
int npci_mail_submit(npci_call *call, npc_done_fn done, void *user, npc_request **request);

#endif
