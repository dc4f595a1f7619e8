/* reduce_scatter.c: rank r gets block r of the reduction of all inputs.
 *
 * Small inputs travel with the meeting. Of large ones, round i moves piece i of every block: a rank stages its pieces
 * for the others, side by side, waits until all have staged, and reduces its own piece straight into the output. Inputs
 * that are lent (lend.c) are read where they lie; if all are, there is one round with the whole block as its piece. */
#include "npci_comm.h"

#include <inttypes.h>

typedef struct npci_blocks {
    npci_call *call;
    npci_reduction reduction;
    const unsigned char *in;
    unsigned char *out;
    int64_t block, piece; /* bytes of a block, and of what one round moves of it */
    int lenders;
    const unsigned char *inputs[NPCI_MAX_RANKS]; /* those that are lent; else NULL */
} npci_blocks;

static int64_t npci_piece_bytes(const npci_blocks *blocks, uint64_t i) {
    int64_t left = blocks->block - (int64_t)i * blocks->piece;
    return left < blocks->piece ? left : blocks->piece;
}

static void npci_blocks_stage(const npci_blocks *blocks, uint64_t i, uint64_t round) {
    npc_comm *comm = blocks->call->comm;
    unsigned char *staging = npci_staging(blocks->call, comm->rank, round);
    int64_t piece = npci_piece_bytes(blocks, i), all = piece * (comm->size - 1);
    npci_stage_begin(blocks->call, all);
    for (int r = 0; r < comm->size; r++) {
        if (r != comm->rank)
            npci_stage_copy(blocks->call, staging + r * blocks->piece,
                            blocks->in + r * blocks->block + (int64_t)i * blocks->piece, piece);
    }
    npci_stage_end(blocks->call, all);
}

static void npci_blocks_reduce(const npci_blocks *blocks, uint64_t i, uint64_t round) {
    npc_comm *comm = blocks->call->comm;
    const void *from[NPCI_MAX_RANKS];
    if (blocks->out == NULL)
        return;
    int64_t at = comm->rank * blocks->block + (int64_t)i * blocks->piece;
    for (int r = 0; r < comm->size; r++)
        from[r] = blocks->inputs[r] != NULL ? blocks->inputs[r] + at
                                            : npci_staging(blocks->call, r, round) + comm->rank * blocks->piece;
    from[comm->rank] = blocks->in + at;
    npci_reduce(&blocks->reduction, blocks->out + (int64_t)i * blocks->piece, from, npci_piece_bytes(blocks, i));
}

static int npci_blocks_run(const npci_blocks *blocks) {
    npci_call *call = blocks->call;
    uint64_t base = call->lane->rounds, rounds = (uint64_t)((blocks->block + blocks->piece - 1) / blocks->piece);
    int status = NPC_OK;
    call->lane->rounds += rounds;
    for (uint64_t i = 0; i <= rounds; i++) {
        uint64_t round = base + i;
        if (i < rounds) {
            if (round >= NPCI_SLOTS)
                status = npci_wait_all(call, NPCI_DRAINED, round - NPCI_SLOTS + 1);
            if (status != NPC_OK)
                return status;
            if (blocks->inputs[call->comm->rank] == NULL)
                npci_blocks_stage(blocks, i, round);
            npci_advance_stage(call, NPCI_STAGED, round + 1);
        }
        if (i > 0) {
            status = npci_wait_all(call, NPCI_STAGED, round);
            if (status != NPC_OK)
                return status;
            npci_blocks_reduce(blocks, i - 1, round - 1);
            npci_advance_stage(call, NPCI_DRAINED, round);
        }
    }
    return blocks->lenders > 0 ? npci_lend_end(call, blocks->inputs[call->comm->rank] != NULL) : NPC_OK;
}

static int npci_blocks_large(npci_blocks *blocks) {
    int status = npci_lent_inputs(blocks->call, blocks->inputs, &blocks->lenders);
    if (status == NPC_OK && blocks->lenders == blocks->call->comm->size && blocks->block > 0)
        blocks->piece = blocks->block;
    return status == NPC_OK ? npci_blocks_run(blocks) : status;
}

static void npci_blocks_met(const npci_blocks *blocks) {
    npci_call *call = blocks->call;
    const void *from[NPCI_MAX_RANKS];
    if (blocks->out == NULL || blocks->block == 0)
        return;
    for (int r = 0; r < call->comm->size; r++)
        from[r] = npci_met_data(call, r, call->bytes) + call->comm->rank * blocks->block;
    npci_reduce(&blocks->reduction, blocks->out, from, blocks->block);
}

int npci_reduce_scatter(npci_call *call) {
    npc_comm *comm = call->comm;
    const unsigned char *in = call->d.n_in > 0 ? call->d.in[0].data : NULL;
    unsigned char *space = npci_meet_space(call, call->bytes, true);
    int failure;
    npci_cursor cursor = npci_cursor_of(call->d.in, call->d.n_in, call->item);
    if (space != NULL)
        npci_meet_stage(call, &cursor, space);
    else
        npci_lend(call, npci_meet_aside(call));
    int status = npci_meet(call);
    if (status != NPC_OK)
        return status;
    /* The shape is in the fingerprint, so all ranks agree about this failure. */
    if (call->shape[0] % comm->size != 0)
        return npci_fail(call->error, NPC_ERR_ARGUMENT,
                         "reduce_scatter: dimension 0 is %" PRId64 ", which is not a multiple of the %d ranks",
                         call->shape[0], comm->size);
    int64_t shape[NPC_MAX_DIMS];
    memcpy(shape, call->shape, sizeof shape);
    shape[0] /= comm->size;
    npci_blocks blocks; /* 8 KB that are not zeroed */
    blocks.call = call;
    blocks.in = in;
    blocks.block = call->bytes / comm->size;
    blocks.reduction = npci_reduction_of(call);
    blocks.piece = (int64_t)(comm->chunk / (size_t)comm->size) / NPCI_LINE * NPCI_LINE;
    blocks.out = npci_output_at(call, call->d.ndim, shape, NULL, &failure);
    if (space == NULL)
        status = npci_blocks_large(&blocks);
    else
        npci_blocks_met(&blocks);
    return status != NPC_OK ? status : failure;
}
