/* keyed.c: named calls, which ranks make in any order and from any thread.
 *
 * 1. A submit arrives at the call's entry in the shared table (table.c). The request waits in `waiting`, by entry.
 * 2. The rank that completes an entry puts it into the log and rings every rank's bell.
 * 3. Each rank's worker, started when first needed, runs the log from front to back. Everything in the log has all
 *    ranks present, so no rank waits in it for one that is not there.
 * 4. While calls wait for other ranks to arrive, the worker looks in slices: has a deadline passed, is a rank gone? */
#include "npci_table.h"

#include <inttypes.h>
#include <sched.h>

struct npci_keyed {
    pthread_mutex_t mutex; /* guards all but `next` */
    npc_request *waiting[NPCI_ENTRIES];
    npc_request *first, *last; /* those that wait for other ranks, oldest first, and those in the log */
    bool started, stopped;
    pthread_t worker;
    uint64_t next; /* the worker's place in the log */
};

int npci_keyed_new(npc_comm *comm, npc_error *error) {
    npci_keyed *keyed = calloc(1, sizeof *keyed);
    if (keyed == NULL)
        return npci_fail(error, NPC_ERR_MEMORY, "no memory for a communicator");
    pthread_mutex_init(&keyed->mutex, NULL);
    comm->keyed = keyed;
    return NPC_OK;
}

void npci_keyed_free(npc_comm *comm) {
    if (comm->keyed == NULL)
        return;
    pthread_mutex_destroy(&comm->keyed->mutex);
    free(comm->keyed);
}

static void npci_keyed_enlist(npci_keyed *keyed, npc_request *request) {
    keyed->waiting[request->entry - 1] = request;
    request->next = NULL;
    request->previous = keyed->last;
    if (keyed->last != NULL)
        keyed->last->next = request;
    else
        keyed->first = request;
    keyed->last = request;
}

static void npci_keyed_delist(npci_keyed *keyed, npc_request *request) {
    keyed->waiting[request->entry - 1] = NULL;
    if (request->previous != NULL)
        request->previous->next = request->next;
    else
        keyed->first = request->next;
    if (request->next != NULL)
        request->next->previous = request->previous;
    else
        keyed->last = request->previous;
}

static const npci_note *npci_entry_note(const void *context, int rank) {
    return &((const npci_entry *)context)->arrivals[rank].note;
}

static int npci_keyed_execute(npc_comm *comm, npc_request *request) {
    const npci_entry *entry = npci_entry_of(comm, request->entry);
    int status = npci_usable(comm, &request->error);
    if (status != NPC_OK)
        return status;
    for (int r = 0; r < comm->size; r++) {
        if (entry->arrivals[r].fingerprint != request->call.fingerprint)
            return npci_describe_mismatch(&request->error, comm->size, npci_entry_note, entry);
    }
    request->call.started = 0; /* the deadline of the run is its own */
    return npci_run(&request->call);
}

/* npci_keyed_step runs the next call of the log, if there is one. */
static bool npci_keyed_step(npc_comm *comm) {
    npci_keyed *keyed = comm->keyed;
    npci_table *table = npci_table_of(comm);
    if (atomic_load_explicit(&table->log_end, memory_order_acquire) == keyed->next)
        return false;
    uint32_t index = atomic_load_explicit(&table->log[keyed->next % NPCI_ENTRIES], memory_order_relaxed);
    pthread_mutex_lock(&keyed->mutex);
    npc_request *request = keyed->waiting[index - 1];
    npci_keyed_delist(keyed, request);
    pthread_mutex_unlock(&keyed->mutex);
    keyed->next++;
    int status = npci_keyed_execute(comm, request);
    npci_table_finish(comm, index);
    npci_request_complete(request, status);
    return true;
}

