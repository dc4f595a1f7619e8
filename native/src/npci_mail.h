/* npci_mail.h: send and receive, shared by mail.c, inbox.c and pipe.c. All of it is done under the mail's mutex. */
#ifndef NPCI_MAIL_H
#define NPCI_MAIL_H

#include "npci_comm.h"

/* ---- pipe.c */
/* npci_pipe_write writes what there is room for, up to `bytes`, and returns how much that was. Never blocks. */
int64_t npci_pipe_write(npc_comm *comm, int to, const void *data, int64_t bytes);
/* npci_pipe_read reads what is there, up to `bytes`; data NULL drops it. Never blocks. */
int64_t npci_pipe_read(npc_comm *comm, int from, void *data, int64_t bytes);
int64_t npci_pipe_available(npc_comm *comm, int from);

/* npci_envelope goes before a message's bytes. */
typedef struct npci_envelope {
    uint64_t key;
    int64_t bytes, shape[NPC_MAX_DIMS];
    int32_t tag, dtype, ndim, unused;
} npci_envelope;

/* npci_item is a send or receive under way. */
typedef struct npci_item {
    npci_call *call;
    npc_request *request; /* NULL: a thread waits for `finished` */
    bool finished, headed; /* headed: the envelope has been written */
    int status;
    int64_t moved;
    struct npci_item *next;
} npci_item;

/* npci_parcel is a message that nobody had asked for when it came. */
typedef struct npci_parcel {
    npci_envelope envelope;
    unsigned char *data;
    struct npci_parcel *next;
} npci_parcel;

/* npci_inbox is what comes from one rank. */
typedef struct npci_inbox {
    bool open; /* an envelope has been read, and its message is coming in */
    npci_envelope envelope;
    int64_t moved;
    unsigned char *to;   /* NULL: the bytes are dropped */
    npci_item *item;     /* the receive that gets it; or */
    npci_parcel *parcel; /* what keeps it; or neither where its receive has failed */
    npci_parcel *first, *last;
} npci_inbox;

struct npci_mail {
    pthread_mutex_t mutex;
    npci_item *first, *last;
    npci_inbox *inboxes;
    bool started;
    pthread_t worker;
};

/* ---- inbox.c */
void npci_item_enlist(npci_mail *mail, npci_item *item);
void npci_item_delist(npci_mail *mail, npci_item *item);
/* npci_item_finish sets the item's result. A thread that waits for it is rung for, and the item is off the list. A
 * request stays on the list until npci_mail_deliver, which works outside the mutex. */
void npci_item_finish(npc_comm *comm, npci_item *item, int status);
/* npci_item_forget lets a message that is coming in for the item be dropped. */
void npci_item_forget(npc_comm *comm, const npci_item *item);
/* npci_inbox_advance takes in what has come from a rank; true: something moved. */
bool npci_inbox_advance(npc_comm *comm, int from);

#endif
