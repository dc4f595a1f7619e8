/* wait.c: time, futexes, bells, and the one way to wait for another rank.
 *
 * A wait goes through three stages. It spins while each rank can have a core to itself. It yields, which hands the core
 * to the rank that is waited for when ranks outnumber cores. Then it sleeps in slices, and looks at the rest of the
 * world after each: has the communicator ended, has this process closed it, is the peer still there, has the deadline
 * passed, does the caller want to stop. */
#include "npci_comm.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int64_t npci_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void npci_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* The futexes are shared between processes, so FUTEX_PRIVATE_FLAG is not used. */
void npci_futex_wait(void *word, uint32_t value, int64_t nanoseconds) {
    struct timespec limit = {.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, nanoseconds < 0 ? NULL : &limit, NULL, 0);
}

void npci_futex_wake(void *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

void *npci_low_half(_Atomic uint64_t *value) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return (char *)value + 4;
#else
    return value;
#endif
}

void npci_clock_start(npci_call *call) {
    if (call->started != 0)
        return;
    call->started = call->polled = npci_now();
    if (__builtin_mul_overflow(call->d.timeout_ms, INT64_C(1000000), &call->deadline) ||
        __builtin_add_overflow(call->started, call->deadline, &call->deadline))
        call->deadline = INT64_MAX;
}

int npci_wait_check(npci_call *call) {
    npc_comm *comm = call->comm;
    int status = npci_ended(comm, call->error);
    if (status != NPC_OK)
        return status;
    if (atomic_load_explicit(&comm->closing, memory_order_relaxed))
        return npci_fail(call->error, NPC_ERR_CLOSED, "the communicator '%s' was closed during the call", comm->name);
    int64_t now = npci_now();
    if (call->may_poll && comm->poll != NULL && now - call->polled >= NPCI_SLICE) {
        call->polled = now;
        if (comm->poll() != 0) {
            char what[512], text[NPC_ERROR_TEXT];
            npci_describe_call(call, what, sizeof what);
            snprintf(text, sizeof text, "rank %d was interrupted in %s", comm->rank, what);
            npci_end(comm, NPC_ERR_PEER_LOST, text, NULL);
            return npci_fail(call->error, NPC_ERR_INTERRUPTED, "%s", text);
        }
    }
    return now >= call->deadline ? NPCI_EXPIRED : NPC_OK;
}

int npci_wait_expired(npci_call *call, const bool *missing) {
    char what[512], ranks[256], text[NPC_ERROR_TEXT];
    npci_describe_call(call, what, sizeof what);
    npci_describe_ranks(missing, call->comm->size, ranks, sizeof ranks);
    snprintf(text, sizeof text, "%s of communicator '%s': rank %d waited %.1f seconds for %s", what, call->comm->name,
             call->comm->rank, (double)(npci_now() - call->started) * 1e-9, ranks);
    return npci_end(call->comm, NPC_ERR_TIMEOUT, text, call->error);
}

int npci_wait_lost(npci_call *call, int peer, int presence) {
    char what[512], text[NPC_ERROR_TEXT];
    npc_comm *comm = call->comm;
    npci_describe_call(call, what, sizeof what);
    if (presence == NPCI_PEER_LEFT)
        snprintf(text, sizeof text, "rank %d has left (it shut npucoll down); rank %d waited for it in %s", peer,
                 comm->rank, what);
    else
        snprintf(text, sizeof text, "rank %d (pid %d) is gone; rank %d waited for it in %s", peer,
                 (int)atomic_load_explicit(&comm->members[peer].pid, memory_order_relaxed), comm->rank, what);
    return npci_end(comm, NPC_ERR_PEER_LOST, text, call->error);
}

/* npci_stage_missing tells which ranks have not reached `target`; stage -1 stands for the cells of meeting `target`. */
static void npci_stage_missing(const npci_call *call, int stage, uint64_t target, bool *missing) {
    const npci_lane *lane = call->lane;
    for (int r = 0; r < call->comm->size; r++) {
        npci_cell *cell = &lane->cells[(target & 1) * (uint64_t)call->comm->size + (uint64_t)r];
        _Atomic uint64_t *value = stage < 0 ? &cell->sequence : &lane->progress[r].stage[stage].value;
        missing[r] = r != call->comm->rank && atomic_load_explicit(value, memory_order_acquire) < target;
    }
}

static inline bool npci_reached(_Atomic uint64_t *value, uint64_t target) {
    return atomic_load_explicit(value, memory_order_acquire) >= target;
}

int npci_wait_slow(npci_call *call, int peer, _Atomic uint64_t *value, _Atomic uint32_t *waiters, uint64_t target,
                   int stage) {
    npc_comm *comm = call->comm;
    for (int i = 0; i < comm->spins; i++) {
        if (npci_reached(value, target))
            return NPC_OK;
        npci_pause();
    }
    for (int i = 0; i < comm->yields; i++) {
        if (npci_reached(value, target))
            return NPC_OK;
        sched_yield();
    }
    npci_clock_start(call);
    for (;;) {
        /* The announcement and the look after it are sequentially consistent: see npci_advance_word. */
        atomic_fetch_add_explicit(waiters, 1, memory_order_seq_cst);
        uint64_t seen = atomic_load_explicit(value, memory_order_seq_cst);
        if (seen < target)
            npci_futex_wait(npci_low_half(value), (uint32_t)seen, NPCI_SLICE);
        atomic_fetch_sub_explicit(waiters, 1, memory_order_relaxed);
        if (npci_reached(value, target))
            return NPC_OK;
        int status = npci_wait_check(call);
        if (status == NPCI_EXPIRED) {
            bool missing[NPCI_MAX_RANKS];
            npci_stage_missing(call, stage, target, missing);
            return npci_wait_expired(call, missing);
        }
        /* A peer may have done its part and then have gone, so its part is looked at once more after its death. */
        if (status != NPC_OK)
            return npci_reached(value, target) ? NPC_OK : status;
        int presence = npci_liveness_of(comm, peer);
        if (presence != NPCI_PEER_HERE)
            return npci_reached(value, target) ? NPC_OK : npci_wait_lost(call, peer, presence);
    }
}

int npci_wait_all(npci_call *call, int stage, uint64_t target) {
    int size = call->comm->size, rank = call->comm->rank;
    for (int i = 1; i < size; i++) {
        int peer = rank + i < size ? rank + i : rank + i - size;
        int status = npci_wait_stage(call, peer, stage, target);
        if (status != NPC_OK)
            return status;
    }
    return NPC_OK;
}

/* Sequentially consistent for the same reason as npci_advance_word. */
void npci_bell_ring(npci_bell *bell) {
    atomic_fetch_add_explicit(&bell->event, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&bell->sleepers, memory_order_seq_cst) != 0)
        npci_futex_wake(&bell->event);
}

uint32_t npci_bell_read(npci_bell *bell) {
    return atomic_load_explicit(&bell->event, memory_order_acquire);
}

void npci_bell_sleep(npci_bell *bell, uint32_t seen, int64_t nanoseconds) {
    atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&bell->event, memory_order_seq_cst) == seen)
        npci_futex_wait(&bell->event, seen, nanoseconds);
    atomic_fetch_sub_explicit(&bell->sleepers, 1, memory_order_relaxed);
}

npci_bell *npci_log_bell(npc_comm *comm, int rank) {
    return (npci_bell *)((char *)comm->area + comm->layout.log_bells) + rank;
}

npci_bell *npci_mail_bell(npc_comm *comm, int rank) {
    return (npci_bell *)((char *)comm->area + comm->layout.mail_bells) + rank;
}
