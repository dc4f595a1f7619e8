/* allreduce.c: every rank gets the reduction of all inputs; with a root, only the root gets it.
 *
 * Small messages travel with the meeting, and every rank that wants the result reduces all inputs itself. Large ones
 * are cut into chunks, and each chunk into one slice a rank. This is reduce-scatter plus allgather (Rabenseifner,
 * "Optimization of Collective Reduction Operations", ICCS 2004) on shared memory. For chunk i:
 *
 * 1. Stage: copy in all slices but one's own. Round i reuses the memory of round i - NPCI_SLOTS, so everybody must
 *    have drained that. An input that is lent (lend.c) is not copied.
 * 2. When all have staged: reduce one's own slice of all ranks, in rank order, with one's own input straight from
 *    private memory. The result goes to the output and, for the others, into one's own slice of the staging chunk.
 * 3. Stage chunk i + 1 before waiting for the reductions of chunk i, so that the wait is filled with work.
 * 4. When all have reduced: copy out the other slices.
 *
 * Where all outputs are in communication memory, or the result is shared, each slice is written where it belongs, once,
 * and nothing is copied out. If all inputs are lent too, nothing is staged: there is one round, with the whole message
 * as its chunk. */
#include "npci_comm.h"

typedef struct npci_sweep {
    npci_call *call;
    npci_cursor in, staged, out; /* `staged` runs ahead of `in` */
    npci_reduction reduction;
    int64_t bytes, chunk;
    bool wants;  /* this rank gets the result */
    bool stream; /* the result is too large to stay in a cache */
    bool lent;   /* others read this rank's input where it lies */
    bool drains; /* results are copied out of staging memory */
    bool spread; /* each slice is written to all outputs */
    const unsigned char *inputs[NPCI_MAX_RANKS]; /* those that are lent; else NULL */
    unsigned char *outputs[NPCI_MAX_RANKS];      /* where results are spread */
} npci_sweep;

/* A piece small enough to be in the first-level cache when it is copied on. */
#define NPCI_PIECE 8192

static int64_t npci_chunk_bytes(const npci_sweep *sweep, int64_t at) {
    return sweep->bytes - at < sweep->chunk ? sweep->bytes - at : sweep->chunk;
}

static void npci_sweep_stage(npci_sweep *sweep, int64_t at, uint64_t round) {
    npc_comm *comm = sweep->call->comm;
    int64_t bytes = npci_chunk_bytes(sweep, at);
    int64_t start = npci_part_start(bytes, comm->size, comm->rank);
    int64_t end = npci_part_start(bytes, comm->size, comm->rank + 1);
    unsigned char *staging = npci_staging(sweep->call, comm->rank, round);
    npci_stage_begin(sweep->call, bytes - (end - start));
    npci_cursor_stage(&sweep->staged, sweep->call, at, start, staging);
    npci_cursor_stage(&sweep->staged, sweep->call, at + end, bytes - end, staging + end);
    npci_stage_end(sweep->call, bytes - (end - start));
}

/* npci_sweep_pass writes a reduced piece, which lies at `from`, to all others that want it there. */
static void npci_sweep_pass(npci_sweep *sweep, int64_t at, unsigned char *staging, const void *from, int64_t piece) {
    npc_comm *comm = sweep->call->comm;
    if (sweep->drains && sweep->wants && comm->size > 1)
        npci_stage_copy(sweep->call, staging, from, piece);
    for (int r = 0; sweep->spread && r < comm->size; r++) {
        if (r == comm->rank)
            continue;
        if (sweep->stream)
            npci_stream_copy(sweep->outputs[r] + at, from, piece);
        else
            npci_stage_copy(sweep->call, sweep->outputs[r] + at, from, piece);
    }
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
        from[r] = sweep->inputs[r] != NULL ? sweep->inputs[r] + at : npci_staging(sweep->call, r, round);
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
        npci_sweep_pass(sweep, at + position, staging + position, to, piece);
        if (sweep->stream)
            npci_stream_copy(out, to, piece);
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
        npci_cursor_write(&sweep->out, at + start, end - start, from + start, sweep->stream);
    }
}

/* npci_sweep_finish_round comes when this rank has reduced its slice of the round: the others' slices. */
static int npci_sweep_finish_round(npci_sweep *sweep, int64_t at, uint64_t round) {
    npci_call *call = sweep->call;
    bool last = at + sweep->chunk >= sweep->bytes;
    /* Who lent its input, or reads the result where the others write it, leaves when all have done their last slice. */
    bool waits = sweep->drains ? sweep->wants || (last && sweep->lent) : last;
    int status = waits ? npci_wait_all(call, NPCI_REDUCED, round + 1) : NPC_OK;
    if (status != NPC_OK)
        return status;
    if (sweep->drains && sweep->wants)
        npci_sweep_drain(sweep, at, round);
    /* Without the result, a rank still reads the others' inputs until it has reduced. The others' readers of this
     * rank's result are counted by their own stage. */
    npci_advance_stage(call, NPCI_DRAINED, round + 1);
    return NPC_OK;
}

