/* alltoall.c: every rank sends a part of its rows to every rank.
 *
 * Who sends how many rows to whom is in the meeting's asides. Small inputs travel with the meeting. Of large ones,
 * round i moves piece i of every part: a rank stages its pieces for the others side by side, and copies out what the
 * others staged for it. */
#include "npci_comm.h"

#include <inttypes.h>

typedef struct npci_exchange {
    npci_call *call;
    const unsigned char *in;
    unsigned char *out;
    int64_t row, piece;
    int64_t sent[NPCI_MAX_RANKS + 1], received[NPCI_MAX_RANKS + 1]; /* where the part to or from rank r begins */
    int64_t counts[NPCI_MAX_RANKS], rows;                           /* rows from each rank, and of all */
} npci_exchange;

static int64_t npci_split(const npci_call *call, int from, int to) {
    return npci_met_aside(call, from)->splits[to];
}

static void npci_exchange_learn(npci_exchange *exchange) {
    npci_call *call = exchange->call;
    int size = call->comm->size, rank = call->comm->rank;
    exchange->row = (int64_t)call->item;
    for (int i = 1; i < call->d.ndim; i++)
        exchange->row *= call->shape[i];
    exchange->sent[0] = exchange->received[0] = exchange->rows = 0;
    for (int r = 0; r < size; r++) {
        exchange->counts[r] = npci_split(call, r, rank);
        exchange->rows += exchange->counts[r];
        exchange->sent[r + 1] = exchange->sent[r] + npci_split(call, rank, r) * exchange->row;
        exchange->received[r + 1] = exchange->received[r] + exchange->counts[r] * exchange->row;
    }
}

/* npci_piece_of gives the bytes that round i moves of a part. */
static int64_t npci_piece_of(const npci_exchange *exchange, const int64_t *starts, int peer, int64_t i) {
    int64_t left = starts[peer + 1] - starts[peer] - i * exchange->piece;
    return left < 0 ? 0 : left < exchange->piece ? left : exchange->piece;
}

static int npci_exchange_run(npci_exchange *exchange) {
    npci_call *call = exchange->call;
    npc_comm *comm = call->comm;
    int64_t rounds = 0, most = 0;
    for (int a = 0; a < comm->size; a++) {
        for (int b = 0; b < comm->size; b++) {
            int64_t rows = a == b ? 0 : npci_split(call, a, b);
            most = rows > most ? rows : most;
        }
    }
    rounds = (most * exchange->row + exchange->piece - 1) / exchange->piece;
    uint64_t base = call->lane->rounds;
    call->lane->rounds += (uint64_t)rounds;
    for (int64_t i = 0; i <= rounds; i++) {
        uint64_t round = base + (uint64_t)i;
        int status = NPC_OK;
        if (i < rounds) {
            if (round >= NPCI_SLOTS)
                status = npci_wait_all(call, NPCI_DRAINED, round - NPCI_SLOTS + 1);
            if (status != NPC_OK)
                return status;
            unsigned char *staging = npci_staging(call, comm->rank, round);
            for (int r = 0; r < comm->size; r++) {
                int64_t bytes = r == comm->rank ? 0 : npci_piece_of(exchange, exchange->sent, r, i);
                if (bytes > 0)
                    npci_stage_copy(staging + r * exchange->piece,
                                    exchange->in + exchange->sent[r] + i * exchange->piece, bytes);
            }
            npci_advance_stage(call, NPCI_STAGED, round + 1);
        }
        if (i == 0)
            continue;
        for (int k = 1; k < comm->size; k++) {
            int peer = comm->rank + k < comm->size ? comm->rank + k : comm->rank + k - comm->size;
            int64_t bytes = npci_piece_of(exchange, exchange->received, peer, i - 1);
            if (bytes == 0 || exchange->out == NULL)
                continue;
            status = npci_wait_stage(call, peer, NPCI_STAGED, round);
            if (status != NPC_OK)
                return status;
            memcpy(exchange->out + exchange->received[peer] + (i - 1) * exchange->piece,
                   npci_staging(call, peer, round - 1) + comm->rank * exchange->piece, (size_t)bytes);
        }
        npci_advance_stage(call, NPCI_DRAINED, round);
    }
    return NPC_OK;
}

