/* pipe.c: bytes from one rank to another, through a ring in shared memory with one writer and one reader. */
#include "npci_mail.h"

static npci_ring *npci_ring_of(npc_comm *comm, int from, int to) {
    size_t index = (size_t)from * (size_t)comm->size + (size_t)to;
    return (npci_ring *)(void *)((char *)comm->area + comm->layout.rings) + index;
}

static unsigned char *npci_ring_data(npc_comm *comm, int from, int to) {
    size_t index = (size_t)from * (size_t)comm->size + (size_t)to;
    return (unsigned char *)comm->area + comm->layout.ring_data + index * comm->layout.ring_bytes;
}

int64_t npci_pipe_write(npc_comm *comm, int to, const void *data, int64_t bytes) {
    npci_ring *ring = npci_ring_of(comm, comm->rank, to);
    uint64_t room = comm->layout.ring_bytes, written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    /* Acquire: the reader has finished with the bytes that are overwritten now. */
    uint64_t left = room - (written - atomic_load_explicit(&ring->read, memory_order_acquire));
    uint64_t count = (uint64_t)bytes < left ? (uint64_t)bytes : left, at = written % room;
    uint64_t first = count < room - at ? count : room - at;
    unsigned char *memory = npci_ring_data(comm, comm->rank, to);
    if (count == 0)
        return 0;
    npci_stream_copy(memory + at, data, (int64_t)first);
    npci_stream_copy(memory, (const unsigned char *)data + first, (int64_t)(count - first));
    npci_stream_fence();
    /* Release: the reader that sees the position sees the bytes. */
    atomic_store_explicit(&ring->written, written + count, memory_order_release);
    npci_bell_ring(npci_mail_bell(comm, to));
    return (int64_t)count;
}

int64_t npci_pipe_available(npc_comm *comm, int from) {
    npci_ring *ring = npci_ring_of(comm, from, comm->rank);
    return (int64_t)(atomic_load_explicit(&ring->written, memory_order_acquire) -
                     atomic_load_explicit(&ring->read, memory_order_relaxed));
}

int64_t npci_pipe_read(npc_comm *comm, int from, void *data, int64_t bytes) {
    npci_ring *ring = npci_ring_of(comm, from, comm->rank);
    uint64_t room = comm->layout.ring_bytes, read = atomic_load_explicit(&ring->read, memory_order_relaxed);
    uint64_t ready = (uint64_t)npci_pipe_available(comm, from), at = read % room;
    uint64_t count = (uint64_t)bytes < ready ? (uint64_t)bytes : ready, first = count < room - at ? count : room - at;
    const unsigned char *memory = npci_ring_data(comm, from, comm->rank);
    if (count == 0)
        return 0;
    if (data != NULL) {
        memcpy(data, memory + at, first);
        memcpy((unsigned char *)data + first, memory, count - first);
    }
    /* Release: the writer that sees the position may overwrite the bytes. */
    atomic_store_explicit(&ring->read, read + count, memory_order_release);
    npci_bell_ring(npci_mail_bell(comm, from));
    return (int64_t)count;
}