/* npci_keyed_pending lists what each rank waits for, to show where the ranks parted. Under the table's lock. */
static void npci_keyed_pending(npc_comm *comm, char *text, size_t room) {
    npci_table *table = npci_table_of(comm);
    for (int r = 0; r < comm->size; r++) {
        int shown = 0, more = 0;
        for (uint32_t i = 1; i <= table->used; i++) {
            npci_entry *entry = npci_entry_of(comm, i);
            char what[256];
            if (entry->arrived == 0 || entry->arrived == (uint32_t)comm->size || entry->arrivals[r].here == 0)
                continue;
            if (shown == 4) {
                more++;
                continue;
            }
            npci_describe(&entry->arrivals[r].note, what, sizeof what);
            if (shown++ == 0)
                npci_append(text, room, "\n  rank %d waits in %s", r, what);
            else
                npci_append(text, room, ", %s", what);
        }
        if (more > 0)
            npci_append(text, room, " and %d more", more);
        if (shown == 0)
            npci_append(text, room, "\n  rank %d waits in no named call", r);
    }
}

static void npci_keyed_expire(npc_comm *comm, npc_request *request) {
    char what[512], text[NPC_ERROR_TEXT], ranks[256];
    bool missing[NPCI_MAX_RANKS];
    npci_entry *entry = npci_entry_of(comm, request->entry);
    if (npci_table_lock(comm, NULL) != NPC_OK)
        return;
    if (entry->arrived < (uint32_t)comm->size) {
        for (int r = 0; r < comm->size; r++)
            missing[r] = entry->arrivals[r].here == 0;
        npci_describe_ranks(missing, comm->size, ranks, sizeof ranks);
        npci_describe_call(&request->call, what, sizeof what);
        snprintf(text, sizeof text, "%s of communicator '%s': rank %d waited %.1f seconds for %s to make this call", what,
                 comm->name, comm->rank, (double)(npci_now() - request->call.started) * 1e-9, ranks);
        npci_keyed_pending(comm, text, sizeof text);
        npci_table_unlock(comm);
        npci_end(comm, NPC_ERR_TIMEOUT, text, NULL);
        return;
    }
    npci_table_unlock(comm);
}

/* npci_keyed_watch looks after the calls that wait for other ranks. Entries are read without the lock only to find
 * candidates; npci_keyed_expire and the liveness check decide. */
static void npci_keyed_watch(npc_comm *comm) {
    npci_keyed *keyed = comm->keyed;
    npc_request *expired = NULL, *oldest;
    int64_t now = npci_now();
    pthread_mutex_lock(&keyed->mutex);
    oldest = keyed->first;
    for (npc_request *at = keyed->first; at != NULL && expired == NULL; at = at->next)
        expired = now >= at->call.deadline ? at : NULL;
    pthread_mutex_unlock(&keyed->mutex);
    if (expired != NULL)
        npci_keyed_expire(comm, expired);
    for (int r = 0; r < comm->size && oldest != NULL; r++) {
        int presence = npci_liveness_of(comm, r);
        if (presence == NPCI_PEER_HERE)
            continue;
        /* The rank is gone. Any call that it has not arrived at can no longer complete. */
        npci_call lost;
        bool found = false;
        if (npci_table_lock(comm, NULL) != NPC_OK)
            return;
        pthread_mutex_lock(&keyed->mutex);
        for (npc_request *at = keyed->first; at != NULL && !found; at = at->next) {
            found = npci_entry_of(comm, at->entry)->arrivals[r].here == 0;
            if (found) {
                lost = at->call;
                lost.error = NULL;
                npci_wait_lost(&lost, r, presence);
            }
        }
        pthread_mutex_unlock(&keyed->mutex);
        npci_table_unlock(comm);
    }
}

/* npci_keyed_fail completes everything that waits, with the reason for which calls are refused now. */
static void npci_keyed_fail(npc_comm *comm) {
    npci_keyed *keyed = comm->keyed;
    for (;;) {
        pthread_mutex_lock(&keyed->mutex);
        npc_request *request = keyed->first;
        if (request != NULL)
            npci_keyed_delist(keyed, request);
        pthread_mutex_unlock(&keyed->mutex);
        if (request == NULL)
            return;
        npci_request_complete(request, npci_usable(comm, &request->error));
    }
}

