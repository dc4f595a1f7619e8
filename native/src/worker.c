/* worker.c: the engine's own threads. */
#include "npci_comm.h"

#include <signal.h>

/* Signals belong to the program's threads, so the worker starts with all of them blocked. */
int npci_worker_start(npc_comm *comm, pthread_t *thread, void *(*body)(void *), npc_error *error) {
    sigset_t all, before;
    sigfillset(&all);
    npci_comm_retain(comm);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(thread, NULL, body, comm);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0)
        return NPC_OK;
    npci_comm_release(comm);
    return npci_fail_errno(error, "starting a thread", code);
}

/* A callback of a worker may close the communicator; the worker cannot wait for itself. */
void npci_worker_join(pthread_t thread) {
    if (pthread_equal(thread, pthread_self()))
        pthread_detach(thread);
    else
        pthread_join(thread, NULL);
}
