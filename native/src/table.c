/* table.c: the lock, the entries and the log of named calls, in shared memory.
 *
 * A rank arrives at the oldest entry with its key where it has not arrived yet, or makes a new one; so a repeated key
 * is first in, first out. Whoever completes an entry appends it to the log. The log is the same on all ranks: it is the
 * order in which all of them run named calls. An entry is free again when all ranks have run it. */
#include "npci_table.h"

#include <sched.h>

#define NPCI_CONTENDED 0x80000000u

npci_table *npci_table_of(npc_comm *comm) {
    return (npci_table *)(void *)((char *)comm->area + comm->layout.table);
}

npci_entry *npci_entry_of(npc_comm *comm, uint32_t index) {
    return (npci_entry *)(void *)((char *)comm->area + comm->layout.entries + (index - 1) * comm->layout.entry_bytes);
}

/* A futex mutex (Drepper, "Futexes Are Tricky"), with the holder's rank in the word, so that the death of the holder
 * ends the communicator instead of blocking the others. */
int npci_table_lock(npc_comm *comm, npc_error *error) {
    _Atomic uint32_t *lock = &npci_table_of(comm)->lock;
    uint32_t mine = (uint32_t)comm->rank + 1, seen = 0;
    if (atomic_compare_exchange_strong_explicit(lock, &seen, mine, memory_order_acquire, memory_order_relaxed))
        return NPC_OK;
    /* It is held for less than a microsecond, so most waits are over before a sleep would begin. */
    for (int i = 0; i < 200; i++) {
        seen = 0;
        if (atomic_load_explicit(lock, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong_explicit(lock, &seen, mine, memory_order_acquire, memory_order_relaxed))
            return NPC_OK;
        if (comm->spins == 0 && i % 16 == 15)
            sched_yield();
        else
            npci_pause();
    }
    for (;;) {
        if (seen == 0) {
            /* Others may sleep: the word says so until this holder has woken one. */
            if (atomic_compare_exchange_strong_explicit(lock, &seen, mine | NPCI_CONTENDED, memory_order_acquire,
                                                        memory_order_relaxed))
                return NPC_OK;
            continue;
        }
        if ((seen & NPCI_CONTENDED) == 0 &&
            !atomic_compare_exchange_strong_explicit(lock, &seen, seen | NPCI_CONTENDED, memory_order_relaxed,
                                                     memory_order_relaxed))
            continue;
        npci_futex_wait(lock, seen | NPCI_CONTENDED, NPCI_SLICE);
        int holder = (int)(seen & ~NPCI_CONTENDED) - 1;
        seen = atomic_load_explicit(lock, memory_order_relaxed);
        if (seen == 0)
            continue;
        int status = npci_usable(comm, error);
        if (status != NPC_OK)
            return status;
        if ((int)(seen & ~NPCI_CONTENDED) - 1 == holder && npci_liveness_of(comm, holder) == NPCI_PEER_DEAD) {
            char text[128];
            snprintf(text, sizeof text, "rank %d is gone: it died while it entered a named call", holder);
            return npci_end(comm, NPC_ERR_PEER_LOST, text, error);
        }
    }
}

void npci_table_unlock(npc_comm *comm) {
    _Atomic uint32_t *lock = &npci_table_of(comm)->lock;
    if ((atomic_exchange_explicit(lock, 0, memory_order_release) & NPCI_CONTENDED) != 0)
        npci_futex_wake(lock);
}

static uint32_t npci_bucket_of(uint64_t key) {
    return (uint32_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 54) % NPCI_ENTRIES;
}

static uint32_t npci_entry_new(npc_comm *comm, uint64_t key) {
    npci_table *table = npci_table_of(comm);
    uint32_t index = table->free_head;
    if (index != 0)
        table->free_head = npci_entry_of(comm, index)->next;
    else if (table->used < NPCI_ENTRIES)
        index = ++table->used;
    else
        return 0;
    npci_entry *entry = npci_entry_of(comm, index), *last;
    atomic_store_explicit(&entry->finished, 0, memory_order_relaxed);
    entry->key = key;
    entry->next = 0;
    entry->arrived = 0;
    for (int r = 0; r < comm->size; r++)
        entry->arrivals[r].here = 0;
    uint32_t bucket = npci_bucket_of(key);
    if (table->head[bucket] == 0) {
        table->head[bucket] = index;
    } else {
        last = npci_entry_of(comm, table->tail[bucket]);
        last->next = index;
    }
    table->tail[bucket] = index;
    return index;
}

/* npci_entry_unlink takes a complete entry out of its bucket. */
static void npci_entry_unlink(npc_comm *comm, uint32_t index) {
    npci_table *table = npci_table_of(comm);
    npci_entry *entry = npci_entry_of(comm, index);
    uint32_t bucket = npci_bucket_of(entry->key), at = table->head[bucket], before = 0;
    while (at != index) {
        before = at;
        at = npci_entry_of(comm, at)->next;
    }
    if (before == 0)
        table->head[bucket] = entry->next;
    else
        npci_entry_of(comm, before)->next = entry->next;
    if (table->tail[bucket] == index)
        table->tail[bucket] = before;
    entry->next = 0;
}

uint32_t npci_table_arrive(npc_comm *comm, const npci_call *call) {
    npci_table *table = npci_table_of(comm);
    uint32_t index = table->head[npci_bucket_of(call->d.key)];
    while (index != 0) {
        npci_entry *entry = npci_entry_of(comm, index);
        if (entry->key == call->d.key && entry->arrivals[comm->rank].here == 0)
            break;
        index = entry->next;
    }
    if (index == 0)
        index = npci_entry_new(comm, call->d.key);
    if (index == 0)
        return 0;
    npci_entry *entry = npci_entry_of(comm, index);
    /* Acquire: pairs with npci_table_finish, so nobody reads the entry's earlier use any more. The lock orders this too,
     * but where another process has freed and made the entry, the thread sanitizer does not see it. */
    (void)atomic_load_explicit(&entry->finished, memory_order_acquire);
    npci_arrival *arrival = &entry->arrivals[comm->rank];
    arrival->fingerprint = call->fingerprint;
    npci_note_of(call, &arrival->note);
    arrival->here = 1;
    entry->arrived++;
    return index;
}

bool npci_table_complete(npc_comm *comm, uint32_t index) {
    npci_table *table = npci_table_of(comm);
    npci_entry *entry = npci_entry_of(comm, index);
    if (entry->arrived < (uint32_t)comm->size)
        return false;
    npci_entry_unlink(comm, index);
    /* At most NPCI_ENTRIES entries are in use, so the log's oldest place was run by all ranks long ago. */
    uint64_t end = atomic_load_explicit(&table->log_end, memory_order_relaxed);
    atomic_store_explicit(&table->log[end % NPCI_ENTRIES], index, memory_order_relaxed);
    /* Release: who sees the new end sees the entry and all arrivals. */
    atomic_store_explicit(&table->log_end, end + 1, memory_order_release);
    return true;
}

void npci_table_finish(npc_comm *comm, uint32_t index) {
    npci_entry *entry = npci_entry_of(comm, index);
    if (atomic_fetch_add_explicit(&entry->finished, 1, memory_order_acq_rel) + 1 < (uint32_t)comm->size)
        return;
    if (npci_table_lock(comm, NULL) != NPC_OK)
        return; /* the communicator has ended: nobody needs the entry any more */
    npci_table *table = npci_table_of(comm);
    entry->next = table->free_head;
    table->free_head = index;
    npci_table_unlock(comm);
}
