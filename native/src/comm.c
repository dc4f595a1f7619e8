/* comm.c: a communicator's life in this process. */
#include "npci_comm.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NPCI_TIMEOUT_MS INT64_C(1800000)

void npci_comm_retain(npc_comm *comm) {
    atomic_fetch_add_explicit(&comm->references, 1, memory_order_relaxed);
}

static void npci_comm_free(npc_comm *comm) {
    npci_heap_free(comm);
    npci_mail_free(comm);
    npci_keyed_free(comm);
    npci_queue_free(comm);
    if (comm->area != NULL)
        munmap(comm->area, comm->layout.bytes);
    int lock_fd = atomic_load_explicit(&comm->lock_fd, memory_order_relaxed);
    if (lock_fd >= 0)
        close(lock_fd);
    if (comm->area_fd >= 0)
        close(comm->area_fd);
    free(comm);
}

void npci_comm_release(npc_comm *comm) {
    /* Release what this thread did with it; acquire what the others did before the last one frees it. */
    if (atomic_fetch_sub_explicit(&comm->references, 1, memory_order_acq_rel) == 1)
        npci_comm_free(comm);
}

static int npci_comm_map(npc_comm *comm, int fd, npc_error *error) {
    struct stat info;
    npci_header header;
    if (fstat(fd, &info) != 0 || pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header)
        return npci_fail_errno(error, "reading the shared memory", errno);
    if (header.magic != NPCI_MAGIC || header.layout != NPCI_LAYOUT)
        return npci_fail(error, NPC_ERR_ARGUMENT, "the shared memory was made by another version of npucoll");
    if (header.size != (uint32_t)comm->size)
        return npci_fail(error, NPC_ERR_ARGUMENT, "the shared memory is for %u ranks, not for %d", header.size,
                         comm->size);
    comm->chunk = header.chunk;
    comm->middle = header.middle;
    comm->stream = (int64_t)header.stream;
    comm->group = (int)header.group;
    comm->layout = npci_layout_of(comm->size, comm->chunk, comm->middle, header.group);
    if (header.bytes != comm->layout.bytes || (uint64_t)info.st_size < header.bytes)
        return npci_fail(error, NPC_ERR_ARGUMENT, "the shared memory has an unexpected size");
    comm->area_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (comm->area_fd < 0)
        return npci_fail_errno(error, "duplicating a descriptor", errno);
    void *area = mmap(NULL, comm->layout.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, comm->area_fd, 0);
    if (area == MAP_FAILED)
        return npci_fail_errno(error, "mapping the shared memory", errno);
    comm->area = area;
    char *base = area;
    comm->members = (npci_member *)(void *)(base + comm->layout.members);
    for (int i = 0; i < NPCI_LANES; i++) {
        npci_lane *lane = &comm->lanes[i];
        const npci_lane_layout *layout = &comm->layout.lane[i];
        lane->progress = (npci_progress *)(void *)(base + layout->progress);
        lane->cells = (npci_cell *)(void *)(base + layout->cells);
        lane->groups = (unsigned char *)base + layout->groups;
        lane->asides = (unsigned char *)base + layout->asides;
        lane->notes = (npci_note *)(void *)(base + layout->notes);
        lane->middle = (unsigned char *)base + layout->middle;
        lane->staging = (unsigned char *)base + layout->staging;
    }
    return NPC_OK;
}

/* A second rank 0 in the same area must not start in the middle of the first one's counters. */
static int npci_comm_check_fresh(npc_comm *comm, npc_error *error) {
    if (atomic_load_explicit(&comm->members[comm->rank].presence, memory_order_acquire) == NPCI_AWAITED)
        return NPC_OK;
    return npci_fail(error, NPC_ERR_ARGUMENT, "rank %d of communicator '%s' is already taken by process %d", comm->rank,
                     comm->name, (int)atomic_load_explicit(&comm->members[comm->rank].pid, memory_order_relaxed));
}

