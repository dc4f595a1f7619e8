/* mail.c: send and receive between two ranks.
 *
 * 1. A message is a header and its bytes, in the ring from sender to receiver (pipe.c). A send is complete when the
 *    ring has taken all of it.
 * 2. Every call, blocking or submitted, is an item of one list. Whoever waits (a caller, or the worker for submitted
 *    calls) takes the mutex, moves all items along as far as they go, and sleeps on the rank's bell otherwise.
 * 3. A message goes to the oldest receive with its tag and key. One that nobody has asked for yet is kept aside only
 *    where it stands in the way: of a message behind it that somebody waits for, or of a send of this rank, because
 *    two ranks that both send first would wait for each other for ever. */
#include "npci_mail.h"

#include <inttypes.h>
#include <sched.h>

typedef struct npci_envelope {
    uint64_t key;
    int64_t bytes, shape[NPC_MAX_DIMS];
    int32_t tag, dtype, ndim, unused;
} npci_envelope;

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

int npci_mail_new(npc_comm *comm, npc_error *error) {
    npci_mail *mail = calloc(1, sizeof *mail);
    npci_inbox *inboxes = calloc((size_t)comm->size, sizeof *inboxes);
    if (mail == NULL || inboxes == NULL) {
        free(mail);
        free(inboxes);
        return npci_fail(error, NPC_ERR_MEMORY, "no memory for a communicator");
    }
    mail->inboxes = inboxes;
    pthread_mutex_init(&mail->mutex, NULL);
    comm->mail = mail;
    return NPC_OK;
}

void npci_mail_free(npc_comm *comm) {
    npci_mail *mail = comm->mail;
    if (mail == NULL)
        return;
    for (int r = 0; r < comm->size; r++) {
        npci_inbox *inbox = &mail->inboxes[r];
        if (inbox->parcel != NULL) {
            free(inbox->parcel->data);
            free(inbox->parcel);
        }
        while (inbox->first != NULL) {
            npci_parcel *parcel = inbox->first;
            inbox->first = parcel->next;
            free(parcel->data);
            free(parcel);
        }
    }
    pthread_mutex_destroy(&mail->mutex);
    free(mail->inboxes);
    free(mail);
}

static void npci_item_enlist(npci_mail *mail, npci_item *item) {
    item->next = NULL;
    if (mail->first == NULL)
        mail->first = item;
    else
        mail->last->next = item;
    mail->last = item;
}

static void npci_item_delist(npci_mail *mail, npci_item *item) {
    npci_item *before = NULL;
    for (npci_item *at = mail->first; at != item; at = at->next)
        before = at;
    if (before == NULL)
        mail->first = item->next;
    else
        before->next = item->next;
    if (mail->last == item)
        mail->last = before;
}

/* npci_item_finish takes the item off the list. A thread that waits for it is rung for; a request is completed by
 * npci_mail_deliver, outside the mutex. */
static void npci_item_finish(npc_comm *comm, npci_item *item, int status) {
    item->status = status;
    item->finished = true;
    if (item->request == NULL) {
        npci_item_delist(comm->mail, item);
        npci_bell_ring(npci_mail_bell(comm, comm->rank));
    }
}

static bool npci_item_wants(const npci_item *item, int from, const npci_envelope *envelope) {
    const npc_desc *d = &item->call->d;
    return d->kind == NPC_RECV && !item->finished && d->root == from && d->tag == envelope->tag &&
           d->key == envelope->key;
}

/* npci_item_accept decides where a message's bytes go for this receive; a status other than NPC_OK is the receive's
 * result once the message has been taken. */
static int npci_item_accept(npci_item *item, const npci_envelope *envelope, unsigned char **to) {
    npci_call *call = item->call;
    int failure;
    *to = NULL;
    size_t item_bytes = npc_dtype_size(envelope->dtype);
    bool fits = call->d.n_out != 1 || call->d.out[0].count * (int64_t)item_bytes == envelope->bytes;
    if ((call->d.dtype != 0 && call->d.dtype != envelope->dtype) || !fits) {
        npci_note sent = {.kind = NPC_SEND, .dtype = envelope->dtype, .root = call->comm->rank, .tag = envelope->tag,
                          .ndim = envelope->ndim};
        char theirs[512], mine[512];
        memcpy(sent.shape, envelope->shape, sizeof sent.shape);
        npci_describe(&sent, theirs, sizeof theirs);
        npci_describe_call(call, mine, sizeof mine);
        return npci_fail(call->error, NPC_ERR_MISMATCH,
                         "rank %d called %s, but rank %d called %s with room for %" PRId64 " elements", call->d.root,
                         theirs, call->comm->rank, mine, call->d.n_out == 1 ? call->d.out[0].count : -1);
    }
    call->d.dtype = envelope->dtype;
    call->item = item_bytes;
    *to = npci_output_at(call, envelope->ndim, envelope->shape, NULL, &failure);
    return failure;
}

