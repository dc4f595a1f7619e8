/* broadcast.c: the root's data goes to every rank.
 *
 * Small data travels with the meeting. If the root lends its data (lend.c), all copy it from there. Other large data
 * goes through the root's staging chunks as through a pipe: the root stages round i when all have drained round
 * i - NPCI_SLOTS, the others drain what is staged. The root does not wait for the last rounds to be drained: the next
 * call's meeting does. */
#include "npci_comm.h"

/* npci_broadcast_own copies the root's data to its own output. */
static void npci_broadcast_own(npci_cursor *in, npci_cursor *out, int64_t at, int64_t bytes, bool stream) {
    for (int64_t position = at, piece; position < at + bytes; position += piece) {
        piece = at + bytes - position;
        const unsigned char *from = npci_cursor_at(in, position, &piece);
        if (npci_cursor_at(out, position, &piece) != from)
            npci_cursor_write(out, position, piece, from, stream);
    }
}

static int npci_broadcast_large(npci_call *call, npci_cursor *in, npci_cursor *out) {
    npc_comm *comm = call->comm;
    int64_t chunk = (int64_t)comm->chunk;
    uint64_t base = call->lane->rounds, rounds = (uint64_t)((call->bytes + chunk - 1) / chunk);
    bool stream = call->bytes >= comm->stream;
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
            npci_stage_begin(call, bytes);
            npci_cursor_stage(in, call, at, bytes, staging);
            npci_stage_end(call, bytes);
            npci_advance_stage(call, NPCI_STAGED, round + 1);
            /* While it is in a cache. */
            if (call->d.n_out > 0)
                npci_broadcast_own(in, out, at, bytes, stream);
        } else {
            status = npci_wait_stage(call, call->d.root, NPCI_STAGED, round + 1);
            if (status != NPC_OK)
                break;
            npci_cursor_write(out, at, bytes, staging, stream);
            npci_advance_stage(call, NPCI_DRAINED, round + 1);
        }
    }
    if (stream)
        npci_stream_fence();
    return status;
}

static int npci_broadcast_lent(npci_call *call, npci_cursor *in, npci_cursor *out) {
    bool is_root = call->comm->rank == call->d.root, stream = call->bytes >= call->comm->stream;
    const unsigned char *from;
    int status = npci_lent_input(call, call->d.root, &from);
    if (status != NPC_OK)
        return status;
    if (is_root && call->d.n_out > 0)
        npci_broadcast_own(in, out, 0, call->bytes, stream);
    else if (!is_root)
        npci_cursor_write(out, 0, call->bytes, from, stream);
    if (stream)
        npci_stream_fence();
    return npci_lend_end(call, is_root);
}

int npci_broadcast(npci_call *call) {
    const npc_desc *d = &call->d;
    bool is_root = d->root == call->comm->rank;
    npci_cursor in = npci_cursor_of(d->in, d->n_in, call->item);
    npci_cursor out = npci_cursor_of(d->out, d->n_out, call->item);
    unsigned char *space = npci_meet_space(call, call->bytes, false);
    if (space != NULL && is_root)
        npci_meet_stage(call, &in, space);
    else if (space == NULL)
        npci_lend(call, npci_meet_aside(call));
    int status = npci_meet(call);
    if (status != NPC_OK)
        return status;
    if (space != NULL) {
        if (!is_root)
            npci_cursor_write(&out, 0, call->bytes, npci_met_data(call, d->root, call->bytes), false);
        else if (d->n_out > 0)
            npci_broadcast_own(&in, &out, 0, call->bytes, false);
        return NPC_OK;
    }
    if (npci_met_aside(call, d->root)->input != 0)
        return npci_broadcast_lent(call, &in, &out);
    return npci_broadcast_large(call, &in, &out);
}