static bool npci_keyed_idle(npci_keyed *keyed) {
    pthread_mutex_lock(&keyed->mutex);
    bool idle = keyed->first == NULL;
    pthread_mutex_unlock(&keyed->mutex);
    return idle;
}

static void *npci_keyed_work(void *argument) {
    npc_comm *comm = argument;
    npci_bell *bell = npci_log_bell(comm, comm->rank);
    int64_t watched = npci_now();
    int idle_yields = 0;
    while (!atomic_load_explicit(&comm->closing, memory_order_acquire)) {
        uint32_t seen = npci_bell_read(bell);
        if (npci_ended(comm, NULL) != NPC_OK) {
            npci_keyed_fail(comm);
            npci_bell_sleep(bell, seen, NPCI_SLICE * 20);
            continue;
        }
        if (npci_keyed_step(comm)) {
            idle_yields = 0;
            continue;
        }
        bool idle = npci_keyed_idle(comm->keyed);
        if (!idle && npci_now() - watched >= NPCI_SLICE) {
            npci_keyed_watch(comm);
            watched = npci_now();
            continue;
        }
        if (!idle && idle_yields < comm->yields) {
            idle_yields++;
            sched_yield();
            continue;
        }
        npci_bell_sleep(bell, seen, idle ? -1 : NPCI_SLICE);
        idle_yields = 0;
    }
    npci_keyed_fail(comm);
    npci_comm_release(comm);
    return NULL;
}

static int npci_keyed_enter(npci_call *call, npc_request *request) {
    npc_comm *comm = call->comm;
    npci_keyed *keyed = comm->keyed;
    int status = npci_table_lock(comm, call->error);
    if (status != NPC_OK)
        return status;
    pthread_mutex_lock(&keyed->mutex);
    bool complete = false;
    if (keyed->stopped || atomic_load_explicit(&comm->closing, memory_order_relaxed))
        status = npci_fail(call->error, NPC_ERR_CLOSED, "the communicator '%s' is closed", comm->name);
    if (status == NPC_OK && !keyed->started) {
        status = npci_worker_start(comm, &keyed->worker, npci_keyed_work, call->error);
        keyed->started = status == NPC_OK;
    }
    if (status == NPC_OK) {
        request->entry = npci_table_arrive(comm, call);
        if (request->entry == 0)
            status = npci_fail(call->error, NPC_ERR_LIMIT,
                               "more than %d named calls of communicator '%s' are under way at once", NPCI_ENTRIES,
                               comm->name);
    }
    if (status == NPC_OK) {
        npci_keyed_enlist(keyed, request);
        complete = npci_table_complete(comm, request->entry);
    }
    pthread_mutex_unlock(&keyed->mutex);
    npci_table_unlock(comm);
    for (int r = 0; complete && r < comm->size; r++)
        npci_bell_ring(npci_log_bell(comm, r));
    /* The worker sleeps without limit while nothing waits; now something does. */
    if (status == NPC_OK && !complete)
        npci_bell_ring(npci_log_bell(comm, comm->rank));
    return status;
}

int npci_keyed_submit(npci_call *call, npc_done_fn done, void *user, npc_request **out) {
    npc_request *request;
    call->lane = &call->comm->lanes[NPCI_KEYED];
    npci_clock_start(call);
    int status = npci_request_new(&request, call, done, user, call->error);
    if (status != NPC_OK)
        return status;
    if (out != NULL)
        *out = request;
    status = npci_keyed_enter(call, request);
    if (status != NPC_OK) {
        if (out != NULL)
            *out = NULL;
        atomic_store_explicit(&request->references, 1, memory_order_relaxed);
        npci_request_release(request);
    }
    return status;
}

void npci_keyed_close(npc_comm *comm) {
    npci_keyed *keyed = comm->keyed;
    pthread_mutex_lock(&keyed->mutex);
    bool started = keyed->started && !keyed->stopped;
    keyed->stopped = true;
    pthread_mutex_unlock(&keyed->mutex);
    npci_bell_ring(npci_log_bell(comm, comm->rank));
    if (started)
        npci_worker_join(keyed->worker);
}
