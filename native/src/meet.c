/* meet.c: one synchronisation of all ranks in a lane, with a comparison of fingerprints and room for a little data.
 *
 * 1. Meeting n uses cell n mod 2 of each rank. A rank writes its fingerprint and data there, then stores n with
 *    release, then waits for n in everybody's cell.
 * 2. Nobody can write cell n + 2 before everybody has written n + 1, and nobody writes n + 1 before it has read all it
 *    wants of n: two cells are enough. The middle buffers and asides are doubled for the same reason.
 * 3. All ranks see the same fingerprints. If they differ, each rank writes a note of its call, they meet once more, and
 *    every rank writes the same text from the notes.
 * 4. Where p ranks are many, each would read p lines that p ranks write. So they meet in groups: the first rank of a group
 *    waits for its group's cells and writes the group's place: what the cells hold, packed. All wait for all groups'
 *    places, and who has seen a group's place has seen what its ranks wrote before. The places are doubled as cells are;
 *    2. holds for them too. */
#include "npci_comm.h"

static npci_cell *npci_cell_of(const npci_call *call, uint64_t sequence, int rank) {
    return &call->lane->cells[(sequence & 1) * (uint64_t)call->comm->size + (uint64_t)rank];
}

static unsigned char *npci_middle_of(const npci_call *call, uint64_t sequence, int rank) {
    uint64_t index = (sequence & 1) * (uint64_t)call->comm->size + (uint64_t)rank;
    return call->lane->middle + index * call->comm->middle;
}

static npci_aside *npci_aside_of(const npci_call *call, uint64_t sequence, int rank) {
    uint64_t index = (sequence & 1) * (uint64_t)call->comm->size + (uint64_t)rank;
    return (npci_aside *)(void *)(call->lane->asides + index * call->comm->layout.aside_bytes);
}

npci_group *npci_group_of(const npc_comm *comm, const npci_lane *lane, uint64_t sequence, int group) {
    size_t groups = (size_t)(comm->size + comm->group - 1) / (size_t)comm->group;
    size_t index = (size_t)(sequence & 1) * groups + (size_t)group;
    return (npci_group *)(void *)(lane->groups + index * comm->layout.group_bytes);
}

unsigned char *npci_meet_space(npci_call *call, int64_t bytes, bool alike) {
    call->packed = alike && bytes <= NPCI_PAYLOAD ? bytes : 0;
    uint64_t sequence = call->lane->sequence + 1;
    if (bytes <= NPCI_PAYLOAD)
        return npci_cell_of(call, sequence, call->comm->rank)->payload;
    if (bytes <= (int64_t)call->comm->middle)
        return npci_middle_of(call, sequence, call->comm->rank);
    return NULL;
}

const unsigned char *npci_met_data(const npci_call *call, int rank, int64_t bytes) {
    int group = call->comm->group;
    if (group > 0 && call->packed > 0)
        return npci_group_of(call->comm, call->lane, call->lane->sequence, rank / group)->data +
               rank % group * call->packed;
    if (bytes <= NPCI_PAYLOAD)
        return npci_cell_of(call, call->lane->sequence, rank)->payload;
    return npci_middle_of(call, call->lane->sequence, rank);
}

void npci_meet_stage(npci_call *call, npci_cursor *in, unsigned char *space) {
    if (call->bytes == 0)
        return;
    npci_stage_begin(call, call->bytes);
    npci_cursor_stage(in, call, 0, call->bytes, space);
    npci_stage_end(call, call->bytes);
}

npci_aside *npci_meet_aside(npci_call *call) {
    return npci_aside_of(call, call->lane->sequence + 1, call->comm->rank);
}

const npci_aside *npci_met_aside(const npci_call *call, int rank) {
    return npci_aside_of(call, call->lane->sequence, rank);
}

