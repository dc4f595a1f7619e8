/* output.c: outputs whose size is known only once the ranks have met. */
#include "npci_comm.h"

#include <inttypes.h>

static int npci_shape_count(int ndim, const int64_t *shape, size_t item, int64_t *count) {
    int64_t bytes;
    *count = 1;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 0) {
            *count = 0;
            return 0;
        }
    }
    for (int i = 0; i < ndim; i++) {
        if (__builtin_mul_overflow(*count, shape[i], count))
            return -1;
    }
    return __builtin_mul_overflow(*count, (int64_t)item, &bytes) ? -1 : 0;
}

unsigned char *npci_output_at(npci_call *call, int ndim, const int64_t *shape, const int64_t *counts, int *failure) {
    const npc_desc *d = &call->d;
    const char *name = npc_kind_name(d->kind);
    int64_t count;
    *failure = NPC_OK;
    if (npci_shape_count(ndim, shape, call->item, &count) != 0) {
        *failure = npci_fail(call->error, NPC_ERR_ARGUMENT, "%s: the result is too large", name);
        return NULL;
    }
    if (d->n_out == 1) {
        if (d->out[0].count == count)
            return d->out[0].data;
        *failure = npci_fail(call->error, NPC_ERR_ARGUMENT,
                             "%s: the output holds %" PRId64 " elements, but the result has %" PRId64, name,
                             d->out[0].count, count);
        return NULL;
    }
    if (d->alloc == NULL) {
        *failure = npci_fail(call->error, NPC_ERR_ARGUMENT, "%s: there is no output and nothing that makes one", name);
        return NULL;
    }
    unsigned char *memory = d->alloc(d->alloc_user, d->dtype, ndim, shape, counts);
    if (memory == NULL)
        *failure = npci_fail(call->error, NPC_ERR_MEMORY, "%s: no memory for the result of %" PRId64 " elements", name,
                             count);
    return memory;
}
