/* request.c: a submitted call and those who wait for it. */
#include "npci_comm.h"

#include <sched.h>

/* npci_copy takes the next bytes of a kept call's storage. Everything in it is 8-byte aligned. */
static void *npci_copy(unsigned char **at, const void *from, size_t bytes) {
    void *to = *at;
    if (from == NULL || bytes == 0)
        return NULL;
    memcpy(to, from, bytes);
    *at += (bytes + 7) / 8 * 8;
    return to;
}

int npci_call_keep(npci_call *kept, const npci_call *call, void **storage, npc_error *error) {
    const npc_desc *d = &call->d;
    size_t in = (size_t)d->n_in * sizeof *d->in, out = (size_t)d->n_out * sizeof *d->out;
    size_t splits = d->splits != NULL ? (size_t)call->comm->size * sizeof *d->splits : 0;
    size_t name = d->name != NULL ? strnlen(d->name, NPCI_NAME - 1) : 0;
    unsigned char *at = calloc(1, in + out + splits + name + 32);
    if (at == NULL)
        return npci_fail(error, NPC_ERR_MEMORY, "no memory for a prepared call");
    *storage = at;
    *kept = *call;
    kept->d.in = npci_copy(&at, d->in, in);
    kept->d.out = npci_copy(&at, d->out, out);
    kept->d.splits = npci_copy(&at, d->splits, splits);
    kept->d.name = npci_copy(&at, d->name, name); /* the storage is zeroed, so it is terminated */
    kept->d.shape = kept->shape;
    return NPC_OK;
}

int npci_request_new(npc_request **out, const npci_call *call, npc_done_fn done, void *user, npc_error *error) {
    npc_request *request = malloc(sizeof *request);
    if (request == NULL)
        return npci_fail(error, NPC_ERR_MEMORY, "no memory for a submitted call");
    int status = npci_call_keep(&request->call, call, &request->storage, error);
    if (status != NPC_OK) {
        free(request);
        return status;
    }
    atomic_init(&request->complete, 0);
    atomic_init(&request->waiters, 0);
    atomic_init(&request->references, done == NULL ? 2 : 1);
    request->comm = call->comm;
    request->done = done;
    request->user = user;
    request->status = NPC_OK;
    request->next = request->previous = NULL;
    request->entry = 0;
    request->error.text[0] = '\0';
    request->call.error = &request->error;
    request->call.may_poll = false;
    npci_comm_retain(call->comm);
    *out = request;
    return NPC_OK;
}

void npci_request_release(npc_request *request) {
    if (atomic_fetch_sub_explicit(&request->references, 1, memory_order_acq_rel) != 1)
        return;
    npci_comm_release(request->comm);
    free(request->storage);
    free(request);
}

void npci_request_complete(npc_request *request, int status) {
    request->status = status;
    if (status == NPC_OK)
        request->error.text[0] = '\0';
    if (request->done != NULL) {
        request->done(request->user, status, request->error.text);
    } else {
        /* Who sees it complete sees the results, the status and the text. Sequentially consistent, so that a waiter
         * either announces itself in time or sees it complete: see npci_advance_word. */
        atomic_store_explicit(&request->complete, 1, memory_order_seq_cst);
        if (atomic_load_explicit(&request->waiters, memory_order_seq_cst) != 0)
            npci_futex_wake(&request->complete);
    }
    npci_request_release(request);
}

static bool npci_request_done(npc_request *request) {
    return atomic_load_explicit(&request->complete, memory_order_acquire) != 0;
}

int npci_request_await(npc_request *request, int64_t timeout_ms, bool polls, npc_error *error) {
    int64_t deadline = INT64_MAX;
    /* Another thread of this process works for the call, so there is no spinning, which could take its core. */
    for (int i = 0; timeout_ms != 0 && i < request->comm->yields && !npci_request_done(request); i++)
        sched_yield();
    if (timeout_ms >= 0 && (__builtin_mul_overflow(timeout_ms, INT64_C(1000000), &deadline) ||
                            __builtin_add_overflow(npci_now(), deadline, &deadline)))
        deadline = INT64_MAX;
    int64_t polled = npci_now();
    while (!npci_request_done(request)) {
        int64_t now = npci_now(), left = deadline - now < NPCI_SLICE ? deadline - now : NPCI_SLICE;
        if (timeout_ms >= 0 && left <= 0)
            return -1;
        if (polls && now - polled >= NPCI_SLICE)
            return NPCI_POLL;
        atomic_fetch_add_explicit(&request->waiters, 1, memory_order_seq_cst);
        if (atomic_load_explicit(&request->complete, memory_order_seq_cst) == 0)
            npci_futex_wait(&request->complete, 0, left);
        atomic_fetch_sub_explicit(&request->waiters, 1, memory_order_relaxed);
    }
    npci_fail(error, request->status, "%s", request->error.text);
    return request->status;
}

int npc_request_wait(npc_request *request, int64_t timeout_ms, npc_error *error) {
    npc_comm *comm = request->comm;
    if (error != NULL)
        error->text[0] = '\0';
    if (atomic_load_explicit(&comm->forked, memory_order_relaxed))
        return npci_usable(comm, error);
    for (int64_t start = npci_now();;) {
        int64_t left = timeout_ms < 0 ? timeout_ms : timeout_ms - (npci_now() - start) / 1000000;
        int status = npci_request_await(request, left < 0 && timeout_ms >= 0 ? 0 : left, comm->poll != NULL, error);
        if (status != NPCI_POLL)
            return status;
        if (comm->poll() != 0)
            return npci_fail(error, NPC_ERR_INTERRUPTED, "the wait was interrupted");
    }
}

void npc_request_free(npc_request *request) {
    if (request != NULL)
        npci_request_release(request);
}