/* npci_await_cells waits for the ranks from `first` to before `last`, but for this one. */
static int npci_await_cells(npci_call *call, uint64_t sequence, int first, int last) {
    int rank = call->comm->rank, count = last - first;
    for (int i = 1; i < count; i++) {
        int peer = rank + i < last ? rank + i : rank + i - count;
        npci_cell *cell = npci_cell_of(call, sequence, peer);
        /* Acquire: pairs with the peer's npci_advance_word, so its fingerprint and data are visible. */
        if (atomic_load_explicit(&cell->sequence, memory_order_acquire) >= sequence)
            continue;
        int status = npci_wait_slow(call, peer, &cell->sequence, &call->lane->progress[peer].arrivals.waiters, sequence,
                                    -1);
        if (status != NPC_OK)
            return status;
    }
    return NPC_OK;
}

static void npci_group_fill(const npci_call *call, npci_group *group, uint64_t sequence, int first, int last) {
    group->fingerprint = npci_cell_of(call, sequence, first)->fingerprint;
    group->mixed = 0;
    for (int r = first; r < last; r++) {
        const npci_cell *cell = npci_cell_of(call, sequence, r);
        group->mixed |= cell->fingerprint != group->fingerprint;
        memcpy(group->data + (r - first) * call->packed, cell->payload, (size_t)call->packed);
    }
}

static int npci_await_groups(npci_call *call, uint64_t sequence) {
    npc_comm *comm = call->comm;
    int groups = (comm->size + comm->group - 1) / comm->group, mine = comm->rank / comm->group;
    int first = mine * comm->group, last = first + comm->group < comm->size ? first + comm->group : comm->size;
    if (comm->rank == first) {
        npci_group *group = npci_group_of(comm, call->lane, sequence, mine);
        int status = npci_await_cells(call, sequence, first, last);
        if (status != NPC_OK)
            return status;
        npci_group_fill(call, group, sequence, first, last);
        npci_advance_word(&group->sequence, sequence, &call->lane->progress[first].groups.waiters);
    }
    for (int i = 1; i <= groups; i++) {
        int number = mine + i < groups ? mine + i : mine + i - groups, peer = number * comm->group;
        npci_group *group = npci_group_of(comm, call->lane, sequence, number);
        /* Acquire: pairs with the npci_advance_word of the group's first rank. */
        if (atomic_load_explicit(&group->sequence, memory_order_acquire) >= sequence)
            continue;
        int status = npci_wait_slow(call, peer, &group->sequence, &call->lane->progress[peer].groups.waiters, sequence,
                                    -1);
        if (status != NPC_OK)
            return status;
    }
    return NPC_OK;
}

/* npci_arrive publishes this rank's cell and waits until all have done so. */
static int npci_arrive(npci_call *call, uint64_t fingerprint) {
    npc_comm *comm = call->comm;
    uint64_t sequence = ++call->lane->sequence;
    npci_cell *mine = npci_cell_of(call, sequence, comm->rank);
    mine->fingerprint = fingerprint;
    npci_stage_publish(call);
    npci_advance_word(&mine->sequence, sequence, &call->lane->progress[comm->rank].arrivals.waiters);
    return comm->group > 0 ? npci_await_groups(call, sequence) : npci_await_cells(call, sequence, 0, comm->size);
}

static bool npci_all_alike(const npci_call *call) {
    const npc_comm *comm = call->comm;
    uint64_t sequence = call->lane->sequence, fingerprint = call->fingerprint;
    bool alike = true;
    for (int r = 0; comm->group == 0 && r < comm->size; r++)
        alike = alike && npci_cell_of(call, sequence, r)->fingerprint == fingerprint;
    for (int r = 0; comm->group > 0 && r < comm->size; r += comm->group) {
        const npci_group *group = npci_group_of(comm, call->lane, sequence, r / comm->group);
        alike = alike && !group->mixed && group->fingerprint == fingerprint;
    }
    return alike;
}

static const npci_note *npci_lane_note(const void *context, int rank) {
    return (const npci_note *)context + rank;
}

static int npci_meet_mismatch(npci_call *call) {
    npci_note_of(call, &call->lane->notes[call->comm->rank]);
    int status = npci_arrive(call, 0);
    if (status != NPC_OK)
        return status;
    return npci_describe_mismatch(call->error, call->comm->size, npci_lane_note, call->lane->notes);
}

int npci_meet(npci_call *call) {
    int status = npci_arrive(call, call->fingerprint);
    if (status != NPC_OK)
        return status;
    return npci_all_alike(call) ? NPC_OK : npci_meet_mismatch(call);
}
