/* prepare.c: from a descriptor to a call, with every check that one rank can make alone. Nothing is sent here. */
#include "npci_comm.h"

#include <inttypes.h>

static int npci_check_buffers(const npci_call *call, const char *what, const npc_buf *buffers, int count,
                              int64_t expected, npc_error *error) {
    if (count < 0 || (count > 0 && buffers == NULL))
        return npci_fail(error, NPC_ERR_ARGUMENT, "%s: the %s buffers are missing", npc_kind_name(call->d.kind), what);
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        if (buffers[i].count < 0 || (buffers[i].data == NULL && buffers[i].count > 0))
            return npci_fail(error, NPC_ERR_ARGUMENT, "%s: %s buffer %d has no memory or a negative count",
                             npc_kind_name(call->d.kind), what, i);
        if (__builtin_add_overflow(total, buffers[i].count, &total))
            return npci_fail(error, NPC_ERR_ARGUMENT, "%s: the %s buffers are too large", npc_kind_name(call->d.kind),
                             what);
    }
    if (expected >= 0 && total != expected)
        return npci_fail(error, NPC_ERR_ARGUMENT,
                         "%s: the %s holds %" PRId64 " elements where %" PRId64 " are expected",
                         npc_kind_name(call->d.kind), what, total, expected);
    return NPC_OK;
}

static int npci_check_shape(npci_call *call, npc_error *error) {
    npc_desc *d = &call->d;
    if (d->ndim < 0 || d->ndim > NPC_MAX_DIMS)
        return npci_fail(error, NPC_ERR_ARGUMENT, "%s: %d dimensions; at most %d are supported",
                         npc_kind_name(d->kind), d->ndim, NPC_MAX_DIMS);
    if (d->ndim > 0 && d->shape == NULL)
        return npci_fail(error, NPC_ERR_ARGUMENT, "%s: the shape is missing", npc_kind_name(d->kind));
    call->count = 1;
    bool empty = false;
    for (int i = 0; i < d->ndim; i++) {
        call->shape[i] = d->shape[i];
        if (d->shape[i] < 0)
            return npci_fail(error, NPC_ERR_ARGUMENT, "%s: dimension %d is negative", npc_kind_name(d->kind), i);
        empty = empty || d->shape[i] == 0;
        if (!empty && __builtin_mul_overflow(call->count, d->shape[i], &call->count))
            return npci_fail(error, NPC_ERR_ARGUMENT, "%s: the shape holds too many elements", npc_kind_name(d->kind));
    }
    if (empty)
        call->count = 0;
    if (__builtin_mul_overflow(call->count, (int64_t)call->item, &call->bytes))
        return npci_fail(error, NPC_ERR_ARGUMENT, "%s: the shape holds too many elements", npc_kind_name(d->kind));
    d->shape = call->shape;
    return NPC_OK;
}

static int npci_check_splits(const npci_call *call, npc_error *error) {
    const npc_desc *d = &call->d;
    if (d->splits == NULL)
        return NPC_OK;
    int64_t total = 0;
    for (int r = 0; r < call->comm->size; r++) {
        if (d->splits[r] < 0 || __builtin_add_overflow(total, d->splits[r], &total))
            return npci_fail(error, NPC_ERR_ARGUMENT, "alltoall: split %d is negative or too large", r);
    }
    if (total != call->shape[0])
        return npci_fail(error, NPC_ERR_ARGUMENT,
                         "alltoall: the splits add up to %" PRId64 ", but the input has %" PRId64 " rows", total,
                         call->shape[0]);
    return NPC_OK;
}

