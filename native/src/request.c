/* request.c: a submitted call and those who wait for it. */
#include "npci_comm.h"

#include <sched.h>

/* npci_copy takes the next bytes of a request's storage. Everything in it is 8-byte aligned. */
static void *npci_copy(unsigned char **at, const void *from, size_t bytes) {
    void *to = *at;
    if (from == NULL || bytes == 0)
        return NULL;
    memcpy(to, from, bytes);
    *at += (bytes + 7) / 8 * 8;
    return to;
}

int npci_request_new(npc_request **out, const npci_call *call, npc_done_fn done, void *user, npc_error *error) {
    const npc_desc *d = &call->d;
    size_t in = (size_t)d->n_in * sizeof *d->in, out_bytes = (size_t)d->n_out * sizeof *d->out;
    size_t splits = d->splits != NULL ? (size_t)call->comm->size * sizeof *d->splits : 0;
    size_t name = d->name != NULL ? strnlen(d->name, NPCI_NAME - 1) : 0;
    npc_request *request = malloc(sizeof *request);
    unsigned char *storage = calloc(1, in + out_bytes + splits + name + 32);
    if (request == NULL || storage == NULL) {
        free(request);
        free(storage);
        return npci_fail(error, NPC_ERR_MEMORY, "no memory for a submitted call");
    }
    atomic_init(&request->complete, 0);
    atomic_init(&request->references, done == NULL ? 2 : 1);
    request->comm = call->comm;
    request->done = done;
    request->user = user;
    request->status = NPC_OK;
    request->next = request->previous = NULL;
    request->entry = 0;
    request->storage = storage;
    request->error.text[0] = '\0';
    request->call = *call;
    request->call.error = &request->error;
    request->call.may_poll = false;
    npc_desc *copy = &request->call.d;
    copy->in = npci_copy(&storage, d->in, in);
    copy->out = npci_copy(&storage, d->out, out_bytes);
    copy->splits = npci_copy(&storage, d->splits, splits);
    copy->name = npci_copy(&storage, d->name, name); /* the storage is zeroed, so it is terminated */
    copy->shape = request->call.shape;
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
        /* Release: who sees it complete sees the results, the status and the text. */
        atomic_store_explicit(&request->complete, 1, memory_order_release);
        npci_futex_wake(&request->complete);
    }
    npci_request_release(request);
}

int npci_request_await(npc_request *request, int64_t timeout_ms, bool poll, npc_error *error) {
    npc_comm *comm = request->comm;
    int64_t deadline = timeout_ms < 0 ? INT64_MAX : 0;
    for (int i = 0; timeout_ms != 0 && i < comm->spins + comm->yields; i++) {
        if (atomic_load_explicit(&request->complete, memory_order_acquire))
            break;
        if (i < comm->spins)
            npci_pause();
        else
            sched_yield();
    }
    if (timeout_ms > 0 && (__builtin_mul_overflow(timeout_ms, INT64_C(1000000), &deadline) ||
                           __builtin_add_overflow(npci_now(), deadline, &deadline)))
        deadline = INT64_MAX;
    while (!atomic_load_explicit(&request->complete, memory_order_acquire)) {
        int64_t left = deadline == INT64_MAX ? NPCI_SLICE : deadline - (timeout_ms == 0 ? 0 : npci_now());
        if (left <= 0)
            return -1;
        npci_futex_wait(&request->complete, 0, left < NPCI_SLICE ? left : NPCI_SLICE);
        if (poll && comm->poll != NULL && !atomic_load_explicit(&request->complete, memory_order_acquire) &&
            comm->poll() != 0)
            return npci_fail(error, NPC_ERR_INTERRUPTED, "the wait was interrupted");
    }
    npci_fail(error, request->status, "%s", request->error.text);
    return request->status;
}

int npc_request_wait(npc_request *request, int64_t timeout_ms, npc_error *error) {
    if (error != NULL)
        error->text[0] = '\0';
    if (atomic_load_explicit(&request->comm->forked, memory_order_relaxed))
        return npci_usable(request->comm, error);
    return npci_request_await(request, timeout_ms, true, error);
}

void npc_request_free(npc_request *request) {
    if (request != NULL)
        npci_request_release(request);
}