static npci_item *npci_mail_find(npci_mail *mail, int from, const npci_envelope *envelope) {
    for (npci_item *item = mail->first; item != NULL; item = item->next) {
        if (npci_item_wants(item, from, envelope))
            return item;
    }
    return NULL;
}

/* npci_inbox_keep gives kept messages to receives that want them now. */
static void npci_inbox_keep(npc_comm *comm, int from) {
    npci_inbox *inbox = &comm->mail->inboxes[from];
    npci_parcel *before = NULL;
    for (npci_parcel *parcel = inbox->first; parcel != NULL;) {
        npci_item *item = npci_mail_find(comm->mail, from, &parcel->envelope);
        npci_parcel *next = parcel->next;
        if (item == NULL) {
            before = parcel;
        } else {
            unsigned char *to;
            int status = npci_item_accept(item, &parcel->envelope, &to);
            if (to != NULL && parcel->envelope.bytes > 0)
                memcpy(to, parcel->data, (size_t)parcel->envelope.bytes);
            npci_item_finish(comm, item, status);
            if (before == NULL)
                inbox->first = next;
            else
                before->next = next;
            if (inbox->last == parcel)
                inbox->last = before;
            free(parcel->data);
            free(parcel);
        }
        parcel = next;
    }
}

/* npci_inbox_open reads the next envelope and decides where its message goes. False: nothing to read yet. */
static bool npci_inbox_open(npc_comm *comm, int from) {
    npci_inbox *inbox = &comm->mail->inboxes[from];
    if (npci_pipe_available(comm, from) < (int64_t)sizeof inbox->envelope)
        return false;
    npci_pipe_read(comm, from, &inbox->envelope, sizeof inbox->envelope);
    inbox->open = true;
    inbox->moved = 0;
    inbox->parcel = NULL;
    inbox->item = npci_mail_find(comm->mail, from, &inbox->envelope);
    if (inbox->item != NULL) {
        inbox->item->status = npci_item_accept(inbox->item, &inbox->envelope, &inbox->to);
        return true;
    }
    inbox->parcel = calloc(1, sizeof *inbox->parcel);
    inbox->to = inbox->parcel != NULL ? malloc((size_t)inbox->envelope.bytes + 1) : NULL;
    if (inbox->to == NULL) {
        free(inbox->parcel);
        inbox->parcel = NULL;
        npci_end(comm, NPC_ERR_PEER_LOST, "a rank has no memory to keep a message that nobody receives", NULL);
        return false;
    }
    inbox->parcel->envelope = inbox->envelope;
    inbox->parcel->data = inbox->to;
    return true;
}

static bool npci_inbox_wanted(npci_mail *mail, int from) {
    for (npci_item *item = mail->first; item != NULL; item = item->next) {
        if (!item->finished && (item->call->d.kind == NPC_SEND || item->call->d.root == from))
            return true;
    }
    return false;
}

static bool npci_inbox_advance(npc_comm *comm, int from) {
    npci_inbox *inbox = &comm->mail->inboxes[from];
    bool progress = false;
    npci_inbox_keep(comm, from);
    while (inbox->open || (npci_inbox_wanted(comm->mail, from) && npci_inbox_open(comm, from))) {
        int64_t left = inbox->envelope.bytes - inbox->moved;
        int64_t moved = npci_pipe_read(comm, from, inbox->to != NULL ? inbox->to + inbox->moved : NULL, left);
        inbox->moved += moved;
        progress = progress || moved > 0;
        if (moved < left)
            return progress;
        inbox->open = false;
        progress = true;
        if (inbox->item != NULL) {
            npci_item_finish(comm, inbox->item, inbox->item->status);
        } else if (inbox->parcel != NULL) {
            if (inbox->first == NULL)
                inbox->first = inbox->parcel;
            else
                inbox->last->next = inbox->parcel;
            inbox->last = inbox->parcel;
            npci_inbox_keep(comm, from);
        }
        inbox->item = NULL;
        inbox->parcel = NULL;
    }
    return progress;
}

