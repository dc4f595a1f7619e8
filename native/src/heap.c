/* heap.c: communication memory: a part of the memory file for each rank, behind the area.
 *
 * 1. A rank gives out extents of its own part only, so no lock is shared between processes.
 * 2. An extent begins with a block header, which counts who refers to it, on any rank. Who lets go lowers the count and
 *    does nothing else; the owner takes back what nobody refers to before it gives out more, and when it lets go itself.
 * 3. Parts are mapped when they are first used. A second, read-only mapping, the view, is what results are read
 *    through: a program that writes to one anyway crashes instead of changing other ranks' data.
 * 4. Freed extents keep their pages for the next use, as many as are in use; beyond that they go back to the system. */
#include "npci_heap.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* Free pages that are always kept. */
#define NPCI_KEPT ((size_t)64 << 20)

typedef struct npci_extent {
    size_t at, bytes; /* within the part */
    struct npci_extent *next;
} npci_extent;

typedef struct npci_window {
    _Atomic(unsigned char *) memory, view;
} npci_window;

struct npci_heap {
    pthread_mutex_t mutex;
    size_t part, used, live, kept; /* bytes: of a part; ever given out; given out now; of free extents with pages */
    npci_extent *blocks, *free;    /* given out; free, by place */
    npci_window windows[];
};

int npci_heap_new(npc_comm *comm, npc_error *error) {
    npci_heap *heap = calloc(1, sizeof *heap + (size_t)comm->size * sizeof heap->windows[0]);
    if (heap == NULL)
        return npci_fail(error, NPC_ERR_MEMORY, "no memory for a communicator");
    pthread_mutex_init(&heap->mutex, NULL);
    heap->part = comm->area->heap;
    comm->heap = heap;
    return NPC_OK;
}

static void npci_extents_free(npci_extent *extent) {
    while (extent != NULL) {
        npci_extent *next = extent->next;
        free(extent);
        extent = next;
    }
}

void npci_heap_free(npc_comm *comm) {
    npci_heap *heap = comm->heap;
    if (heap == NULL)
        return;
    for (int r = 0; r < comm->size; r++) {
        npci_window *window = &heap->windows[r];
        unsigned char *memory = atomic_load_explicit(&window->memory, memory_order_relaxed);
        unsigned char *view = atomic_load_explicit(&window->view, memory_order_relaxed);
        if (memory != NULL)
            munmap(memory, heap->part);
        if (view != NULL)
            munmap(view, heap->part);
    }
    npci_extents_free(heap->blocks);
    npci_extents_free(heap->free);
    pthread_mutex_destroy(&heap->mutex);
    free(heap);
}

static unsigned char *npci_window_map(npc_comm *comm, int rank, bool view) {
    npci_heap *heap = comm->heap;
    _Atomic(unsigned char *) *slot = view ? &heap->windows[rank].view : &heap->windows[rank].memory;
    /* Acquire: pairs with the release of the thread that mapped it. */
    unsigned char *memory = atomic_load_explicit(slot, memory_order_acquire);
    if (memory != NULL || heap->part == 0)
        return memory;
    pthread_mutex_lock(&heap->mutex);
    memory = atomic_load_explicit(slot, memory_order_relaxed);
    if (memory == NULL) {
        off_t at = (off_t)(comm->layout.bytes + (size_t)rank * heap->part);
        void *made = mmap(NULL, heap->part, view ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                          comm->area_fd, at);
        if (made != MAP_FAILED) {
            memory = made;
            (void)madvise(made, heap->part, MADV_DONTDUMP); /* advice: all of it may be refused */
            (void)madvise(made, heap->part, MADV_HUGEPAGE);
            atomic_store_explicit(slot, memory, memory_order_release);
        }
    }
    pthread_mutex_unlock(&heap->mutex);
    return memory;
}

/* ---- places */

unsigned char *npci_heap_address(npc_comm *comm, uint64_t place, bool view) {
    npci_heap *heap = comm->heap;
    if (place <= comm->layout.bytes || heap->part == 0)
        return NULL;
    size_t at = (size_t)(place - 1) - comm->layout.bytes;
    int rank = (int)(at / heap->part);
    if (rank >= comm->size)
        return NULL;
    unsigned char *memory = npci_window_map(comm, rank, view);
    return memory != NULL ? memory + at % heap->part : NULL;
}

static uint64_t npci_window_place(npc_comm *comm, int rank, const unsigned char *window, const void *memory,
                                  int64_t bytes) {
    uintptr_t at = (uintptr_t)memory - (uintptr_t)window;
    if (window == NULL || at >= comm->heap->part || (size_t)bytes > comm->heap->part - at)
        return 0;
    return comm->layout.bytes + (size_t)rank * comm->heap->part + at + 1;
}

