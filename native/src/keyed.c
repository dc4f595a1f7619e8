/* keyed.c: named calls, which ranks make in any order and from any thread.
 *
 * 1. A call arrives at its entry in the shared table (table.c). Its request waits in `waiting`, by entry.
 * 2. The rank that completes an entry puts it into the log and rings every rank's bell.
 * 3. In each process one thread at a time runs the log from front to back: the runner. A thread that makes a blocking
 *    call becomes the runner if there is none, until its call is complete, so nothing is handed between threads. Else
 *    the worker is it, started when first needed. Everything in the log has all ranks present, so no rank waits in it
 *    for one that is not there.
 * 4. While calls wait for other ranks to arrive, the runner looks in slices: has a deadline passed, is a rank gone?
 * 5. The runner sleeps on the rank's bell while something waits. The worker sleeps on `handover` while nothing waits or
 *    another thread is the runner. */
#include "npci_keyed.h"

#include <sched.h>

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

/* npci_keyed_step runs the next call of the log, if there is one. `own` is the call that this thread makes, if any. */
static bool npci_keyed_step(npc_comm *comm, const npc_request *own) {
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
    request->call.may_poll = request == own; /* the thread is the caller's */
    int status = npci_keyed_execute(comm, request);
    npci_table_finish(comm, index);
    npci_request_complete(request, status);
    return true;
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

static void npci_keyed_hand_over(npci_keyed *keyed) {
    atomic_fetch_add_explicit(&keyed->handover, 1, memory_order_release);
    npci_futex_wake(&keyed->handover);
}

/* npci_keyed_lead makes this thread the runner if there is none and something waits. */
static bool npci_keyed_lead(npci_keyed *keyed) {
    pthread_mutex_lock(&keyed->mutex);
    bool lead = !keyed->running && keyed->first != NULL;
    keyed->running = keyed->running || lead;
    pthread_mutex_unlock(&keyed->mutex);
    return lead;
}

/* npci_keyed_yield ends this thread's time as the runner; the worker goes on where something waits. */
static void npci_keyed_yield(npci_keyed *keyed) {
    pthread_mutex_lock(&keyed->mutex);
    keyed->running = false;
    bool left = keyed->first != NULL;
    pthread_mutex_unlock(&keyed->mutex);
    if (left)
        npci_keyed_hand_over(keyed);
}

static bool npci_keyed_empty(npci_keyed *keyed) {
    pthread_mutex_lock(&keyed->mutex);
    bool empty = keyed->first == NULL;
    pthread_mutex_unlock(&keyed->mutex);
    return empty;
}

/* npci_keyed_interrupted asks the poll function of a thread that waits for its own call. */
static bool npci_keyed_interrupted(npc_request *own) {
    npc_comm *comm = own->comm;
    char what[512], text[NPC_ERROR_TEXT];
    if (comm->poll == NULL || comm->poll() == 0)
        return false;
    npci_describe_call(&own->call, what, sizeof what);
    snprintf(text, sizeof text, "rank %d was interrupted in %s", comm->rank, what);
    npci_end(comm, NPC_ERR_PEER_LOST, text, NULL);
    return true;
}

/* npci_keyed_lead_until runs the log until `own` is complete, or, without one, until nothing waits. Returns whether the
 * poll function interrupted it. */
static bool npci_keyed_lead_until(npc_comm *comm, npc_request *own) {
    npci_keyed *keyed = comm->keyed;
    npci_bell *bell = npci_log_bell(comm, comm->rank);
    int spins = own != NULL ? comm->spins : 0, looks = 0;
    int64_t watched = 0;
    bool interrupted = false;
    while (own != NULL ? !atomic_load_explicit(&own->complete, memory_order_acquire) : !npci_keyed_empty(keyed)) {
        uint32_t seen = npci_bell_read(bell);
        if (npci_usable(comm, NULL) != NPC_OK) {
            npci_keyed_fail(comm);
            continue;
        }
        if (npci_keyed_step(comm, own)) {
            looks = 0;
            continue;
        }
        if (looks < spins + comm->yields) {
            if (looks++ < spins)
                npci_pause();
            else
                sched_yield();
            continue;
        }
        int64_t now = npci_now();
        watched = watched == 0 ? now : watched;
        if (now - watched >= NPCI_SLICE) {
            watched = now;
            npci_keyed_watch(comm);
            interrupted = interrupted || (own != NULL && npci_keyed_interrupted(own));
            continue;
        }
        npci_bell_sleep(bell, seen, NPCI_SLICE);
    }
    return interrupted || (own != NULL && own->status == NPC_ERR_INTERRUPTED);
}

static void *npci_keyed_work(void *argument) {
    npc_comm *comm = argument;
    npci_keyed *keyed = comm->keyed;
    while (!atomic_load_explicit(&comm->closing, memory_order_acquire)) {
        uint32_t seen = atomic_load_explicit(&keyed->handover, memory_order_acquire);
        if (npci_keyed_lead(keyed)) {
            npci_keyed_lead_until(comm, NULL);
            npci_keyed_yield(keyed);
        } else if (!atomic_load_explicit(&comm->closing, memory_order_acquire)) {
            npci_futex_wait(&keyed->handover, seen, -1);
        }
    }
    npci_comm_release(comm);
    return NULL;
}

/* npci_keyed_enter_locked arrives, with the mutex and the table's lock held. `*leads` tells whether this thread, which
 * makes a blocking call, is the runner now. */
static int npci_keyed_enter_locked(npci_call *call, npc_request *request, bool *complete, bool *leads) {
    npc_comm *comm = call->comm;
    npci_keyed *keyed = comm->keyed;
    if (keyed->stopped || atomic_load_explicit(&comm->closing, memory_order_relaxed))
        return npci_fail(call->error, NPC_ERR_CLOSED, "the communicator '%s' is closed", comm->name);
    bool lead = leads != NULL && !keyed->running;
    if (!lead && !keyed->started) {
        int status = npci_worker_start(comm, &keyed->worker, npci_keyed_work, call->error);
        if (status != NPC_OK)
            return status;
        keyed->started = true;
    }
    request->entry = npci_table_arrive(comm, call);
    if (request->entry == 0)
        return npci_fail(call->error, NPC_ERR_LIMIT,
                         "more than %d named calls of communicator '%s' are under way at once", NPCI_ENTRIES,
                         comm->name);
    npci_keyed_enlist(keyed, request);
    *complete = npci_table_complete(comm, request->entry);
    if (lead)
        *leads = keyed->running = true;
    return NPC_OK;
}

static int npci_keyed_enter(npci_call *call, npc_request *request, bool *leads) {
    npc_comm *comm = call->comm;
    npci_keyed *keyed = comm->keyed;
    bool complete = false;
    int status = npci_table_lock(comm, call->error);
    if (status != NPC_OK)
        return status;
    pthread_mutex_lock(&keyed->mutex);
    status = npci_keyed_enter_locked(call, request, &complete, leads);
    bool running = keyed->running;
    pthread_mutex_unlock(&keyed->mutex);
    npci_table_unlock(comm);
    for (int r = 0; complete && r < comm->size; r++)
        npci_bell_ring(npci_log_bell(comm, r));
    if (status == NPC_OK && !running)
        npci_keyed_hand_over(keyed);
    return status;
}

/* npci_keyed_start makes the request and arrives. */
static int npci_keyed_start(npci_call *call, npc_done_fn done, void *user, npc_request **out, bool *leads) {
    npc_request *request;
    call->lane = &call->comm->lanes[NPCI_KEYED];
    npci_clock_start(call);
    int status = npci_request_new(&request, call, done, user, call->error);
    if (status != NPC_OK)
        return status;
    if (out != NULL)
        *out = request;
    status = npci_keyed_enter(call, request, leads);
    if (status != NPC_OK) {
        if (out != NULL)
            *out = NULL;
        atomic_store_explicit(&request->references, 1, memory_order_relaxed);
        npci_request_release(request);
    }
    return status;
}

int npci_keyed_submit(npci_call *call, npc_done_fn done, void *user, npc_request **out) {
    return npci_keyed_start(call, done, user, out, NULL);
}

int npci_keyed_run(npci_call *call) {
    npc_comm *comm = call->comm;
    npc_request *request = NULL;
    bool leads = false, interrupted = false;
    int status = npci_keyed_start(call, NULL, NULL, &request, &leads);
    if (status != NPC_OK)
        return status;
    if (leads) {
        interrupted = npci_keyed_lead_until(comm, request);
        npci_keyed_yield(comm->keyed);
    } else {
        while (npci_request_await(request, -1, true, NULL) == NPCI_POLL)
            interrupted = npci_keyed_interrupted(request) || interrupted;
    }
    status = interrupted ? NPC_ERR_INTERRUPTED : request->status;
    npci_fail(call->error, status, "%s", request->error.text);
    npci_request_release(request);
    return status;
}

void npci_keyed_close(npc_comm *comm) {
    npci_keyed *keyed = comm->keyed;
    pthread_mutex_lock(&keyed->mutex);
    bool started = keyed->started && !keyed->stopped;
    keyed->stopped = true;
    pthread_mutex_unlock(&keyed->mutex);
    npci_keyed_hand_over(keyed);
    npci_bell_ring(npci_log_bell(comm, comm->rank));
    if (started)
        npci_worker_join(keyed->worker);
    /* What the worker was not the runner of any more; a caller that is the runner completes the rest itself. */
    if (npci_keyed_lead(keyed)) {
        npci_keyed_fail(comm);
        npci_keyed_yield(keyed);
    }
}