static bool npci_send_advance(npc_comm *comm, npci_item *item) {
    npci_call *call = item->call;
    bool progress = false;
    if (!item->headed) {
        npci_envelope envelope;
        memset(&envelope, 0, sizeof envelope);
        envelope.key = call->d.key;
        envelope.bytes = call->bytes;
        memcpy(envelope.shape, call->shape, sizeof envelope.shape);
        envelope.tag = call->d.tag;
        envelope.dtype = call->d.dtype;
        envelope.ndim = call->d.ndim;
        /* In pieces where the ring is almost full; `moved` counts from the envelope's first byte until it is out. */
        item->moved += npci_pipe_write(comm, call->d.root, (unsigned char *)&envelope + item->moved,
                                       (int64_t)sizeof envelope - item->moved);
        if (item->moved < (int64_t)sizeof envelope)
            return false;
        item->headed = progress = true;
        item->moved = 0;
    }
    if (item->moved < call->bytes) {
        int64_t moved = npci_pipe_write(comm, call->d.root, (const unsigned char *)call->d.in[0].data + item->moved,
                                        call->bytes - item->moved);
        item->moved += moved;
        progress = progress || moved > 0;
    }
    if (item->moved == call->bytes) {
        npci_item_finish(comm, item, NPC_OK);
        progress = true;
    }
    return progress;
}

/* npci_mail_advance moves everything along, under the mutex. Messages to one rank go out one after the other. */
static bool npci_mail_advance(npc_comm *comm) {
    npci_mail *mail = comm->mail;
    bool progress = false;
    for (npci_item *item = mail->first, *next; item != NULL; item = next) {
        bool first = !item->finished && item->call->d.kind == NPC_SEND;
        next = item->next;
        for (npci_item *before = mail->first; first && before != item; before = before->next)
            first = before->finished || before->call->d.kind != NPC_SEND || before->call->d.root != item->call->d.root;
        if (first)
            progress = npci_send_advance(comm, item) || progress;
    }
    for (int r = 0; r < comm->size; r++)
        progress = npci_inbox_advance(comm, r) || progress;
    return progress;
}

/* npci_item_drop forgets an item whose wait has failed; a message that was coming in for it is dropped. */
static void npci_item_drop(npc_comm *comm, npci_item *item) {
    for (int r = 0; r < comm->size; r++) {
        npci_inbox *inbox = &comm->mail->inboxes[r];
        if (inbox->item == item) {
            inbox->item = NULL;
            inbox->to = NULL;
        }
    }
    npci_item_delist(comm->mail, item);
}

/* npci_item_check looks for reasons to give the item up. */
static int npci_item_check(npci_item *item) {
    npci_call *call = item->call;
    npc_comm *comm = call->comm;
    int status = npci_wait_check(call);
    if (status == NPCI_EXPIRED) {
        bool missing[NPCI_MAX_RANKS];
        for (int r = 0; r < comm->size; r++)
            missing[r] = r == call->d.root;
        return npci_wait_expired(call, missing);
    }
    return status;
}

static int npci_mail_wait(npc_comm *comm, npci_item *item) {
    npci_bell *bell = npci_mail_bell(comm, comm->rank);
    int idle = 0, busy = comm->spins / 8 + comm->yields, gone = 0;
    npci_clock_start(item->call);
    for (;;) {
        uint32_t seen = npci_bell_read(bell);
        pthread_mutex_lock(&comm->mail->mutex);
        bool progress = item->finished || npci_mail_advance(comm);
        bool finished = item->finished;
        pthread_mutex_unlock(&comm->mail->mutex);
        if (finished)
            return item->status;
        if (progress) {
            idle = 0;
            continue;
        }
        if (++idle < busy) {
            if (idle >= comm->spins / 8)
                sched_yield();
            else
                npci_pause();
            continue;
        }
        int status = npci_item_check(item);
        if (status == NPC_OK && gone != NPCI_PEER_HERE)
            status = npci_wait_lost(item->call, item->call->d.root, gone);
        if (status != NPC_OK) {
            pthread_mutex_lock(&comm->mail->mutex);
            bool late = item->finished;
            if (!late)
                npci_item_drop(comm, item);
            pthread_mutex_unlock(&comm->mail->mutex);
            return late ? item->status : status;
        }
        /* What a peer wrote before it went still counts: one more look after its death. */
        gone = npci_liveness_of(comm, item->call->d.root);
        if (gone == NPCI_PEER_HERE)
            npci_bell_sleep(bell, seen, NPCI_SLICE);
    }
}

int npci_mail_run(npci_call *call) {
    npc_comm *comm = call->comm;
    npci_item item = {.call = call};
    pthread_mutex_lock(&comm->mail->mutex);
    npci_item_enlist(comm->mail, &item);
    pthread_mutex_unlock(&comm->mail->mutex);
    return npci_mail_wait(comm, &item);
}

