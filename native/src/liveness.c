/* liveness.c: whether a rank's process still exists.
 *
 * Each rank holds a lock on byte `rank` of the memory file, for as long as its process lives: the kernel drops it when
 * the process ends, however it ends. It is an open-file-description lock (F_OFD_SETLK) on a description of the rank's
 * own, which nothing else uses: the classic record lock would be lost as soon as any descriptor of the file was closed
 * in this process, and the descriptor that came over the socket is shared by all ranks. A forked child closes its copy
 * at once (registry.c), so it does not keep its parent alive. Without /proc or such locks, the pid is asked for. */
#include "npci_comm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#ifndef F_OFD_GETLK /* the headers of glibc 2.17 do not know them; kernels since 3.15 do */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

static struct flock npci_lock_byte(int rank) {
    struct flock lock;
    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return lock;
}

int npci_liveness_take(npc_comm *comm, npc_error *error) {
    npci_member *me = &comm->members[comm->rank];
    if (!comm->threads) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", comm->area_fd);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        struct flock lock = npci_lock_byte(comm->rank);
        if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) != 0) {
            int code = errno;
            close(fd);
            fd = -1;
            if (code == EAGAIN || code == EACCES)
                return npci_fail(error, NPC_ERR_ARGUMENT, "rank %d of communicator '%s' is already taken by process %d",
                                 comm->rank, comm->name, (int)atomic_load_explicit(&me->pid, memory_order_relaxed));
        }
        atomic_store_explicit(&comm->lock_fd, fd, memory_order_relaxed);
    } else if (atomic_load_explicit(&me->presence, memory_order_acquire) == NPCI_HERE) {
        return npci_fail(error, NPC_ERR_ARGUMENT, "rank %d of communicator '%s' is already taken in this process",
                         comm->rank, comm->name);
    }
    atomic_store_explicit(&me->pid, (int32_t)getpid(), memory_order_relaxed);
    /* Release: who sees the rank here sees its pid, and asks for a lock that is held already. */
    atomic_store_explicit(&me->presence, NPCI_HERE, memory_order_release);
    return NPC_OK;
}

void npci_liveness_drop(npc_comm *comm) {
    /* Release: who sees that the rank has left sees everything it did before. */
    atomic_store_explicit(&comm->members[comm->rank].presence, NPCI_LEFT, memory_order_release);
    int fd = atomic_exchange_explicit(&comm->lock_fd, -1, memory_order_relaxed);
    if (fd >= 0)
        close(fd);
}

int npci_liveness_of(npc_comm *comm, int rank) {
    npci_member *member = &comm->members[rank];
    uint32_t presence = atomic_load_explicit(&member->presence, memory_order_acquire);
    if (presence == NPCI_LEFT)
        return NPCI_PEER_LEFT;
    if (presence == NPCI_AWAITED || comm->threads || rank == comm->rank)
        return NPCI_PEER_HERE;
    int fd = atomic_load_explicit(&comm->lock_fd, memory_order_relaxed);
    struct flock lock = npci_lock_byte(rank);
    bool gone = false;
    if (fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0)
        gone = lock.l_type == F_UNLCK;
    else if (fd < 0)
        gone = kill((pid_t)atomic_load_explicit(&member->pid, memory_order_relaxed), 0) != 0 && errno == ESRCH;
    if (!gone)
        return NPCI_PEER_HERE;
    /* It may have left in an orderly way between the two looks. */
    presence = atomic_load_explicit(&member->presence, memory_order_acquire);
    return presence == NPCI_LEFT ? NPCI_PEER_LEFT : NPCI_PEER_DEAD;
}