static void npci_comm_tune(npc_comm *comm, const npc_options *options) {
    int sharing = options->ranks_on_host > 0 ? options->ranks_on_host : comm->size;
    comm->spins = sharing > npci_cores() ? 0 : 4000;
    comm->yields = 100;
    comm->timeout_ms = options->timeout_ms > 0 ? options->timeout_ms : NPCI_TIMEOUT_MS;
    comm->threads = options->threads != 0;
    comm->poll = options->poll;
    comm->kernels = npci_kernels_choose();
}

int npc_comm_open(int fd, int rank, int size, uint64_t id, const char *name, const npc_options *options,
                  npc_comm **out, npc_error *error) {
    npc_options given;
    if (error != NULL)
        error->text[0] = '\0';
    memset(&given, 0, sizeof given);
    if (options != NULL)
        memcpy(&given, options, options->size < sizeof given ? options->size : sizeof given);
    if (out == NULL || size < 1 || size > NPCI_MAX_RANKS || rank < 0 || rank >= size)
        return npci_fail(error, NPC_ERR_ARGUMENT, "rank %d of %d is not possible", rank, size);
    npc_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return npci_fail(error, NPC_ERR_MEMORY, "no memory for a communicator");
    atomic_init(&comm->references, 1);
    atomic_init(&comm->lock_fd, -1);
    comm->area_fd = -1;
    comm->rank = rank;
    comm->size = size;
    comm->id = id;
    comm->pid = (int)getpid();
    snprintf(comm->name, sizeof comm->name, "%s", name != NULL ? name : "");
    npci_comm_tune(comm, &given);
    int status = npci_comm_map(comm, fd, error);
    if (status == NPC_OK)
        status = npci_queue_new(comm, error);
    if (status == NPC_OK)
        status = npci_keyed_new(comm, error);
    if (status == NPC_OK)
        status = npci_mail_new(comm, error);
    if (status == NPC_OK)
        status = npci_heap_new(comm, error);
    if (status == NPC_OK)
        status = npci_comm_check_fresh(comm, error);
    if (status == NPC_OK)
        status = npci_liveness_take(comm, error);
    if (status != NPC_OK) {
        npci_comm_free(comm);
        return status;
    }
    status = npci_registry_add(comm, error);
    if (status != NPC_OK) {
        npci_liveness_drop(comm);
        npci_comm_free(comm);
        return status;
    }
    *out = comm;
    return NPC_OK;
}

void npc_comm_close(npc_comm *comm) {
    if (comm == NULL)
        return;
    if (atomic_load_explicit(&comm->forked, memory_order_relaxed))
        return; /* everything belongs to the parent, and other threads' locks may be held for ever */
    if (atomic_exchange_explicit(&comm->closing, 1, memory_order_acq_rel) == 0) {
        npci_registry_remove(comm);
        npci_wake_everybody(comm); /* this process's own sleepers are among them */
        npci_queue_close(comm);
        npci_keyed_close(comm);
        npci_mail_close(comm);
        npci_liveness_drop(comm);
        npci_wake_everybody(comm);
    }
    npci_comm_release(comm);
}

void npc_comm_abort(npc_comm *comm, const char *text) {
    char words[NPC_ERROR_TEXT];
    if (comm == NULL || npci_usable(comm, NULL) != NPC_OK)
        return;
    snprintf(words, sizeof words, "rank %d failed: %s", comm->rank, text != NULL ? text : "it gave no reason");
    npci_end(comm, NPC_ERR_PEER_LOST, words, NULL);
}

int npc_comm_rank(const npc_comm *comm) {
    return comm->rank;
}

int npc_comm_size(const npc_comm *comm) {
    return comm->size;
}

int npc_comm_ended(const npc_comm *comm, npc_error *error) {
    if (error != NULL)
        error->text[0] = '\0';
    return npci_usable((npc_comm *)comm, error);
}

uint64_t npc_comm_calls(const npc_comm *comm) {
    return atomic_load_explicit(&comm->calls, memory_order_relaxed);
}