/* npci_mail_deliver completes the requests whose items are finished. */
static void npci_mail_deliver(npc_comm *comm) {
    npci_mail *mail = comm->mail;
    for (;;) {
        pthread_mutex_lock(&mail->mutex);
        npci_item *item = mail->first;
        while (item != NULL && !(item->finished && item->request != NULL))
            item = item->next;
        if (item != NULL)
            npci_item_delist(mail, item);
        pthread_mutex_unlock(&mail->mutex);
        if (item == NULL)
            return;
        npci_request_complete(item->request, item->status);
        free(item);
    }
}

/* npci_mail_watch gives up submitted items that can no longer finish. */
static void npci_mail_watch(npc_comm *comm, bool *empty) {
    npci_mail *mail = comm->mail;
    pthread_mutex_lock(&mail->mutex);
    *empty = true;
    for (npci_item *item = mail->first; item != NULL; item = item->next) {
        if (item->request == NULL || item->finished)
            continue;
        *empty = false;
        int presence = npci_liveness_of(comm, item->call->d.root), status = npci_item_check(item);
        if (status == NPC_OK && presence != NPCI_PEER_HERE && !npci_mail_advance(comm))
            status = npci_wait_lost(item->call, item->call->d.root, presence);
        if (status == NPC_OK || item->finished)
            continue;
        item->status = status;
        item->finished = true;
        for (int r = 0; r < comm->size; r++) {
            npci_inbox *inbox = &mail->inboxes[r];
            if (inbox->item == item) {
                inbox->item = NULL;
                inbox->to = NULL;
            }
        }
    }
    pthread_mutex_unlock(&mail->mutex);
}

static void *npci_mail_work(void *argument) {
    npc_comm *comm = argument;
    npci_bell *bell = npci_mail_bell(comm, comm->rank);
    int idle = 0;
    for (;;) {
        uint32_t seen = npci_bell_read(bell);
        bool closing = atomic_load_explicit(&comm->closing, memory_order_acquire), empty = false;
        pthread_mutex_lock(&comm->mail->mutex);
        bool progress = !closing && npci_mail_advance(comm);
        pthread_mutex_unlock(&comm->mail->mutex);
        npci_mail_deliver(comm);
        if (progress)
            idle = 0;
        else if (!closing && ++idle < comm->yields)
            sched_yield();
        else {
            npci_mail_watch(comm, &empty);
            npci_mail_deliver(comm);
            if (closing)
                break;
            npci_bell_sleep(bell, seen, empty ? -1 : NPCI_SLICE);
        }
    }
    npci_comm_release(comm);
    return NULL;
}

int npci_mail_submit(npci_call *call, npc_done_fn done, void *user, npc_request **out) {
    npc_comm *comm = call->comm;
    npci_mail *mail = comm->mail;
    npc_request *request;
    npci_item *item = calloc(1, sizeof *item);
    if (item == NULL)
        return npci_fail(call->error, NPC_ERR_MEMORY, "no memory for a submitted call");
    npci_clock_start(call);
    int status = npci_request_new(&request, call, done, user, call->error);
    if (status != NPC_OK) {
        free(item);
        return status;
    }
    pthread_mutex_lock(&mail->mutex);
    if (atomic_load_explicit(&comm->closing, memory_order_relaxed))
        status = npci_fail(call->error, NPC_ERR_CLOSED, "the communicator '%s' is closed", comm->name);
    if (status == NPC_OK && !mail->started) {
        status = npci_worker_start(comm, &mail->worker, npci_mail_work, call->error);
        mail->started = status == NPC_OK;
    }
    if (status == NPC_OK) {
        item->call = &request->call;
        item->request = request;
        if (out != NULL)
            *out = request;
        npci_item_enlist(mail, item);
    }
    pthread_mutex_unlock(&mail->mutex);
    if (status != NPC_OK) {
        free(item);
        atomic_store_explicit(&request->references, 1, memory_order_relaxed);
        npci_request_release(request);
        return status;
    }
    npci_bell_ring(npci_mail_bell(comm, comm->rank));
    return NPC_OK;
}

void npci_mail_close(npc_comm *comm) {
    npci_mail *mail = comm->mail;
    pthread_mutex_lock(&mail->mutex);
    bool started = mail->started;
    mail->started = false;
    pthread_mutex_unlock(&mail->mutex);
    npci_bell_ring(npci_mail_bell(comm, comm->rank));
    if (started)
        npci_worker_join(mail->worker);
}
