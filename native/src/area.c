/* area.c: makes the memory file of a communicator.
 *
 * memfd_create gives a file that has no name, so nothing can be left behind, and that is charged page by page as pages
 * are touched, not against the size of /dev/shm. Its size is sealed, so no rank can turn another's access into
 * SIGBUS. */
#include "npci_comm.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* glibc 2.17 has neither the function nor the constants. */
#define NPCI_MFD_CLOEXEC 1u
#define NPCI_MFD_ALLOW_SEALING 2u
#define NPCI_MFD_NOEXEC_SEAL 8u
#define NPCI_F_ADD_SEALS 1033
#define NPCI_SEALS 7 /* F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW */

static size_t npci_place(size_t *at, size_t bytes, size_t alignment) {
    size_t start = (*at + alignment - 1) / alignment * alignment;
    *at = start + bytes;
    return start;
}

npci_layout npci_layout_of(int size, size_t chunk, size_t middle, size_t group) {
    npci_layout layout;
    size_t p = (size_t)size, at = sizeof(npci_header);
    memset(&layout, 0, sizeof layout);
    layout.aside_bytes = (sizeof(npci_aside) + p * sizeof(int64_t) + NPCI_LINE - 1) / NPCI_LINE * NPCI_LINE;
    layout.entry_bytes = (sizeof(npci_entry) + p * sizeof(npci_arrival) + NPCI_LINE - 1) / NPCI_LINE * NPCI_LINE;
    layout.group_bytes = (sizeof(npci_group) + group * NPCI_PAYLOAD + NPCI_LINE - 1) / NPCI_LINE * NPCI_LINE;
    layout.ring_bytes = size <= 16 ? 1u << 18 : 1u << 16;
    layout.members = npci_place(&at, p * sizeof(npci_member), NPCI_LINE);
    layout.log_bells = npci_place(&at, p * sizeof(npci_bell), NPCI_LINE);
    layout.mail_bells = npci_place(&at, p * sizeof(npci_bell), NPCI_LINE);
    for (int i = 0; i < NPCI_LANES; i++) {
        npci_lane_layout *lane = &layout.lane[i];
        lane->progress = npci_place(&at, p * sizeof(npci_progress), NPCI_LINE);
        lane->cells = npci_place(&at, 2 * p * sizeof(npci_cell), NPCI_LINE);
        if (group > 0)
            lane->groups = npci_place(&at, 2 * ((p + group - 1) / group) * layout.group_bytes, NPCI_LINE);
        lane->asides = npci_place(&at, 2 * p * layout.aside_bytes, NPCI_LINE);
        lane->notes = npci_place(&at, p * sizeof(npci_note), NPCI_LINE);
        lane->middle = npci_place(&at, 2 * p * middle, NPCI_PAGE);
        lane->staging = npci_place(&at, p * NPCI_SLOTS * chunk, NPCI_PAGE);
    }
    layout.table = npci_place(&at, sizeof(npci_table), NPCI_PAGE);
    layout.entries = npci_place(&at, NPCI_ENTRIES * layout.entry_bytes, NPCI_LINE);
    layout.rings = npci_place(&at, p * p * sizeof(npci_ring), NPCI_PAGE);
    layout.ring_data = npci_place(&at, p * p * layout.ring_bytes, NPCI_PAGE);
    npci_place(&at, 0, NPCI_PAGE);
    layout.bytes = (at + NPCI_PAGE - 1) / NPCI_PAGE * NPCI_PAGE;
    return layout;
}

/* npci_chunk_for chooses a chunk so that what one round touches fits the second-level cache. Half and double of it
 * measured alike, so small staging memory decides. */
static size_t npci_chunk_for(int size, const npci_caches *caches) {
    size_t most = (size_t)4 << 20, level2 = caches->level2 < most ? caches->level2 : most;
    size_t chunk = level2 / (size_t)size;
    size_t least = (size_t)size * NPCI_LINE > 65536 ? (size_t)size * NPCI_LINE : 65536;
    chunk = chunk < least ? least : chunk;
    return (chunk + NPCI_PAGE - 1) / NPCI_PAGE * NPCI_PAGE;
}

