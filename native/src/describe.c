/* describe.c: calls and ranks in words, for messages. */
#include "npci_comm.h"

#include <inttypes.h>
#include <stdio.h>

static bool npci_has_op(int kind) {
    return kind == NPC_ALLREDUCE || kind == NPC_REDUCE || kind == NPC_REDUCE_SCATTER;
}

static bool npci_has_root(int kind) {
    return kind == NPC_BROADCAST || kind == NPC_REDUCE || kind == NPC_GATHER || kind == NPC_SCATTER;
}

void npci_note_of(const npci_call *call, npci_note *note) {
    const npc_desc *d = &call->d;
    memset(note, 0, sizeof *note);
    note->kind = d->kind;
    note->dtype = d->dtype;
    note->op = d->op;
    note->root = d->root;
    note->tag = d->tag;
    note->ndim = d->ndim;
    memcpy(note->shape, call->shape, sizeof note->shape);
    note->key = d->key;
    note->number = call->number;
    note->detail = d->detail;
    note->prescale = d->prescale;
    note->postscale = d->postscale;
    note->shared = d->shared != NULL;
    if (d->name != NULL)
        snprintf(note->name, sizeof note->name, "%s", d->name);
}

static void npci_describe_shape(const npci_note *note, char *text, size_t room) {
    npci_append(text, room, "shape (");
    for (int i = 0; i < note->ndim && i < NPC_MAX_DIMS; i++)
        npci_append(text, room, i == 0 ? "%" PRId64 : ", %" PRId64, note->shape[i]);
    npci_append(text, room, note->ndim == 1 ? ",)" : ")");
}

void npci_describe(const npci_note *note, char *text, size_t room) {
    text[0] = '\0';
    npci_append(text, room, "%s", npc_kind_name(note->kind));
    if (note->name[0] != '\0')
        npci_append(text, room, " '%.*s'", NPCI_NAME, note->name);
    else if (note->key != 0)
        npci_append(text, room, " with key %016" PRIx64, note->key);
    else if (note->kind < NPC_SEND)
        npci_append(text, room, " #%" PRIu64, note->number);
    if (note->kind == NPC_BARRIER)
        return;
    if (note->kind == NPC_SEND || note->kind == NPC_RECV) {
        npci_append(text, room, " %s rank %d with tag %d", note->kind == NPC_SEND ? "to" : "from", note->root,
                    note->tag);
        if (note->dtype == 0)
            return;
        npci_append(text, room, " (%s, ", npc_dtype_name(note->dtype));
        npci_describe_shape(note, text, room);
        npci_append(text, room, ")");
        return;
    }
    npci_append(text, room, " (");
    if (note->dtype != 0) {
        npci_append(text, room, "%s, ", npc_dtype_name(note->dtype));
        npci_describe_shape(note, text, room);
        npci_append(text, room, npci_has_op(note->kind) || npci_has_root(note->kind) ? ", " : "");
    }
    if (npci_has_op(note->kind))
        npci_append(text, room, "%s%s", npc_op_name(note->op), note->kind == NPC_REDUCE ? ", " : "");
    if (npci_has_root(note->kind))
        npci_append(text, room, "root %d", note->root);
    if (note->prescale != 1.0)
        npci_append(text, room, ", prescale %g", note->prescale);
    if (note->postscale != 1.0)
        npci_append(text, room, ", postscale %g", note->postscale);
    if (note->shared)
        npci_append(text, room, ", shared result");
    npci_append(text, room, ")");
}

void npci_describe_call(const npci_call *call, char *text, size_t room) {
    npci_note note;
    npci_note_of(call, &note);
    npci_describe(&note, text, room);
}

void npci_describe_ranks(const bool *flags, int size, char *text, size_t room) {
    int total = 0, written = 0;
    for (int r = 0; r < size; r++)
        total += flags[r] ? 1 : 0;
    text[0] = '\0';
    npci_append(text, room, total == 1 ? "rank" : "ranks");
    for (int r = 0; r < size; r++) {
        if (!flags[r])
            continue;
        const char *before = written == 0 ? "" : written + 1 == total ? " and" : ",";
        npci_append(text, room, "%s %d", before, r);
        if (++written == 16 && total > 17) {
            npci_append(text, room, " and %d more", total - written);
            return;
        }
    }
}

/* Ranks that called the same thing share a line, so that the text stays short with many ranks. */
int npci_describe_mismatch(npc_error *error, int size, const npci_note *(*note)(const void *, int),
                           const void *context) {
    if (error == NULL)
        return NPC_ERR_MISMATCH;
    bool *told = calloc((size_t)size * 2, sizeof *told);
    npci_fail(error, NPC_ERR_MISMATCH, "the ranks disagree about a call (the communicator goes on):");
    if (told == NULL)
        return NPC_ERR_MISMATCH;
    bool *same = told + size;
    for (int r = 0; r < size; r++) {
        if (told[r])
            continue;
        char mine[512], theirs[512], ranks[128];
        npci_describe(note(context, r), mine, sizeof mine);
        for (int other = 0; other < size; other++) {
            npci_describe(note(context, other), theirs, sizeof theirs);
            same[other] = strcmp(mine, theirs) == 0 && note(context, r)->detail == note(context, other)->detail;
            told[other] = told[other] || same[other];
        }
        npci_describe_ranks(same, size, ranks, sizeof ranks);
        npci_append(error->text, sizeof error->text, "\n  %s: %s", ranks, mine);
        if (note(context, r)->detail != 0)
            npci_append(error->text, sizeof error->text, ", content %08" PRIx32,
                        (uint32_t)(note(context, r)->detail ^ note(context, r)->detail >> 32));
    }
    free(told);
    return NPC_ERR_MISMATCH;
}
