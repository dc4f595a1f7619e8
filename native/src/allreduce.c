/* allreduce.c: every rank gets the reduction of all inputs; with a root, only the root gets it.
 *
 * Small messages travel with the meeting, and every rank that wants the result reduces all inputs itself. Large ones
 * are cut into chunks, and each chunk into one slice a rank. This is reduce-scatter plus allgather (Rabenseifner,
 * "Optimization of Collective Reduction Operations", ICCS 2004) on shared memory. For chunk i:
 *
 * 1. Stage: copy in all slices but one's own. Round i reuses the memory of round i - NPCI_SLOTS, so everybody must
 *    have drained that.
 * 2. When all have staged: reduce one's own slice of all ranks, in rank order, with one's own input straight from
 *    private memory. The result goes to the output and, for the others, into one's own slice of the staging chunk.
 * 3. Stage chunk i + 1 before waiting for the reductions of chunk i, so that the wait is filled with work.
 * 4. When all have reduced: copy out the other slices. */
#include "npci_comm.h"

typedef struct npci_sweep {
    npci_call *call;
    npci_cursor in, staged, out; /* `staged` runs ahead of `in` */
    npci_reduction reduction;
    int64_t bytes;
    bool wants;  /* this rank gets the result */
    bool stream; /* the result is too large to stay in a cache */
} npci_sweep;

/* A piece small enough to be in the first-level cache when it is copied on to the staging chunk. */
#define NPCI_PIECE 8192
/* Results of this many bytes are written past the caches, which saves reading their lines first. */
#define NPCI_STREAM_RESULT (INT64_C(16) << 20)

static int64_t npci_chunk_bytes(const npci_sweep *sweep, int64_t at) {
    int64_t chunk = (int64_t)sweep->call->comm->chunk;
    return sweep->bytes - at < chunk ? sweep->bytes - at : chunk;
}

static void npci_sweep_stage(npci_sweep *sweep, int64_t at, uint64_t round) {
    npc_comm *comm = sweep->call->comm;
    int64_t bytes = npci_chunk_bytes(sweep, at);
    int64_t start = npci_part_start(bytes, comm->size, comm->rank);
    int64_t end = npci_part_start(bytes, comm->size, comm->rank + 1);
    unsigned char *staging = npci_staging(sweep->call, comm->rank, round);
    npci_cursor_stage(&sweep->staged, at, start, staging);
    npci_cursor_stage(&sweep->staged, at + end, bytes - end, staging + end);
}

static void npci_sweep_reduce(npci_sweep *sweep, int64_t at, uint64_t round) {
    npc_comm *comm = sweep->call->comm;
    int64_t bytes = npci_chunk_bytes(sweep, at);
    int64_t position = npci_part_start(bytes, comm->size, comm->rank);
    int64_t end = npci_part_start(bytes, comm->size, comm->rank + 1);
    const unsigned char *from[NPCI_MAX_RANKS];
    const void *piece_from[NPCI_MAX_RANKS];
    _Alignas(NPCI_LINE) unsigned char scratch[NPCI_PIECE];
    for (int r = 0; r < comm->size; r++)
        from[r] = npci_staging(sweep->call, r, round);
    unsigned char *staging = npci_staging(sweep->call, comm->rank, round);
    while (position < end) {
        int64_t piece = end - position < NPCI_PIECE ? end - position : NPCI_PIECE;
        const unsigned char *mine = npci_cursor_at(&sweep->in, at + position, &piece);
        unsigned char *out = NULL, *to = staging + position;
        if (sweep->wants)
            out = to = npci_cursor_at(&sweep->out, at + position, &piece);
        if (sweep->stream)
            to = scratch;
        for (int r = 0; r < comm->size; r++)
            piece_from[r] = from[r] + position;
        piece_from[comm->rank] = mine;
        npci_reduce(&sweep->reduction, to, piece_from, piece);
        if (sweep->wants && comm->size > 1)
            npci_stage_copy(staging + position, to, piece);
        if (sweep->stream)
            npci_stage_copy(out, to, piece);
        position += piece;
    }
}