/* npci_middle_for chooses up to how many bytes every rank reduces everything itself, with one synchronisation. */
static size_t npci_middle_for(int size) {
    size_t middle = 65536 / (size_t)size;
    return middle < NPCI_PAGE ? NPCI_PAGE : (middle + NPCI_PAGE - 1) / NPCI_PAGE * NPCI_PAGE;
}

/* Tests set other values, so that few ranks meet in groups too. */
#ifndef NPCI_FLAT
#define NPCI_FLAT 16
#define NPCI_GROUP_LEAST 8
#define NPCI_GROUP_CORES npci_cores()
#endif

/* npci_group_for chooses the size of groups: near the square root of the ranks, so that as many wait for a group's first
 * rank as that one waits for. With few ranks one step is better than two; so it is where ranks share processors, as each step then waits for a
 * turn of the scheduler (measured with 24 to 64 ranks on 2 processors: twice the time in groups). */
static size_t npci_group_for(int size) {
    size_t group = NPCI_GROUP_LEAST;
    while (group * group < (size_t)size)
        group *= 2;
    return size > NPCI_FLAT && size <= NPCI_GROUP_CORES ? group : 0;
}

/* npci_stream_for chooses from how many bytes results bypass the caches, which saves reading their lines first: where
 * the inputs and results of the ranks that share a cache do not fit it. */
static size_t npci_stream_for(int size, const npci_caches *caches) {
    int sharers = size < caches->sharers ? size : caches->sharers;
    return caches->level3 / (2 * (size_t)sharers) + 1;
}

static int npci_memfd(void) {
    int fd = (int)syscall(SYS_memfd_create, "npucoll", NPCI_MFD_CLOEXEC | NPCI_MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* kernels before 6.3 do not know the last flag */
        fd = (int)syscall(SYS_memfd_create, "npucoll", NPCI_MFD_CLOEXEC | NPCI_MFD_ALLOW_SEALING);
    return fd;
}

/* A build for an emulator, which keeps a record of every page of address space, may set less. */
#ifndef NPCI_HEAP_MOST
#define NPCI_HEAP_MOST ((size_t)1 << 36)
#endif

/* npci_heap_for chooses how much communication memory a rank may have. It is address space only until it is used. */
static size_t npci_heap_for(int size) {
    size_t share = ((size_t)1 << 41) / (size_t)size;
    return (share < NPCI_HEAP_MOST ? share : NPCI_HEAP_MOST) / NPCI_PAGE * NPCI_PAGE;
}

int npc_area_create(int size, int *fd, npc_error *error) {
    if (error != NULL)
        error->text[0] = '\0';
    if (fd == NULL || size < 1 || size > NPCI_MAX_RANKS)
        return npci_fail(error, NPC_ERR_ARGUMENT, "a communicator has 1 to %d ranks, not %d", NPCI_MAX_RANKS, size);
    npci_header header;
    memset(&header, 0, sizeof header);
    header.magic = NPCI_MAGIC;
    header.layout = NPCI_LAYOUT;
    header.size = (uint32_t)size;
    npci_caches caches = npci_caches_find();
    header.chunk = npci_chunk_for(size, &caches);
    header.stream = npci_stream_for(size, &caches);
    header.middle = npci_middle_for(size);
    header.group = npci_group_for(size);
    header.bytes = npci_layout_of(size, header.chunk, header.middle, header.group).bytes;
    int made = npci_memfd();
    if (made < 0)
        return npci_fail_errno(error, "memfd_create", errno);
    header.heap = npci_heap_for(size);
    if (ftruncate(made, (off_t)(header.bytes + (size_t)size * header.heap)) != 0)
        header.heap = 0; /* a limit on the size of files: then there is no communication memory */
    if ((header.heap == 0 && ftruncate(made, (off_t)header.bytes) != 0) ||
        pwrite(made, &header, sizeof header, 0) != (ssize_t)sizeof header) {
        int code = errno;
        close(made);
        return npci_fail_errno(error, "making the shared memory", code);
    }
    (void)fcntl(made, NPCI_F_ADD_SEALS, NPCI_SEALS); /* a precaution: without it everything works too */
    *fd = made;
    return NPC_OK;
}
