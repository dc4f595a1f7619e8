/* broadcast.c: the root's data goes to every rank.
 *
 * Small data travels with the meeting. Large data goes through the root's staging chunks as through a pipe: the root
 * stages round i when all have drained round i - NPCI_SLOTS, the others drain what is staged. The root does not wait
 * for the last rounds to be drained: the next call's meeting does. */
#include "npci_comm.h"

static void npci_broadcast_own(npci_call *call, npci_cursor *in) {
    const npc_desc *d = &call->d;
    if (d->n_out == 0)
        return;
    npci_cursor out = npci_cursor_of(d->out, d->n_out, call->item);
    for (int64_t position = 0, piece; position < call->bytes; position += piece) {
        piece = call->bytes - position;
        const unsigned char *from = npci_cursor_at(in, position, &piece);
        unsigned char *to = npci_cursor_at(&out, position, &piece);
        if (to != from)
            memcpy(to, from, (size_t)piece);
    }
}

static int npci_broadcast_large(npci_call *call, npci_cursor *in, npci_cursor *out) {
    npc_comm *comm = call->comm;
    int64_t chunk = (int64_t)comm->chunk;
    uint64_t base = call->lane->rounds, rounds = (uint64_t)((call->bytes + chunk - 1) / chunk);
    int status = NPC_OK;
    call->lane->rounds += rounds;
    for (uint64_t i = 0; i < rounds && status == NPC_OK; i++) {
        uint64_t round = base + i;
        int64_t at = (int64_t)i * chunk, bytes = call->bytes - at < chunk ? call->bytes - at : chunk;
        unsigned char *staging = npci_staging(call, call->d.root, round);
        if (comm->rank == call->d.root) {
            if (round >= NPCI_SLOTS)
                status = npci_wait_all(call, NPCI_DRAINED, round - NPCI_SLOTS + 1);
            if (status != NPC_OK)
                break;
            npci_cursor_stage(in, at, bytes, staging);
            npci_advance_stage(call, NPCI_STAGED, round + 1);
        } else {
            status = npci_wait_stage(call, call->d.root, NPCI_STAGED, round + 1);
            if (status != NPC_OK)
                break;
            npci_cursor_write(out, at, bytes, staging);
            npci_advance_stage(call, NPCI_DRAINED, round + 1);
        }
    }
    return status;
}

int npci_broadcast(npci_call *call) {
    const npc_desc *d = &call->d;
    bool is_root = d->root == call->comm->rank;
    npci_cursor in = npci_cursor_of(d->in, d->n_in, call->item);
    npci_cursor out = npci_cursor_of(d->out, d->n_out, call->item);
    unsigned char *space = npci_meet_space(call, call->bytes);
    if (space != NULL && is_root)
        npci_cursor_stage(&in, 0, call->bytes, space);
    int status = npci_meet(call);
    if (status != NPC_OK)
        return status;
    if (space == NULL && call->comm->size > 1)
        status = npci_broadcast_large(call, &in, &out);
    else if (!is_root)
        npci_cursor_write(&out, 0, call->bytes, npci_met_data(call, d->root, call->bytes));
    if (status == NPC_OK && is_root)
        npci_broadcast_own(call, &in);
    return status;
}
