/* queue.c: calls of the numbered lane, one at a time, in the order in which they are made.
 *
 * A blocking call runs in the caller's thread. Submitted calls are queued, and a worker, started when first needed,
 * runs them. `in_call` admits one caller at a time; `pending` counts what is queued or running. A blocking call waits
 * until nothing is pending, and nothing can be queued while it holds `in_call`, so the lane has one user at a time. */
#include "npci_comm.h"

struct npci_queue {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    npc_request *first, *last;
    _Atomic uint32_t pending; /* a futex */
    bool started;
    pthread_t worker;
};

int npci_queue_new(npc_comm *comm, npc_error *error) {
    npci_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL)
        return npci_fail(error, NPC_ERR_MEMORY, "no memory for a communicator");
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->changed, NULL);
    comm->queue = queue;
    return NPC_OK;
}

void npci_queue_free(npc_comm *comm) {
    if (comm->queue == NULL)
        return;
    pthread_mutex_destroy(&comm->queue->mutex);
    pthread_cond_destroy(&comm->queue->changed);
    free(comm->queue);
}

static npc_request *npci_queue_take(npc_comm *comm) {
    npci_queue *queue = comm->queue;
    pthread_mutex_lock(&queue->mutex);
    while (queue->first == NULL && !atomic_load_explicit(&comm->closing, memory_order_relaxed))
        pthread_cond_wait(&queue->changed, &queue->mutex);
    npc_request *request = queue->first;
    if (request != NULL)
        queue->first = request->next;
    pthread_mutex_unlock(&queue->mutex);
    return request;
}

static void *npci_queue_work(void *argument) {
    npc_comm *comm = argument;
    npc_request *request;
    while ((request = npci_queue_take(comm)) != NULL) {
        int status = npci_usable(comm, &request->error);
        if (status == NPC_OK)
            status = npci_run(&request->call);
        npci_request_complete(request, status);
        /* Release: a blocking call that sees zero has the lane as this call left it. */
        if (atomic_fetch_sub_explicit(&comm->queue->pending, 1, memory_order_release) == 1)
            npci_futex_wake(&comm->queue->pending);
    }
    npci_comm_release(comm);
    return NULL;
}

static int npci_queue_enter(npc_comm *comm, npc_error *error) {
    /* Acquire: pairs with npci_queue_leave, so the lane is as the last caller left it. */
    if (atomic_exchange_explicit(&comm->in_call, 1, memory_order_acquire) == 0)
        return NPC_OK;
    return npci_fail(error, NPC_ERR_BUSY,
                     "another thread is making a call without a name on communicator '%s'; such calls come from one "
                     "thread at a time: give them names, or use one communicator for each thread", comm->name);
}

static void npci_queue_leave(npc_comm *comm) {
    atomic_store_explicit(&comm->in_call, 0, memory_order_release);
}

static int npci_queue_drain(npci_call *call) {
    _Atomic uint32_t *pending = &call->comm->queue->pending;
    uint32_t seen;
    while ((seen = atomic_load_explicit(pending, memory_order_acquire)) != 0) {
        npci_clock_start(call);
        npci_futex_wait(pending, seen, NPCI_SLICE);
        int status = npci_wait_check(call);
        /* The deadline is for waiting for other ranks, and the queue's calls have their own. */
        if (status != NPC_OK && status != NPCI_EXPIRED)
            return status;
    }
    call->started = 0;
    return NPC_OK;
}

int npci_queue_run(npci_call *call) {
    npc_comm *comm = call->comm;
    int status = npci_queue_enter(comm, call->error);
    if (status != NPC_OK)
        return status;
    call->lane = &comm->lanes[NPCI_NUMBERED];
    status = npci_queue_drain(call);
    if (status == NPC_OK) {
        call->number = atomic_load_explicit(&comm->calls, memory_order_relaxed);
        atomic_store_explicit(&comm->calls, call->number + 1, memory_order_relaxed);
        status = npci_run(call);
    }
    npci_queue_leave(comm);
    return status;
}

int npci_queue_submit(npci_call *call, npc_done_fn done, void *user, npc_request **out) {
    npc_comm *comm = call->comm;
    npci_queue *queue = comm->queue;
    npc_request *request;
    int status = npci_queue_enter(comm, call->error);
    if (status != NPC_OK)
        return status;
    call->lane = &comm->lanes[NPCI_NUMBERED];
    call->number = atomic_load_explicit(&comm->calls, memory_order_relaxed);
    status = npci_request_new(&request, call, done, user, call->error);
    if (status != NPC_OK)
        goto leave;
    pthread_mutex_lock(&queue->mutex);
    if (atomic_load_explicit(&comm->closing, memory_order_relaxed))
        status = npci_fail(call->error, NPC_ERR_CLOSED, "the communicator '%s' is closed", comm->name);
    if (status == NPC_OK && !queue->started) {
        status = npci_worker_start(comm, &queue->worker, npci_queue_work, call->error);
        queue->started = status == NPC_OK;
    }
    if (status == NPC_OK) {
        if (out != NULL)
            *out = request;
        if (queue->first == NULL)
            queue->first = request;
        else
            queue->last->next = request;
        queue->last = request;
        atomic_fetch_add_explicit(&queue->pending, 1, memory_order_relaxed);
        atomic_store_explicit(&comm->calls, call->number + 1, memory_order_relaxed);
        pthread_cond_signal(&queue->changed);
    }
    pthread_mutex_unlock(&queue->mutex);
    if (status != NPC_OK) {
        atomic_store_explicit(&request->references, 1, memory_order_relaxed);
        npci_request_release(request);
    }
leave:
    npci_queue_leave(comm);
    return status;
}

void npci_queue_close(npc_comm *comm) {
    npci_queue *queue = comm->queue;
    pthread_mutex_lock(&queue->mutex);
    bool started = queue->started;
    queue->started = false;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->mutex);
    npci_futex_wake(&queue->pending);
    if (started)
        npci_worker_join(queue->worker);
}