static int npci_sweep_run(npci_sweep *sweep) {
    npci_call *call = sweep->call;
    uint64_t rounds = (uint64_t)((sweep->bytes + sweep->chunk - 1) / sweep->chunk), base = call->lane->rounds;
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
            if (!sweep->lent)
                npci_sweep_stage(sweep, (int64_t)i * sweep->chunk, round);
            npci_advance_stage(call, NPCI_STAGED, round + 1);
        }
        if (i > 0)
            status = npci_sweep_finish_round(sweep, (int64_t)(i - 1) * sweep->chunk, base + i - 1);
        if (status != NPC_OK)
            return status;
        if (i < rounds) {
            uint64_t round = base + i;
            status = npci_wait_all(call, NPCI_STAGED, round + 1);
            if (status != NPC_OK)
                return status;
            npci_sweep_reduce(sweep, (int64_t)i * sweep->chunk, round);
            if (sweep->stream)
                npci_stream_fence();
            npci_advance_stage(call, NPCI_REDUCED, round + 1);
        }
    }
    if (sweep->stream)
        npci_stream_fence(); /* another thread of this process may be told next */
    return NPC_OK;
}

/* npci_sweep_places learns what all ranks have lent, and chooses where results go. */
static int npci_sweep_places(npci_sweep *sweep) {
    npci_call *call = sweep->call;
    npc_comm *comm = call->comm;
    int lenders;
    int status = npci_lent_inputs(call, sweep->inputs, &lenders);
    if (status != NPC_OK)
        return status;
    sweep->lent = sweep->inputs[comm->rank] != NULL;
    sweep->drains = true;
    if (call->d.shared != NULL) {
        uint64_t place = npci_met_aside(call, 0)->result;
        sweep->drains = place == 0;
        if (sweep->drains)
            status = npci_result_own(call);
        else if (!npci_result_lay_out(call, place, false))
            status = npci_end(comm, NPC_ERR_PEER_LOST, "a rank cannot map the shared result; it needs more address "
                              "space (ulimit -v)", call->error);
        sweep->out = npci_cursor_of(call->d.shared, call->d.n_in, call->item);
    } else if (call->d.kind == NPC_ALLREDUCE) {
        status = npci_lent_outputs(call, sweep->outputs, &sweep->spread);
        sweep->drains = !sweep->spread;
    }
    sweep->chunk = (int64_t)comm->chunk;
    if (lenders == comm->size && !sweep->drains)
        sweep->chunk = sweep->bytes;
    return status;
}

static int npci_sweep_all(npci_call *call, bool wants) {
    npci_sweep sweep; /* 16 KB that are not zeroed */
    sweep.call = call;
    sweep.in = sweep.staged = npci_cursor_of(call->d.in, call->d.n_in, call->item);
    sweep.out = npci_cursor_of(call->d.out, call->d.n_out, call->item);
    sweep.reduction = npci_reduction_of(call);
    sweep.bytes = call->bytes;
    sweep.wants = wants;
    sweep.spread = false;
    sweep.stream = wants && call->bytes >= call->comm->stream;
    int status = npci_sweep_places(&sweep);
    if (status == NPC_OK)
        status = npci_sweep_run(&sweep);
    if (status == NPC_OK && call->d.shared != NULL && !sweep.drains)
        npci_result_lay_out(call, npci_met_aside(call, 0)->result, true);
    return status;
}

static void npci_reduce_met(npci_call *call, const npc_buf *bufs, int count) {
    int size = call->comm->size;
    const unsigned char *from[NPCI_MAX_RANKS];
    const void *piece_from[NPCI_MAX_RANKS];
    npci_reduction reduction = npci_reduction_of(call);
    npci_cursor out = npci_cursor_of(bufs, count, call->item);
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
    unsigned char *space = npci_meet_space(call, call->bytes, true);
    uint64_t place = 0;
    if (space != NULL) {
        npci_meet_stage(call, &in, space);
    } else {
        npci_aside *aside = npci_meet_aside(call);
        npci_lend(call, aside);
        if (call->d.shared != NULL && call->comm->rank == 0)
            aside->result = place = npci_result_place(call);
    }
    int status = npci_meet(call);
    if (status != NPC_OK && space == NULL && call->d.shared != NULL && call->comm->rank == 0)
        npci_result_cancel(call, place);
    if (status != NPC_OK)
        return status;
    if (space == NULL)
        return npci_sweep_all(call, wants);
    if (call->d.shared != NULL)
        status = npci_result_own(call);
    if (status == NPC_OK && call->d.shared != NULL)
        npci_reduce_met(call, call->d.shared, call->d.n_in);
    else if (status == NPC_OK && wants)
        npci_reduce_met(call, call->d.out, call->d.n_out);
    return status;
}

int npci_allreduce(npci_call *call) {
    return npci_reduce_all(call, -1);
}
