/* allgather.c: the parts of all ranks, one after the other, on every rank or (gather) on the root.
 *
 * Parts may differ in dimension 0, which is therefore not in the fingerprint: each rank tells its own in the meeting's
 * aside. Parts that fit the middle buffer travel with the meeting; lent ones (lend.c) are read where they lie; other
 * ones go through the staging chunks of their owner, all ranks at once, in as many rounds as the largest needs. */
#include "npci_comm.h"

/* npci_parts says of each rank's part where it begins, how long it is, and how many rows it has. */
typedef struct npci_parts {
    int64_t start[NPCI_MAX_RANKS], bytes[NPCI_MAX_RANKS], counts[NPCI_MAX_RANKS];
    int64_t row, rows; /* bytes of a row; number of rows */
    bool stream;       /* the result is too large to stay in a cache */
} npci_parts;

static bool npci_in_meeting(const npci_call *call, int64_t bytes) {
    return bytes <= (int64_t)call->comm->middle;
}

static void npci_parts_learn(const npci_call *call, npci_parts *parts) {
    int size = call->comm->size;
    int64_t at = 0;
    parts->rows = 0;
    parts->row = (int64_t)call->item;
    for (int i = 1; i < call->d.ndim; i++)
        parts->row *= call->shape[i];
    for (int r = 0; r < size; r++) {
        parts->counts[r] = npci_met_aside(call, r)->shape[0];
        parts->start[r] = at;
        parts->bytes[r] = parts->counts[r] * parts->row;
        at += parts->bytes[r];
        parts->rows += parts->counts[r];
    }
    parts->stream = at >= call->comm->stream;
}

/* npci_staged tells whether a rank's part goes through its staging chunks. All ranks decide alike. */
static bool npci_staged(const npci_call *call, const npci_parts *parts, int rank) {
    return !npci_in_meeting(call, parts->bytes[rank]) && npci_met_aside(call, rank)->input == 0;
}

/* npci_parts_take copies chunk `at` of the others' staged parts. */
static int npci_parts_take(npci_call *call, const npci_parts *parts, uint64_t round, int64_t at, unsigned char *out) {
    npc_comm *comm = call->comm;
    int64_t chunk = (int64_t)comm->chunk;
    for (int k = 1; k < comm->size; k++) {
        int peer = comm->rank + k < comm->size ? comm->rank + k : comm->rank + k - comm->size;
        int64_t left = parts->bytes[peer] - at;
        if (left <= 0 || !npci_staged(call, parts, peer))
            continue;
        int status = npci_wait_stage(call, peer, NPCI_STAGED, round + 1);
        if (status != NPC_OK)
            return status;
        npci_result_copy(out + parts->start[peer] + at, npci_staging(call, peer, round), left < chunk ? left : chunk,
                         parts->stream);
    }
    return NPC_OK;
}

static int npci_parts_move(npci_call *call, const npci_parts *parts, const unsigned char *in, unsigned char *out,
                           unsigned char *own) {
    npc_comm *comm = call->comm;
    int64_t chunk = (int64_t)comm->chunk, mine = npci_staged(call, parts, comm->rank) ? parts->bytes[comm->rank] : 0;
    uint64_t base = call->lane->rounds, rounds = 0;
    for (int r = 0; r < comm->size; r++) {
        uint64_t needed = (uint64_t)((parts->bytes[r] + chunk - 1) / chunk);
        if (npci_staged(call, parts, r) && needed > rounds)
            rounds = needed;
    }
    call->lane->rounds += rounds;
    /* One round of staging ahead of taking, so that waits are filled with work. */
    for (uint64_t i = 0; i <= rounds && comm->size > 1; i++) {
        uint64_t round = base + i;
        int64_t at = (int64_t)i * chunk, bytes = mine - at < chunk ? mine - at : chunk;
        if (i < rounds) {
            int status = round >= NPCI_SLOTS ? npci_wait_all(call, NPCI_DRAINED, round - NPCI_SLOTS + 1) : NPC_OK;
            if (status != NPC_OK)
                return status;
            if (bytes > 0) {
                npci_stage_begin(call, bytes);
                npci_stage_copy(call, npci_staging(call, comm->rank, round), in + at, bytes);
                npci_stage_end(call, bytes);
            }
            npci_advance_stage(call, NPCI_STAGED, round + 1);
            if (bytes > 0 && own != NULL)
                npci_result_copy(own + at, in + at, bytes, parts->stream); /* while it is in a cache */
        }
        if (i == 0)
            continue;
        int status = out != NULL ? npci_parts_take(call, parts, round - 1, at - chunk, out) : NPC_OK;
        if (status != NPC_OK)
            return status;
        npci_advance_stage(call, NPCI_DRAINED, round);
    }
    return NPC_OK;
}

