/* alltoall.c: every rank sends a part of its rows to every rank.
 *
 * Who sends how many rows to whom is in the meeting's asides. Small inputs travel with the meeting, and inputs that are
 * lent (lend.c) are read where they lie. Of other ones, round i moves piece i of every part: a rank stages its pieces for
 * the others side by side, and copies out what the others staged for it. */
#include "npci_comm.h"

#include <inttypes.h>

typedef struct npci_exchange {
    npci_call *call;
    const unsigned char *in;
    unsigned char *out;
    int64_t row, piece;
    int64_t sent[NPCI_MAX_RANKS + 1], received[NPCI_MAX_RANKS + 1]; /* where the part to or from rank r begins */
    int64_t counts[NPCI_MAX_RANKS], rows;                           /* rows from each rank, and of all */
    bool lends, stream; /* this rank lends its input; the result is too large to stay in a cache */
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
            int64_t rows = a == b || npci_met_aside(call, a)->input != 0 ? 0 : npci_split(call, a, b);
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
            npci_stage_begin(call, exchange->piece);
            for (int r = 0; r < comm->size && !exchange->lends; r++) {
                int64_t bytes = r == comm->rank ? 0 : npci_piece_of(exchange, exchange->sent, r, i);
                if (bytes > 0)
                    npci_stage_copy(call, staging + r * exchange->piece,
                                    exchange->in + exchange->sent[r] + i * exchange->piece, bytes);
            }
            npci_advance_stage(call, NPCI_STAGED, round + 1);
        }
        if (i == 0)
            continue;
        for (int k = 1; k < comm->size; k++) {
            int peer = comm->rank + k < comm->size ? comm->rank + k : comm->rank + k - comm->size;
            int64_t bytes = npci_piece_of(exchange, exchange->received, peer, i - 1);
            if (bytes == 0 || exchange->out == NULL || npci_met_aside(call, peer)->input != 0)
                continue;
            status = npci_wait_stage(call, peer, NPCI_STAGED, round);
            if (status != NPC_OK)
                return status;
            npci_result_copy(exchange->out + exchange->received[peer] + (i - 1) * exchange->piece,
                             npci_staging(call, peer, round - 1) + comm->rank * exchange->piece, bytes,
                             exchange->stream);
        }
        npci_advance_stage(call, NPCI_DRAINED, round);
    }
    return NPC_OK;
}

/* npci_before gives the bytes that rank `from` has for the ranks before this one, and those it has in all. */
static int64_t npci_before(const npci_exchange *exchange, int from, int64_t *total) {
    npci_call *call = exchange->call;
    int64_t before = 0;
    *total = 0;
    for (int to = 0; to < call->comm->size; to++) {
        before = to == call->comm->rank ? *total : before;
        *total += npci_split(call, from, to) * exchange->row;
    }
    return before;
}

/* npci_exchange_fetch copies what small inputs brought with the meeting, or what is lent. */
static int npci_exchange_fetch(const npci_exchange *exchange, bool met) {
    npci_call *call = exchange->call;
    for (int r = 0; r < call->comm->size && exchange->out != NULL; r++) {
        int64_t bytes = exchange->received[r + 1] - exchange->received[r], total, before;
        if (r == call->comm->rank || bytes == 0)
            continue;
        before = npci_before(exchange, r, &total);
        const unsigned char *from = met ? npci_met_data(call, r, total) : NULL;
        int status = met ? NPC_OK : npci_lent_input(call, r, &from);
        if (status != NPC_OK)
            return status;
        if (from != NULL)
            npci_result_copy(exchange->out + exchange->received[r], from + before, bytes, exchange->stream);
    }
    return NPC_OK;
}

static int npci_exchange_large(npci_exchange *exchange) {
    npci_call *call = exchange->call;
    bool lent = false;
    for (int r = 0; r < call->comm->size; r++)
        lent = lent || npci_met_aside(call, r)->input != 0;
    exchange->lends = npci_met_aside(call, call->comm->rank)->input != 0;
    exchange->stream = exchange->rows * exchange->row >= call->comm->stream;
    int status = npci_exchange_run(exchange);
    if (status == NPC_OK && lent)
        status = npci_exchange_fetch(exchange, false);
    if (exchange->stream)
        npci_stream_fence();
    return status == NPC_OK && lent ? npci_lend_end(call, exchange->lends) : status;
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
        status = npci_exchange_large(exchange);
    else
        status = npci_exchange_fetch(exchange, true);
    free(copy);
    return status != NPC_OK ? status : failure;
}

int npci_alltoall(npci_call *call) {
    npc_comm *comm = call->comm;
    npci_exchange exchange; /* 24 KB that are not zeroed */
    exchange.call = call;
    exchange.stream = exchange.lends = false;
    exchange.in = call->d.n_in > 0 ? call->d.in[0].data : NULL;
    exchange.piece = (int64_t)(comm->chunk / (size_t)comm->size) / NPCI_LINE * NPCI_LINE;
    npci_aside *aside = npci_meet_aside(call);
    bool divides = call->d.splits != NULL || call->shape[0] % comm->size == 0;
    aside->shape[0] = divides ? call->shape[0] : -1 - call->shape[0];
    for (int r = 0; r < comm->size; r++)
        aside->splits[r] = call->d.splits != NULL ? call->d.splits[r] : call->shape[0] / comm->size;
    npci_cursor in = npci_cursor_of(call->d.in, call->d.n_in, call->item);
    unsigned char *space = npci_meet_space(call, call->bytes, false);
    npci_lend(call, aside);
    if (space != NULL)
        npci_meet_stage(call, &in, space);
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
