/* npci_mail.h: what pipe.c offers mail.c. One thread at a time uses them (mail.c holds its mutex). */
#ifndef NPCI_MAIL_H
#define NPCI_MAIL_H

#include "npci_comm.h"

/* npci_pipe_write writes what there is room for, up to `bytes`, and returns how much that was. Never blocks. */
int64_t npci_pipe_write(npc_comm *comm, int to, const void *data, int64_t bytes);
/* npci_pipe_read reads what is there, up to `bytes`; data NULL drops it. Never blocks. */
int64_t npci_pipe_read(npc_comm *comm, int from, void *data, int64_t bytes);
int64_t npci_pipe_available(npc_comm *comm, int from);

#endif