uint64_t npci_heap_place(npc_comm *comm, const void *memory, int64_t bytes, bool writable) {
    npci_window *own = &comm->heap->windows[comm->rank];
    uint64_t place = npci_window_place(comm, comm->rank, atomic_load_explicit(&own->memory, memory_order_acquire),
                                       memory, bytes);
    /* Shared results lie in rank 0's part. */
    if (place == 0 && !writable)
        place = npci_window_place(comm, 0, atomic_load_explicit(&comm->heap->windows[0].view, memory_order_acquire),
                                  memory, bytes);
    return place;
}

/* ---- extents; with the mutex held */

static void npci_extent_drop_pages(npc_comm *comm, const npci_extent *extent) {
    off_t at = (off_t)(comm->layout.bytes + (size_t)comm->rank * comm->heap->part + extent->at);
    if (fallocate(comm->area_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, (off_t)extent->bytes) == 0)
        comm->heap->kept -= comm->heap->kept < extent->bytes ? comm->heap->kept : extent->bytes;
}

/* npci_extent_return puts an extent among the free ones, in order, and joins it with its neighbours. */
static void npci_extent_return(npc_comm *comm, npci_extent *extent) {
    npci_heap *heap = comm->heap;
    heap->live -= extent->bytes;
    heap->kept += extent->bytes;
    if (heap->kept > NPCI_KEPT && heap->kept > heap->live)
        npci_extent_drop_pages(comm, extent);
    npci_extent **link = &heap->free, *before = NULL;
    while (*link != NULL && (*link)->at < extent->at) {
        before = *link;
        link = &before->next;
    }
    extent->next = *link;
    *link = extent;
    if (extent->next != NULL && extent->at + extent->bytes == extent->next->at) {
        npci_extent *next = extent->next;
        extent->bytes += next->bytes;
        extent->next = next->next;
        free(next);
    }
    if (before != NULL && before->at + before->bytes == extent->at) {
        before->bytes += extent->bytes;
        before->next = extent->next;
        free(extent);
    }
}

static void npci_heap_reclaim_locked(npc_comm *comm) {
    unsigned char *memory = atomic_load_explicit(&comm->heap->windows[comm->rank].memory, memory_order_relaxed);
    npci_extent **link = &comm->heap->blocks;
    while (*link != NULL) {
        npci_extent *extent = *link;
        npci_block *block = (npci_block *)(void *)(memory + extent->at);
        /* Acquire: what the others read there they have read. Pairs with npc_memory_release. */
        if (atomic_load_explicit(&block->references, memory_order_acquire) != 0) {
            link = &extent->next;
            continue;
        }
        *link = extent->next;
        npci_extent_return(comm, extent);
    }
}

void npci_heap_reclaim(npc_comm *comm) {
    pthread_mutex_lock(&comm->heap->mutex);
    npci_heap_reclaim_locked(comm);
    pthread_mutex_unlock(&comm->heap->mutex);
}

/* npci_extent_find takes the first free extent that is large enough, or a new one. */
static npci_extent *npci_extent_find(npci_heap *heap, size_t bytes) {
    npci_extent *extent = malloc(sizeof *extent);
    if (extent == NULL)
        return NULL;
    for (npci_extent **link = &heap->free; *link != NULL; link = &(*link)->next) {
        npci_extent *found = *link;
        if (found->bytes < bytes)
            continue;
        heap->kept -= heap->kept < bytes ? heap->kept : bytes;
        if (found->bytes == bytes) {
            *link = found->next;
            free(extent);
            return found;
        }
        *extent = (npci_extent){.at = found->at, .bytes = bytes};
        found->at += bytes;
        found->bytes -= bytes;
        return extent;
    }
    if (bytes > heap->part - heap->used) {
        free(extent);
        return NULL;
    }
    *extent = (npci_extent){.at = heap->used, .bytes = bytes};
    heap->used += bytes;
    return extent;
}

uint64_t npci_heap_take(npc_comm *comm, int64_t bytes, uint32_t references, unsigned char **memory) {
    npci_heap *heap = comm->heap;
    unsigned char *window = npci_window_map(comm, comm->rank, false);
    if (window == NULL || (size_t)bytes > heap->part)
        return 0;
    size_t rounded = ((size_t)bytes + NPCI_PAGE - 1) / NPCI_PAGE * NPCI_PAGE;
    pthread_mutex_lock(&heap->mutex);
    npci_heap_reclaim_locked(comm);
    npci_extent *extent = npci_extent_find(heap, rounded);
    if (extent != NULL) {
        npci_block *block = (npci_block *)(void *)(window + extent->at);
        /* Others learn of the block through a meeting, which publishes it. */
        atomic_store_explicit(&block->references, references, memory_order_relaxed);
        heap->live += rounded;
        extent->next = heap->blocks;
        heap->blocks = extent;
    }
    pthread_mutex_unlock(&heap->mutex);
    if (extent == NULL)
        return 0;
    *memory = window + extent->at;
    return comm->layout.bytes + (size_t)comm->rank * heap->part + extent->at + 1;
}
