/* scatter.c: block r of the root's data goes to rank r.
 *
 * Only the root knows dtype and shape, so they travel in its aside and are not in the fingerprint. Small data travels
 * with the meeting; data that the root lends (lend.c) is read where it lies; of other large data, round i moves piece i
 * of every block through the root's staging chunks. */
#include "npci_comm.h"

#include <inttypes.h>

static int npci_scatter_large(npci_call *call, const unsigned char *in, unsigned char *out, int64_t block) {
    npc_comm *comm = call->comm;
    int64_t piece = (int64_t)(comm->chunk / (size_t)comm->size) / NPCI_LINE * NPCI_LINE;
    uint64_t base = call->lane->rounds, rounds = (uint64_t)((block + piece - 1) / piece);
    bool is_root = comm->rank == call->d.root;
    int status = NPC_OK;
    call->lane->rounds += rounds;
    for (uint64_t i = 0; i < rounds; i++) {
        uint64_t round = base + i;
        int64_t at = (int64_t)i * piece, bytes = block - at < piece ? block - at : piece;
        unsigned char *staging = npci_staging(call, call->d.root, round);
        if (is_root && round >= NPCI_SLOTS)
            status = npci_wait_all(call, NPCI_DRAINED, round - NPCI_SLOTS + 1);
        else if (!is_root)
            status = npci_wait_stage(call, call->d.root, NPCI_STAGED, round + 1);
        if (status != NPC_OK)
            return status;
        if (!is_root) {
            if (out != NULL)
                memcpy(out + at, staging + comm->rank * piece, (size_t)bytes);
            npci_advance_stage(call, NPCI_DRAINED, round + 1);
            continue;
        }
        npci_stage_begin(call, bytes * (comm->size - 1));
        for (int r = 0; r < comm->size; r++) {
            if (r != comm->rank)
                npci_stage_copy(call, staging + r * piece, in + r * block + at, bytes);
        }
        npci_stage_end(call, bytes * (comm->size - 1));
        npci_advance_stage(call, NPCI_STAGED, round + 1);
    }
    return NPC_OK;
}

static int npci_scatter_lent(npci_call *call, unsigned char *out, int64_t block) {
    const unsigned char *from;
    bool is_root = call->comm->rank == call->d.root;
    int status = npci_lent_input(call, call->d.root, &from);
    if (status != NPC_OK)
        return status;
    if (!is_root && out != NULL)
        memcpy(out, from + call->comm->rank * block, (size_t)block);
    return npci_lend_end(call, is_root);
}

static int npci_scatter_met(npci_call *call) {
    npc_comm *comm = call->comm;
    const npci_aside *aside = npci_met_aside(call, call->d.root);
    int64_t shape[NPC_MAX_DIMS], bytes;
    memcpy(shape, aside->shape, sizeof shape);
    call->d.dtype = aside->dtype;
    call->item = npc_dtype_size(aside->dtype);
    bytes = (int64_t)call->item;
    for (int i = 0; i < aside->ndim; i++)
        bytes *= shape[i];
    if (shape[0] % comm->size != 0)
        return npci_fail(call->error, NPC_ERR_ARGUMENT,
                         "scatter: dimension 0 on root %d is %" PRId64 ", which is not a multiple of the %d ranks",
                         call->d.root, shape[0], comm->size);
    shape[0] /= comm->size;
    int64_t block = bytes / comm->size;
    int failure, status = NPC_OK;
    const unsigned char *in = call->d.n_in > 0 ? call->d.in[0].data : NULL;
    unsigned char *out = npci_output_at(call, aside->ndim, shape, NULL, &failure);
    if (bytes > (int64_t)comm->middle && aside->input != 0)
        status = npci_scatter_lent(call, out, block);
    else if (bytes > (int64_t)comm->middle)
        status = npci_scatter_large(call, in, out, block);
    else if (comm->rank != call->d.root && out != NULL && block > 0)
        memcpy(out, npci_met_data(call, call->d.root, bytes) + comm->rank * block, (size_t)block);
    /* Last, as the output may be the input's memory. */
    if (status == NPC_OK && comm->rank == call->d.root && out != NULL && block > 0)
        memmove(out, in + comm->rank * block, (size_t)block);
    return status != NPC_OK ? status : failure;
}

int npci_scatter(npci_call *call) {
    if (call->comm->rank == call->d.root) {
        npci_aside *aside = npci_meet_aside(call);
        npci_lend(call, aside);
        aside->dtype = call->d.dtype;
        aside->ndim = call->d.ndim;
        memcpy(aside->shape, call->shape, sizeof aside->shape);
        unsigned char *space = npci_meet_space(call, call->bytes, false);
        npci_cursor in = npci_cursor_of(call->d.in, call->d.n_in, call->item);
        if (space != NULL)
            npci_meet_stage(call, &in, space);
    }
    int status = npci_meet(call);
    return status == NPC_OK ? npci_scatter_met(call) : status;
}
