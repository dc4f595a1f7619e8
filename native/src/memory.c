/* memory.c: buffers in communication memory, and results that the engine provides.
 *
 * A block holds one buffer (npc_memory_new) or the buffers of one result, each on a cache line with its tag before it.
 * A shared result lies in rank 0's part; every rank writes its slice of it, reads it through its view, and releases
 * every buffer once. A result that is not worth sharing, or for which there is no room, is this process's own memory
 * with the same tags. Each buffer that is out holds a reference to the communicator, whose mappings it lies in. */
#include "npci_heap.h"

#include <sched.h>
#include <unistd.h>

static int64_t npci_lines(int64_t bytes) {
    return (bytes + NPCI_LINE - 1) / NPCI_LINE * NPCI_LINE;
}

/* npci_result_bytes is what the buffers of the result take with their tags, from the first buffer on. */
static int64_t npci_result_bytes(const npci_call *call) {
    int64_t total = 0;
    for (int i = 0; i < call->d.n_in; i++)
        total += npci_lines(call->d.in[i].count * (int64_t)call->item) + NPCI_LINE;
    return total;
}

/* npci_result_lay points `bufs` into memory whose first buffer is at `first`. */
static void npci_result_lay(const npci_call *call, unsigned char *first, npc_buf *bufs) {
    for (int i = 0; i < call->d.n_in; i++) {
        bufs[i] = (npc_buf){.data = first, .count = call->d.in[i].count};
        first += npci_lines(bufs[i].count * (int64_t)call->item) + NPCI_LINE;
    }
}

static void npci_tags_write(const npc_buf *bufs, int count, uint64_t place, npci_block *own) {
    for (int i = 0; i < count; i++) {
        npci_tag *tag = (npci_tag *)bufs[i].data - 1;
        tag->place = place;
        tag->own = own;
    }
}

uint64_t npci_result_place(npci_call *call) {
    unsigned char *memory;
    if (call->planned && call->d.shared[0].data != NULL)
        return call->place;
    uint32_t references = (uint32_t)call->comm->size * (uint32_t)call->d.n_in;
    uint64_t place = npci_heap_take(call->comm, NPCI_PAGE + npci_result_bytes(call), references, &memory);
    if (place == 0)
        return 0;
    npci_result_lay(call, memory + NPCI_PAGE, call->d.shared);
    npci_tags_write(call->d.shared, call->d.n_in, place, NULL);
    return place;
}

void npci_result_cancel(npci_call *call, uint64_t place) {
    unsigned char *memory = npci_heap_address(call->comm, place, false);
    if (memory == NULL || place == call->place)
        return;
    for (int i = 0; i < call->d.n_in; i++)
        call->d.shared[i].data = NULL;
    npci_block *block = (npci_block *)(void *)memory;
    atomic_store_explicit(&block->references, 0, memory_order_release);
    npci_heap_reclaim(call->comm);
}

static void npci_result_hold(npci_call *call) {
    for (int i = 0; i < call->d.n_in; i++)
        npci_comm_retain(call->comm);
}

int npci_result_own(npci_call *call) {
    if (call->planned && call->d.shared[0].data != NULL)
        return NPC_OK;
    int64_t bytes = 2 * NPCI_LINE + npci_result_bytes(call);
    unsigned char *memory = aligned_alloc(NPCI_LINE, (size_t)bytes);
    if (memory == NULL)
        return npci_fail(call->error, NPC_ERR_MEMORY, "allreduce: no memory for the result");
    npci_block *block = (npci_block *)(void *)memory;
    atomic_init(&block->references, (uint32_t)call->d.n_in);
    npci_result_lay(call, memory + 2 * NPCI_LINE, call->d.shared);
    npci_tags_write(call->d.shared, call->d.n_in, 0, block);
    npci_result_hold(call);
    return NPC_OK;
}

bool npci_result_lay_out(npci_call *call, uint64_t place, bool view) {
    unsigned char *memory = npci_heap_address(call->comm, place, view);
    if (memory == NULL)
        return false;
    npci_result_lay(call, memory + NPCI_PAGE, call->d.shared);
    if (view && call->place != place)
        npci_result_hold(call);
    if (view)
        call->place = place;
    return true;
}

int npc_memory_new(npc_comm *comm, int64_t bytes, void **data, npc_error *error) {
    unsigned char *memory;
    int64_t total;
    if (error != NULL)
        error->text[0] = '\0';
    if (comm == NULL || data == NULL || bytes < 0 || __builtin_add_overflow(bytes, (int64_t)NPCI_PAGE, &total))
        return npci_fail(error, NPC_ERR_ARGUMENT, "communication memory: the arguments are wrong");
    int status = npci_usable(comm, error);
    if (status != NPC_OK)
        return status;
    uint64_t place = npci_heap_take(comm, total, 1, &memory);
    if (place == 0)
        return npci_fail(error, NPC_ERR_MEMORY,
                         "no communication memory for %lld bytes: a rank may have %llu bytes, and needs as much address "
                         "space (ulimit -v) and room for such a file (ulimit -f)", (long long)bytes,
                         (unsigned long long)comm->area->heap);
    npc_buf buffer = {.data = memory + NPCI_PAGE, .count = bytes};
    npci_tags_write(&buffer, 1, place, NULL);
    npci_comm_retain(comm);
    *data = buffer.data;
    return NPC_OK;
}

void npc_memory_release(npc_comm *comm, void *data) {
    if (data == NULL || comm->pid != (int)getpid())
        return; /* a forked child shares the memory, but the counts are its parent's */
    const npci_tag *tag = (const npci_tag *)data - 1;
    npci_block *block = tag->own;
    if (tag->place != 0)
        block = (npci_block *)(void *)npci_heap_address(comm, tag->place, false);
    /* Release what this rank read; acquire what others did, before the memory is used again. */
    bool last = block != NULL && atomic_fetch_sub_explicit(&block->references, 1, memory_order_acq_rel) == 1;
    if (last && tag->place == 0)
        free(block);
    else if (last)
        npci_heap_reclaim(comm);
    npci_comm_release(comm);
}
