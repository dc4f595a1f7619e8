/* npci_keyed.h: named calls, shared by keyed.c and watch.c. */
#ifndef NPCI_KEYED_H
#define NPCI_KEYED_H

#include "npci_table.h"

struct npci_keyed {
    pthread_mutex_t mutex; /* guards all but `next` and `handover` */
    npc_request *waiting[NPCI_ENTRIES];
    npc_request *first, *last; /* those that wait for other ranks, oldest first, and those in the log */
    bool running;              /* there is a runner */
    bool started, stopped;
    pthread_t worker;
    uint64_t next;              /* the runner's place in the log */
    _Atomic uint32_t handover; /* a futex: grows when the worker may have something to do */
};

/* npci_keyed_watch looks after the calls that wait for other ranks: it ends the communicator where a deadline has
 * passed or a rank is gone. For the runner, about every 50 ms. */
void npci_keyed_watch(npc_comm *comm);

#endif
