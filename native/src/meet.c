/* meet.c: one synchronisation of all ranks in a lane, with a comparison of fingerprints and room for a little data.
 *
 * 1. Meeting n uses cell n mod 2 of each rank. A rank writes its fingerprint and data there, then stores n with
 *    release, then waits for n in everybody's cell.
 * 2. Nobody can write cell n + 2 before everybody has written n + 1, and nobody writes n + 1 before it has read all it
 *    wants of n: two cells are enough. The middle buffers and asides are doubled for the same reason.
 * 3. All ranks see the same fingerprints. If they differ, each rank writes a note of its call, they meet once more, and
 *    every rank writes the same text from the notes. */
#include "npci_comm.h"

static npci_cell *npci_cell_of(const npci_call *call, uint64_t sequence, int rank) {
    return &call->lane->cells[(sequence & 1) * (uint64_t)call->comm->size + (uint64_t)rank];
}

static unsigned char *npci_middle_of(const npci_call *call, uint64_t sequence, int rank) {
    uint64_t index = (sequence & 1) * (uint64_t)call->comm->size + (uint64_t)rank;
    return call->lane->middle + index * call->comm->middle;
}

static npci_aside *npci_aside_of(const npci_call *call, uint64_t sequence, int rank) {
    uint64_t index = (sequence & 1) * (uint64_t)call->comm->size + (uint64_t)rank;
    return (npci_aside *)(void *)(call->lane->asides + index * call->comm->layout.aside_bytes);
}

unsigned char *npci_meet_space(npci_call *call, int64_t bytes) {
    uint64_t sequence = call->lane->sequence + 1;
    if (bytes <= NPCI_PAYLOAD)
        return npci_cell_of(call, sequence, call->comm->rank)->payload;
    if (bytes <= (int64_t)call->comm->middle)
        return npci_middle_of(call, sequence, call->comm->rank);
    return NULL;
}

const unsigned char *npci_met_data(const npci_call *call, int rank, int64_t bytes) {
    if (bytes <= NPCI_PAYLOAD)
        return npci_cell_of(call, call->lane->sequence, rank)->payload;
    return npci_middle_of(call, call->lane->sequence, rank);
}

void npci_meet_stage(npci_call *call, npci_cursor *in, unsigned char *space) {
    if (call->bytes == 0)
        return;
    npci_stage_begin(call, call->bytes);
    npci_cursor_stage(in, call, 0, call->bytes, space);
    npci_stage_end(call, call->bytes);
}

npci_aside *npci_meet_aside(npci_call *call) {
    return npci_aside_of(call, call->lane->sequence + 1, call->comm->rank);
}

const npci_aside *npci_met_aside(const npci_call *call, int rank) {
    return npci_aside_of(call, call->lane->sequence, rank);
}

/* npci_arrive publishes this rank's cell and waits for everybody's. */
static int npci_arrive(npci_call *call, uint64_t fingerprint) {
    int size = call->comm->size, rank = call->comm->rank;
    uint64_t sequence = ++call->lane->sequence;
    npci_cell *mine = npci_cell_of(call, sequence, rank);
    mine->fingerprint = fingerprint;
    npci_stage_publish(call);
    npci_advance_word(&mine->sequence, sequence, &call->lane->progress[rank].arrivals.waiters);
    for (int i = 1; i < size; i++) {
        int peer = rank + i < size ? rank + i : rank + i - size;
        npci_cell *cell = npci_cell_of(call, sequence, peer);
        /* Acquire: pairs with the peer's npci_advance_word, so its fingerprint and data are visible. */
        if (atomic_load_explicit(&cell->sequence, memory_order_acquire) >= sequence)
            continue;
        int status = npci_wait_slow(call, peer, &cell->sequence, &call->lane->progress[peer].arrivals.waiters, sequence,
                                    -1);
        if (status != NPC_OK)
            return status;
    }
    return NPC_OK;
}

static const npci_note *npci_lane_note(const void *context, int rank) {
    return (const npci_note *)context + rank;
}

static int npci_meet_mismatch(npci_call *call) {
    npci_note_of(call, &call->lane->notes[call->comm->rank]);
    int status = npci_arrive(call, 0);
    if (status != NPC_OK)
        return status;
    return npci_describe_mismatch(call->error, call->comm->size, npci_lane_note, call->lane->notes);
}

int npci_meet(npci_call *call) {
    int status = npci_arrive(call, call->fingerprint);
    if (status != NPC_OK)
        return status;
    bool equal = true;
    for (int r = 0; r < call->comm->size; r++)
        equal = equal && npci_cell_of(call, call->lane->sequence, r)->fingerprint == call->fingerprint;
    return equal ? NPC_OK : npci_meet_mismatch(call);
}
