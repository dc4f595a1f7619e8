/* lend.c: inputs and outputs in communication memory, which other ranks use where they lie.
 *
 * A rank tells in the meeting's aside where its input and output lie, if that is in communication memory. Others read
 * the input there instead of waiting until it is staged. A rank that has lent its input must not return before all have
 * read it: npci_lend_end. */
#include "npci_comm.h"

#include <stdio.h>

static bool npci_overlap(const npc_desc *d) {
    return d->n_out > 0 && d->n_in > 0 && d->out[0].data == d->in[0].data;
}

void npci_lend(npci_call *call, npci_aside *aside) {
    const npc_desc *d = &call->d;
    aside->input = aside->output = aside->result = 0;
    if (call->comm->size == 1)
        return;
    bool reads = d->kind != NPC_BROADCAST || d->root == call->comm->rank; /* others' inputs of a broadcast are ignored */
    if (d->n_in == 1 && reads)
        aside->input = npci_heap_place(call->comm, d->in[0].data, call->bytes, false);
    if (d->n_out == 1 && d->kind == NPC_ALLREDUCE)
        aside->output = npci_heap_place(call->comm, d->out[0].data, call->bytes, true);
    /* In place, an allreduce and a reduce write only what the writer alone reads, or write when all have read; the
     * root of a broadcast writes nothing. Others would change what is still to be read. */
    bool safe = d->kind == NPC_ALLREDUCE || d->kind == NPC_REDUCE || d->kind == NPC_BROADCAST;
    if (!safe && npci_overlap(d))
        aside->input = 0;
}

/* npci_lent_address maps what another rank lent. A rank that cannot has to end the call for all. */
static int npci_lent_address(npci_call *call, int rank, uint64_t place, unsigned char **address) {
    *address = NULL;
    if (place == 0)
        return NPC_OK;
    *address = npci_heap_address(call->comm, place, false);
    if (*address != NULL)
        return NPC_OK;
    char text[160];
    snprintf(text, sizeof text,
             "rank %d cannot map the communication memory of rank %d; it needs more address space (ulimit -v)",
             call->comm->rank, rank);
    return npci_end(call->comm, NPC_ERR_PEER_LOST, text, call->error);
}

int npci_lent_input(npci_call *call, int rank, const unsigned char **input) {
    unsigned char *address;
    int status = npci_lent_address(call, rank, npci_met_aside(call, rank)->input, &address);
    *input = address;
    return status;
}

int npci_lent_inputs(npci_call *call, const unsigned char **inputs, int *lenders) {
    *lenders = 0;
    for (int r = 0; r < call->comm->size; r++) {
        int status = npci_lent_input(call, r, &inputs[r]);
        if (status != NPC_OK)
            return status;
        *lenders += inputs[r] != NULL ? 1 : 0;
    }
    return NPC_OK;
}

int npci_lent_outputs(npci_call *call, unsigned char **outputs, bool *all) {
    *all = true;
    for (int r = 0; r < call->comm->size; r++)
        *all = *all && npci_met_aside(call, r)->output != 0;
    for (int r = 0; *all && r < call->comm->size; r++) {
        int status = npci_lent_address(call, r, npci_met_aside(call, r)->output, &outputs[r]);
        if (status != NPC_OK)
            return status;
    }
    return NPC_OK;
}

int npci_lend_end(npci_call *call, bool lent) {
    uint64_t rounds = ++call->lane->rounds;
    npci_advance_stage(call, NPCI_DRAINED, rounds);
    return lent ? npci_wait_all(call, NPCI_DRAINED, rounds) : NPC_OK;
}
