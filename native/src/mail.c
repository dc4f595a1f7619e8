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

#include <sched.h>

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
            if (!late) {
                npci_item_forget(comm, item);
                npci_item_delist(comm->mail, item);
            }
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
        npci_item_forget(comm, item);
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
