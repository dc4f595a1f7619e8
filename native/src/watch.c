/* watch.c: named calls that wait for ranks which have not made them yet. */
#include "npci_keyed.h"

/* npci_keyed_pending lists what each rank waits for, to show where the ranks parted. Under the table's lock. */
static void npci_keyed_pending(npc_comm *comm, char *text, size_t room) {
    npci_table *table = npci_table_of(comm);
    for (int r = 0; r < comm->size; r++) {
        int shown = 0, more = 0;
        for (uint32_t i = 1; i <= table->used; i++) {
            npci_entry *entry = npci_entry_of(comm, i);
            char what[256];
            if (entry->arrived == 0 || entry->arrived == (uint32_t)comm->size || entry->arrivals[r].here == 0)
                continue;
            if (shown == 4) {
                more++;
                continue;
            }
            npci_describe(&entry->arrivals[r].note, what, sizeof what);
            if (shown++ == 0)
                npci_append(text, room, "\n  rank %d waits in %s", r, what);
            else
                npci_append(text, room, ", %s", what);
        }
        if (more > 0)
            npci_append(text, room, " and %d more", more);
        if (shown == 0)
            npci_append(text, room, "\n  rank %d waits in no named call", r);
    }
}

static void npci_keyed_expire(npc_comm *comm, npc_request *request) {
    char what[512], text[NPC_ERROR_TEXT], ranks[256];
    bool missing[NPCI_MAX_RANKS];
    npci_entry *entry = npci_entry_of(comm, request->entry);
    if (npci_table_lock(comm, NULL) != NPC_OK)
        return;
    if (entry->arrived < (uint32_t)comm->size) {
        for (int r = 0; r < comm->size; r++)
            missing[r] = entry->arrivals[r].here == 0;
        npci_describe_ranks(missing, comm->size, ranks, sizeof ranks);
        npci_describe_call(&request->call, what, sizeof what);
        snprintf(text, sizeof text, "%s of communicator '%s': rank %d waited %.1f seconds for %s to make this call",
                 what, comm->name, comm->rank, (double)(npci_now() - request->call.started) * 1e-9, ranks);
        npci_keyed_pending(comm, text, sizeof text);
        npci_table_unlock(comm);
        npci_end(comm, NPC_ERR_TIMEOUT, text, NULL);
        return;
    }
    npci_table_unlock(comm);
}

void npci_keyed_watch(npc_comm *comm) {
    npci_keyed *keyed = comm->keyed;
    npc_request *expired = NULL, *oldest;
    int64_t now = npci_now();
    pthread_mutex_lock(&keyed->mutex);
    oldest = keyed->first;
    for (npc_request *at = keyed->first; at != NULL && expired == NULL; at = at->next)
        expired = now >= at->call.deadline ? at : NULL;
    pthread_mutex_unlock(&keyed->mutex);
    if (expired != NULL)
        npci_keyed_expire(comm, expired);
    for (int r = 0; r < comm->size && oldest != NULL; r++) {
        int presence = npci_liveness_of(comm, r);
        if (presence == NPCI_PEER_HERE)
            continue;
        /* The rank is gone. Any call that it has not arrived at can no longer complete. */
        npci_call lost;
        bool found = false;
        if (npci_table_lock(comm, NULL) != NPC_OK)
            return;
        pthread_mutex_lock(&keyed->mutex);
        for (npc_request *at = keyed->first; at != NULL && !found; at = at->next) {
            found = npci_entry_of(comm, at->entry)->arrivals[r].here == 0;
            if (found) {
                lost = at->call;
                lost.error = NULL;
                npci_wait_lost(&lost, r, presence);
            }
        }
        pthread_mutex_unlock(&keyed->mutex);
        npci_table_unlock(comm);
    }
}