/* npci_check_kind checks what each kind of call demands of its buffers. */
static int npci_check_kind(npci_call *call, npc_error *error) {
    const npc_desc *d = &call->d;
    bool is_root = d->root == call->comm->rank;
    const char *name = npc_kind_name(d->kind);
    int64_t in = call->count, out = call->count; /* elements expected; -1: not known yet */
    bool rows = false, one = true;
    switch ((npc_kind)d->kind) {
    case NPC_BARRIER: return NPC_OK;
    case NPC_ALLREDUCE:
        one = false;
        out = d->shared != NULL ? -1 : out;
        break;
    case NPC_REDUCE:
        one = false;
        out = is_root ? out : -1;
        break;
    case NPC_BROADCAST:
        one = false;
        in = is_root ? in : -1;
        out = is_root && d->n_out == 0 ? -1 : out;
        break;
    case NPC_ALLGATHER:
    case NPC_GATHER:
    case NPC_REDUCE_SCATTER:
    case NPC_ALLTOALL:
        rows = true;
        out = -1;
        break;
    case NPC_SCATTER:
        rows = is_root;
        in = is_root ? in : -1;
        out = -1;
        break;
    case NPC_SEND: out = -1; break;
    case NPC_RECV: in = out = -1; break;
    }
    if (rows && d->ndim < 1)
        return npci_fail(error, NPC_ERR_ARGUMENT, "%s needs at least one dimension; a scalar has none", name);
    if (one && (d->n_in > 1 || d->n_out > 1))
        return npci_fail(error, NPC_ERR_ARGUMENT, "%s takes one buffer of each; several are for allreduce, broadcast "
                         "and reduce", name);
    int status = npci_check_buffers(call, "input", d->in, d->n_in, in, error);
    if (status == NPC_OK)
        status = npci_check_buffers(call, "output", d->out, d->n_out, out, error);
    if (status == NPC_OK && d->kind == NPC_ALLTOALL)
        status = npci_check_splits(call, error);
    return status;
}

int npci_prepare(npci_call *call, npc_comm *comm, const npc_desc *desc, npc_error *error) {
    memset(call, 0, sizeof *call);
    call->comm = comm;
    call->error = error;
    if (desc == NULL || desc->size < offsetof(npc_desc, ndim))
        return npci_fail(error, NPC_ERR_ARGUMENT, "the descriptor is missing or its size is not set");
    npc_desc *d = &call->d;
    memcpy(d, desc, desc->size < sizeof *d ? desc->size : sizeof *d);
    if (d->kind < NPC_BARRIER || d->kind > NPC_RECV)
        return npci_fail(error, NPC_ERR_ARGUMENT, "%d is not the number of a kind of call", d->kind);
    if (d->prescale == 0.0)
        d->prescale = 1.0;
    if (d->postscale == 0.0)
        d->postscale = 1.0;
    if (d->timeout_ms <= 0)
        d->timeout_ms = comm->timeout_ms;
    if (d->kind == NPC_BARRIER) {
        d->dtype = d->ndim = d->n_in = d->n_out = 0;
        d->prescale = d->postscale = 1.0;
    }
    bool untyped = d->kind == NPC_BARRIER || (d->kind == NPC_SCATTER && d->root != comm->rank) ||
                   (d->kind == NPC_RECV && d->dtype == 0);
    if (untyped) {
        d->dtype = d->ndim = 0;
        d->shape = NULL;
    }
    call->item = npc_dtype_size(d->dtype);
    if (call->item == 0 && !untyped)
        return npci_fail(error, NPC_ERR_ARGUMENT, "%s: %d is not the number of a dtype", npc_kind_name(d->kind),
                         d->dtype);
    if (d->root < 0 || d->root >= comm->size)
        return npci_fail(error, NPC_ERR_ARGUMENT, "%s: there is no rank %d; ranks are 0 to %d", npc_kind_name(d->kind),
                         d->root, comm->size - 1);
    if (d->shared != NULL && (d->kind != NPC_ALLREDUCE || d->n_out != 0))
        return npci_fail(error, NPC_ERR_ARGUMENT, "%s: a shared result is for allreduce, without an output",
                         npc_kind_name(d->kind));
    int status = npci_check_shape(call, error);
    if (status != NPC_OK)
        return status;
    if (d->kind == NPC_ALLREDUCE || d->kind == NPC_REDUCE || d->kind == NPC_REDUCE_SCATTER) {
        status = npc_reduce_check(d->dtype, d->op, d->prescale != 1.0 || d->postscale != 1.0, error);
        if (status != NPC_OK)
            return status;
    } else {
        d->op = 0;
        d->prescale = d->postscale = 1.0;
    }
    status = npci_check_kind(call, error);
    if (status != NPC_OK)
        return status;
    call->fingerprint = npci_fingerprint(call);
    return NPC_OK;
}
