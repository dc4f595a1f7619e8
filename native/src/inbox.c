/* inbox.c: what comes from other ranks, and which receive gets it. See mail.c for the rules. */
#include "npci_mail.h"

#include <inttypes.h>

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

void npci_item_enlist(npci_mail *mail, npci_item *item) {
    item->next = NULL;
    if (mail->first == NULL)
        mail->first = item;
    else
        mail->last->next = item;
    mail->last = item;
}

void npci_item_delist(npci_mail *mail, npci_item *item) {
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

void npci_item_finish(npc_comm *comm, npci_item *item, int status) {
    item->status = status;
    item->finished = true;
    if (item->request == NULL) {
        npci_item_delist(comm->mail, item);
        npci_bell_ring(npci_mail_bell(comm, comm->rank));
    }
}

void npci_item_forget(npc_comm *comm, const npci_item *item) {
    for (int r = 0; r < comm->size; r++) {
        npci_inbox *inbox = &comm->mail->inboxes[r];
        if (inbox->item == item) {
            inbox->item = NULL;
            inbox->to = NULL;
        }
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

bool npci_inbox_advance(npc_comm *comm, int from) {
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