static void npci_sweep_drain(npci_sweep *sweep, int64_t at, uint64_t round) {
    npc_comm *comm = sweep->call->comm;
    int64_t bytes = npci_chunk_bytes(sweep, at);
    for (int i = 1; i < comm->size; i++) {
        int peer = comm->rank + i < comm->size ? comm->rank + i : comm->rank + i - comm->size;
        int64_t start = npci_part_start(bytes, comm->size, peer);
        int64_t end = npci_part_start(bytes, comm->size, peer + 1);
        const unsigned char *from = npci_staging(sweep->call, peer, round);
        if (!sweep->stream)
            npci_cursor_write(&sweep->out, at + start, end - start, from + start);
        else
            for (int64_t position = start, piece; position < end; position += piece) {
                piece = end - position;
                unsigned char *to = npci_cursor_at(&sweep->out, at + position, &piece);
                npci_stage_copy(to, from + position, piece);
            }
    }
}

static int npci_sweep_run(npci_sweep *sweep) {
    npci_call *call = sweep->call;
    int64_t chunk = (int64_t)call->comm->chunk;
    uint64_t rounds = (uint64_t)((sweep->bytes + chunk - 1) / chunk), base = call->lane->rounds;
    int status = NPC_OK;
    call->lane->rounds += rounds;
    for (uint64_t i = 0; i <= rounds; i++) {
        /* Stage i + 1 in the midst of round i; the first is staged before the loop's first wait. */
        if (i < rounds) {
            uint64_t round = base + i;
            if (round >= NPCI_SLOTS)
                status = npci_wait_all(call, NPCI_DRAINED, round - NPCI_SLOTS + 1);
            if (status != NPC_OK)
                return status;
            npci_sweep_stage(sweep, (int64_t)i * chunk, round);
            npci_advance_stage(call, NPCI_STAGED, round + 1);
        }
        if (i > 0) {
            uint64_t round = base + i - 1;
            if (sweep->wants) {
                status = npci_wait_all(call, NPCI_REDUCED, round + 1);
                if (status != NPC_OK)
                    return status;
                npci_sweep_drain(sweep, (int64_t)(i - 1) * chunk, round);
            }
            /* Without the result, a rank still reads the others' inputs until it has reduced. The others' readers of
             * this rank's result are counted by their own stage. */
            npci_advance_stage(call, NPCI_DRAINED, round + 1);
        }
        if (i < rounds) {
            uint64_t round = base + i;
            status = npci_wait_all(call, NPCI_STAGED, round + 1);
            if (status != NPC_OK)
                return status;
            npci_sweep_reduce(sweep, (int64_t)i * chunk, round);
            npci_advance_stage(call, NPCI_REDUCED, round + 1);
        }
    }
    return NPC_OK;
}

static void npci_reduce_met(npci_call *call) {
    int size = call->comm->size;
    const unsigned char *from[NPCI_MAX_RANKS];
    const void *piece_from[NPCI_MAX_RANKS];
    npci_reduction reduction = npci_reduction_of(call);
    npci_cursor out = npci_cursor_of(call->d.out, call->d.n_out, call->item);
    for (int r = 0; r < size; r++)
        from[r] = npci_met_data(call, r, call->bytes);
    for (int64_t position = 0, piece; position < call->bytes; position += piece) {
        piece = call->bytes - position;
        unsigned char *to = npci_cursor_at(&out, position, &piece);
        for (int r = 0; r < size; r++)
            piece_from[r] = from[r] + position;
        npci_reduce(&reduction, to, piece_from, piece);
    }
}

int npci_reduce_all(npci_call *call, int root) {
    bool wants = root < 0 || root == call->comm->rank;
    npci_cursor in = npci_cursor_of(call->d.in, call->d.n_in, call->item);
    unsigned char *space = npci_meet_space(call, call->bytes);
    if (space != NULL)
        npci_cursor_stage(&in, 0, call->bytes, space);
    int status = npci_meet(call);
    if (status != NPC_OK)
        return status;
    if (space != NULL) {
        if (wants)
            npci_reduce_met(call);
        return NPC_OK;
    }
    npci_sweep sweep = {.call = call, .in = in, .staged = in, .bytes = call->bytes, .wants = wants};
    sweep.out = npci_cursor_of(call->d.out, call->d.n_out, call->item);
    sweep.stream = wants && call->bytes >= NPCI_STREAM_RESULT;
    sweep.reduction = npci_reduction_of(call);
    return npci_sweep_run(&sweep);
}

int npci_allreduce(npci_call *call) {
    return npci_reduce_all(call, -1);
}
