/* allgather.c: the parts of all ranks, one after the other, on every rank or (gather) on the root.
 *
 * Parts may differ in dimension 0, which is therefore not in the fingerprint: each rank tells its own in the meeting's
 * aside. Parts that fit the middle buffer travel with the meeting; larger ones go through the staging chunks of their
 * owner, all ranks at once, in as many rounds as the largest part needs. */
#include "npci_comm.h"

/* npci_parts says of each rank's part where it begins, how long it is, and how many rows it has. */
typedef struct npci_parts {
    int64_t start[NPCI_MAX_RANKS], bytes[NPCI_MAX_RANKS], counts[NPCI_MAX_RANKS];
    int64_t rows;
} npci_parts;

static bool npci_in_meeting(const npci_call *call, int64_t bytes) {
    return bytes <= (int64_t)call->comm->middle;
}

static void npci_parts_learn(const npci_call *call, npci_parts *parts) {
    int size = call->comm->size;
    parts->rows = 0;
    int64_t row = (int64_t)call->item, at = 0;
    for (int i = 1; i < call->d.ndim; i++)
        row *= call->shape[i];
    for (int r = 0; r < size; r++) {
        parts->counts[r] = npci_met_aside(call, r)->shape[0];
        parts->start[r] = at;
        parts->bytes[r] = parts->counts[r] * row;
        at += parts->bytes[r];
        parts->rows += parts->counts[r];
    }
}

static int npci_parts_move(npci_call *call, const npci_parts *parts, const unsigned char *in, unsigned char *out) {
    npc_comm *comm = call->comm;
    int64_t chunk = (int64_t)comm->chunk;
    uint64_t base = call->lane->rounds, rounds = 0;
    for (int r = 0; r < comm->size; r++) {
        uint64_t needed = (uint64_t)((parts->bytes[r] + chunk - 1) / chunk);
        if (!npci_in_meeting(call, parts->bytes[r]) && needed > rounds)
            rounds = needed;
    }
    call->lane->rounds += rounds;
    /* One round of staging ahead of draining, so that waits are filled with work. */
    for (uint64_t i = 0; i <= rounds && comm->size > 1; i++) {
        uint64_t round = base + i;
        int64_t at = (int64_t)i * chunk, left = parts->bytes[comm->rank] - at;
        if (i < rounds) {
            if (round >= NPCI_SLOTS) {
                int status = npci_wait_all(call, NPCI_DRAINED, round - NPCI_SLOTS + 1);
                if (status != NPC_OK)
                    return status;
            }
            if (left > 0 && !npci_in_meeting(call, parts->bytes[comm->rank]))
                npci_stage_copy(npci_staging(call, comm->rank, round), in + at, left < chunk ? left : chunk);
            npci_advance_stage(call, NPCI_STAGED, round + 1);
        }
        if (i == 0)
            continue;
        round--;
        at -= chunk;
        for (int k = 1; k < comm->size; k++) {
            int peer = comm->rank + k < comm->size ? comm->rank + k : comm->rank + k - comm->size;
            left = parts->bytes[peer] - at;
            if (left <= 0 || npci_in_meeting(call, parts->bytes[peer]) || out == NULL)
                continue;
            int status = npci_wait_stage(call, peer, NPCI_STAGED, round + 1);
            if (status != NPC_OK)
                return status;
            left = left < chunk ? left : chunk;
            memcpy(out + parts->start[peer] + at, npci_staging(call, peer, round), (size_t)left);
        }
        npci_advance_stage(call, NPCI_DRAINED, round + 1);
    }
    return NPC_OK;
}

static int npci_parts_exchange(npci_call *call, int root) {
    npc_comm *comm = call->comm;
    npci_parts parts;
    int failure = NPC_OK;
    npci_parts_learn(call, &parts);
    const unsigned char *in = call->d.n_in > 0 ? call->d.in[0].data : NULL;
    unsigned char *out = NULL;
    if (root < 0 || root == comm->rank) {
        int64_t shape[NPC_MAX_DIMS];
        memcpy(shape, call->shape, sizeof shape);
        shape[0] = parts.rows;
        out = npci_output_at(call, call->d.ndim, shape, parts.counts, &failure);
    }
    if (out != NULL) {
        if (parts.bytes[comm->rank] > 0) {
            /* The output may be the input's memory: the part moves to its place before others' are written. */
            memmove(out + parts.start[comm->rank], in, (size_t)parts.bytes[comm->rank]);
            in = out + parts.start[comm->rank];
        }
        for (int r = 0; r < comm->size; r++) {
            if (r != comm->rank && parts.bytes[r] > 0 && npci_in_meeting(call, parts.bytes[r]))
                memcpy(out + parts.start[r], npci_met_data(call, r, parts.bytes[r]), (size_t)parts.bytes[r]);
        }
    }
    int status = npci_parts_move(call, &parts, in, out);
    return status != NPC_OK ? status : failure;
}

int npci_gather_all(npci_call *call, int root) {
    npci_aside *aside = npci_meet_aside(call);
    aside->shape[0] = call->shape[0];
    unsigned char *space = npci_meet_space(call, call->bytes);
    if (space != NULL && call->bytes > 0)
        npci_stage_copy(space, call->d.in[0].data, call->bytes);
    int status = npci_meet(call);
    return status == NPC_OK ? npci_parts_exchange(call, root) : status;
}

int npci_allgather(npci_call *call) {
    return npci_gather_all(call, -1);
}
