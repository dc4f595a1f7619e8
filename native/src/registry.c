/* registry.c: the open communicators of this process, and what happens to them in a forked child. */
#include "npci_comm.h"

#include <errno.h>
#include <unistd.h>

static struct {
    pthread_mutex_t mutex;
    npc_comm *first;
    bool watching; /* the fork handlers are installed */
} npci_registry = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void npci_registry_before_fork(void) {
    pthread_mutex_lock(&npci_registry.mutex);
}

static void npci_registry_after_fork(void) {
    pthread_mutex_unlock(&npci_registry.mutex);
}

/* The child gives up what would make it look like the rank: its copy of the liveness lock. All else stays as it is, and
 * every call is refused. */
static void npci_registry_in_child(void) {
    for (npc_comm *comm = npci_registry.first; comm != NULL; comm = comm->next) {
        atomic_store_explicit(&comm->forked, 1, memory_order_relaxed);
        int fd = atomic_exchange_explicit(&comm->lock_fd, -1, memory_order_relaxed);
        if (fd >= 0)
            close(fd);
    }
    pthread_mutex_unlock(&npci_registry.mutex);
}

int npci_registry_add(npc_comm *comm, npc_error *error) {
    int code = 0;
    pthread_mutex_lock(&npci_registry.mutex);
    if (!npci_registry.watching) {
        code = pthread_atfork(npci_registry_before_fork, npci_registry_after_fork, npci_registry_in_child);
        npci_registry.watching = code == 0;
    }
    if (code == 0) {
        comm->next = npci_registry.first;
        npci_registry.first = comm;
    }
    pthread_mutex_unlock(&npci_registry.mutex);
    return code == 0 ? NPC_OK : npci_fail_errno(error, "pthread_atfork", code);
}

void npci_registry_remove(npc_comm *comm) {
    pthread_mutex_lock(&npci_registry.mutex);
    for (npc_comm **at = &npci_registry.first; *at != NULL; at = &(*at)->next) {
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    }
    pthread_mutex_unlock(&npci_registry.mutex);
}

/* The newest with this id that is still open: where ranks are threads, several have the same. */
npc_comm *npci_registry_acquire(uint64_t id) {
    npc_comm *found = NULL;
    pthread_mutex_lock(&npci_registry.mutex);
    for (npc_comm *comm = npci_registry.first; comm != NULL && found == NULL; comm = comm->next) {
        if (comm->id == id && !atomic_load_explicit(&comm->closing, memory_order_relaxed))
            found = comm;
    }
    if (found != NULL)
        npci_comm_retain(found);
    pthread_mutex_unlock(&npci_registry.mutex);
    return found;
}