/* npci_exchange_met copies what small inputs brought with the meeting. */
static void npci_exchange_met(const npci_exchange *exchange) {
    npci_call *call = exchange->call;
    for (int r = 0; r < call->comm->size; r++) {
        int64_t bytes = exchange->received[r + 1] - exchange->received[r], total = 0, before = 0;
        for (int to = 0; to < call->comm->size; to++) {
            before = to == call->comm->rank ? total : before;
            total += npci_split(call, r, to) * exchange->row;
        }
        if (r != call->comm->rank && bytes > 0)
            memcpy(exchange->out + exchange->received[r], npci_met_data(call, r, total) + before, (size_t)bytes);
    }
}

/* npci_all_small tells whether every rank's input came with the meeting; all ranks decide alike. */
static bool npci_all_small(const npci_call *call, int64_t row) {
    for (int r = 0; r < call->comm->size; r++) {
        if (npci_met_aside(call, r)->shape[0] * row > (int64_t)call->comm->middle)
            return false;
    }
    return true;
}

static int npci_exchange_all(npci_exchange *exchange) {
    npci_call *call = exchange->call;
    npc_comm *comm = call->comm;
    int failure, status = NPC_OK;
    void *copy = NULL;
    npci_exchange_learn(exchange);
    int64_t shape[NPC_MAX_DIMS];
    memcpy(shape, call->shape, sizeof shape);
    shape[0] = exchange->rows;
    exchange->out = npci_output_at(call, call->d.ndim, shape, exchange->counts, &failure);
    if (exchange->out != NULL && exchange->out == exchange->in && call->bytes > 0) {
        copy = malloc((size_t)call->bytes); /* in place: others' parts would overwrite what was not sent yet */
        if (copy == NULL) {
            failure = npci_fail(call->error, NPC_ERR_MEMORY, "alltoall: no memory to work in place");
            exchange->out = NULL;
        } else {
            exchange->in = memcpy(copy, exchange->in, (size_t)call->bytes);
        }
    }
    int64_t own = exchange->sent[comm->rank + 1] - exchange->sent[comm->rank];
    if (exchange->out != NULL && own > 0)
        memcpy(exchange->out + exchange->received[comm->rank], exchange->in + exchange->sent[comm->rank], (size_t)own);
    if (!npci_all_small(call, exchange->row))
        status = npci_exchange_run(exchange);
    else if (exchange->out != NULL)
        npci_exchange_met(exchange);
    free(copy);
    return status != NPC_OK ? status : failure;
}

int npci_alltoall(npci_call *call) {
    npc_comm *comm = call->comm;
    npci_exchange exchange; /* 24 KB that are not zeroed */
    exchange.call = call;
    exchange.in = call->d.n_in > 0 ? call->d.in[0].data : NULL;
    exchange.piece = (int64_t)(comm->chunk / (size_t)comm->size) / NPCI_LINE * NPCI_LINE;
    npci_aside *aside = npci_meet_aside(call);
    bool divides = call->d.splits != NULL || call->shape[0] % comm->size == 0;
    aside->shape[0] = divides ? call->shape[0] : -1 - call->shape[0];
    for (int r = 0; r < comm->size; r++)
        aside->splits[r] = call->d.splits != NULL ? call->d.splits[r] : call->shape[0] / comm->size;
    unsigned char *space = npci_meet_space(call, call->bytes);
    if (space != NULL && call->bytes > 0)
        npci_stage_copy(space, exchange.in, call->bytes);
    int status = npci_meet(call);
    if (status != NPC_OK)
        return status;
    /* The others learn of it too, instead of waiting. */
    for (int r = 0; r < comm->size; r++) {
        int64_t rows = npci_met_aside(call, r)->shape[0];
        if (rows < 0)
            return npci_fail(call->error, NPC_ERR_ARGUMENT,
                             "alltoall: rank %d has %" PRId64 " rows, which is not a multiple of the %d ranks; "
                             "give splits", r, -1 - rows, comm->size);
    }
    return npci_exchange_all(&exchange);
}
