/* ended.c: a communicator ends once, for all ranks, and keeps the cause. */
#include "npci_comm.h"

#include <stdio.h>

void npci_wake_everybody(npc_comm *comm) {
    for (int lane = 0; lane < NPCI_LANES; lane++) {
        for (int r = 0; r < comm->size; r++) {
            npci_progress *progress = &comm->lanes[lane].progress[r];
            for (int stage = 0; stage < NPCI_STAGES; stage++) {
                if (atomic_load_explicit(&progress->stage[stage].waiters, memory_order_seq_cst) != 0)
                    npci_futex_wake(npci_low_half(&progress->stage[stage].value));
            }
            if (atomic_load_explicit(&progress->arrivals.waiters, memory_order_seq_cst) != 0) {
                npci_futex_wake(npci_low_half(&comm->lanes[lane].cells[r].sequence));
                npci_futex_wake(npci_low_half(&comm->lanes[lane].cells[comm->size + r].sequence));
            }
            if (comm->group > 0 && r % comm->group == 0 &&
                atomic_load_explicit(&progress->groups.waiters, memory_order_seq_cst) != 0) {
                npci_futex_wake(npci_low_half(&npci_group_of(comm, &comm->lanes[lane], 0, r / comm->group)->sequence));
                npci_futex_wake(npci_low_half(&npci_group_of(comm, &comm->lanes[lane], 1, r / comm->group)->sequence));
            }
        }
    }
    for (int r = 0; r < comm->size; r++) {
        npci_bell_ring(npci_log_bell(comm, r));
        npci_bell_ring(npci_mail_bell(comm, r));
    }
    npci_table *table = (npci_table *)((char *)comm->area + comm->layout.table);
    npci_futex_wake(&table->lock);
}

int npci_ended(npc_comm *comm, npc_error *error) {
    uint32_t ended = atomic_load_explicit(&comm->area->ended, memory_order_acquire);
    if (ended == 0)
        return NPC_OK;
    if (ended == NPCI_ENDING) {
        /* Somebody is writing the cause: a matter of microseconds, unless it dies there. */
        int64_t limit = npci_now() + 4 * NPCI_SLICE;
        while (ended == NPCI_ENDING && npci_now() < limit) {
            npci_futex_wait(&comm->area->ended, NPCI_ENDING, 1000000);
            ended = atomic_load_explicit(&comm->area->ended, memory_order_acquire);
        }
        if (ended == NPCI_ENDING)
            return npci_fail(error, NPC_ERR_PEER_LOST, "the communicator '%s' has ended; the rank that ended it died "
                             "before it wrote why", comm->name);
    }
    npci_fail(error, (int)ended, "%.*s", NPC_ERROR_TEXT - 1, comm->area->cause);
    return (int)ended;
}

int npci_end(npc_comm *comm, int status, const char *text, npc_error *error) {
    uint32_t expected = 0;
    if (atomic_compare_exchange_strong_explicit(&comm->area->ended, &expected, NPCI_ENDING, memory_order_acq_rel,
                                                memory_order_acquire)) {
        snprintf(comm->area->cause, sizeof comm->area->cause, "%s", text);
        /* Release: who sees the status sees the whole text. */
        atomic_store_explicit(&comm->area->ended, (uint32_t)status, memory_order_release);
        npci_futex_wake(&comm->area->ended);
        npci_wake_everybody(comm);
    }
    return npci_ended(comm, error);
}

int npci_usable(npc_comm *comm, npc_error *error) {
    if (atomic_load_explicit(&comm->forked, memory_order_relaxed))
        return npci_fail(error, NPC_ERR_FORKED,
                         "this process was forked from rank %d of communicator '%s'; npucoll works only in the process "
                         "that initialized it", comm->rank, comm->name);
    if (atomic_load_explicit(&comm->closing, memory_order_acquire))
        return npci_fail(error, NPC_ERR_CLOSED, "the communicator '%s' is closed", comm->name);
    return npci_ended(comm, error);
}
