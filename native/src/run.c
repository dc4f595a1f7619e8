/* run.c: one call in its lane. */
#include "npci_comm.h"

static int npci_run_kind(npci_call *call) {
    switch ((npc_kind)call->d.kind) {
    case NPC_BARRIER: return npci_barrier(call);
    case NPC_ALLREDUCE: return npci_allreduce(call);
    case NPC_BROADCAST: return npci_broadcast(call);
    case NPC_ALLGATHER: return npci_allgather(call);
    case NPC_REDUCE_SCATTER: return npci_reduce_scatter(call);
    case NPC_ALLTOALL: return npci_alltoall(call);
    case NPC_REDUCE: return npci_reduce_to_root(call);
    case NPC_GATHER: return npci_gather(call);
    case NPC_SCATTER: return npci_scatter(call);
    case NPC_SEND:
    case NPC_RECV: break; /* they have no lane: mail.c */
    }
    return npci_fail(call->error, NPC_ERR_ARGUMENT, "%d is not the number of a collective", call->d.kind);
}

int npci_run(npci_call *call) {
    uint64_t before = call->lane->rounds;
    int status = npci_run_kind(call);
    /* Not every rank has a part in every stage of every collective (the root of a broadcast drains nothing). Later
     * calls wait by round number, so each rank says that it is past the rounds of this call; but not a rank that did not
     * get so far, as others would take what they wait for to be there. Each such end has ended or closed the
     * communicator; what fails on this rank alone fails after its part is done. */
    if (call->lane->rounds != before && (status == NPC_OK || npci_usable(call->comm, NULL) == NPC_OK)) {
        for (int stage = 0; stage < NPCI_STAGES; stage++) {
            npci_counter *counter = &call->lane->progress[call->comm->rank].stage[stage];
            if (atomic_load_explicit(&counter->value, memory_order_relaxed) < call->lane->rounds)
                npci_advance(counter, call->lane->rounds);
        }
    }
    return status;
}