/* npci_parts_fetch copies the parts that came with the meeting, and those that are lent; *lent: whether there are any. */
static int npci_parts_fetch(npci_call *call, const npci_parts *parts, unsigned char *out, bool *lent) {
    *lent = false;
    for (int r = 0; r < call->comm->size; r++) {
        bool met = npci_in_meeting(call, parts->bytes[r]);
        *lent = *lent || (!met && !npci_staged(call, parts, r));
        if (r == call->comm->rank || parts->bytes[r] == 0 || out == NULL || (!met && npci_staged(call, parts, r)))
            continue;
        const unsigned char *from = met ? npci_met_data(call, r, parts->bytes[r]) : NULL;
        int status = met ? NPC_OK : npci_lent_input(call, r, &from);
        if (status != NPC_OK)
            return status;
        npci_result_copy(out + parts->start[r], from, parts->bytes[r], parts->stream);
    }
    return NPC_OK;
}

static int npci_parts_exchange(npci_call *call, int root) {
    npc_comm *comm = call->comm;
    npci_parts parts;
    int failure = NPC_OK;
    npci_parts_learn(call, &parts);
    const unsigned char *in = call->d.n_in > 0 ? call->d.in[0].data : NULL;
    unsigned char *out = NULL, *own = NULL;
    if (root < 0 || root == comm->rank) {
        int64_t shape[NPC_MAX_DIMS];
        memcpy(shape, call->shape, sizeof shape);
        shape[0] = parts.rows;
        out = npci_output_at(call, call->d.ndim, shape, parts.counts, &failure);
    }
    if (out != NULL && parts.bytes[comm->rank] > 0) {
        own = out + parts.start[comm->rank];
        bool apart = in + parts.bytes[comm->rank] <= out || in >= out + parts.rows * parts.row;
        if (!apart || comm->size == 1 || !npci_staged(call, &parts, comm->rank)) {
            /* The output may be the input's memory: the part moves to its place before others' are written. */
            if (apart)
                npci_result_copy(own, in, parts.bytes[comm->rank], parts.stream);
            else
                memmove(own, in, (size_t)parts.bytes[comm->rank]);
            in = own;
            own = NULL;
        }
    }
    bool lent;
    int status = npci_parts_fetch(call, &parts, out, &lent);
    if (status == NPC_OK)
        status = npci_parts_move(call, &parts, in, out, own);
    if (parts.stream)
        npci_stream_fence();
    if (status == NPC_OK && lent)
        status = npci_lend_end(call, npci_met_aside(call, comm->rank)->input != 0);
    return status != NPC_OK ? status : failure;
}

int npci_gather_all(npci_call *call, int root) {
    npci_aside *aside = npci_meet_aside(call);
    npci_cursor in = npci_cursor_of(call->d.in, call->d.n_in, call->item);
    unsigned char *space = npci_meet_space(call, call->bytes, false);
    npci_lend(call, aside);
    aside->shape[0] = call->shape[0];
    if (space != NULL)
        npci_meet_stage(call, &in, space);
    int status = npci_meet(call);
    return status == NPC_OK ? npci_parts_exchange(call, root) : status;
}

int npci_allgather(npci_call *call) {
    return npci_gather_all(call, -1);
}
