/* npci_area.h: what lies in the shared memory of one communicator, and where.
 *
 * The area is made of a header, one record a rank, two lanes, the table of named calls and the mailboxes. All of it
 * starts as zero bytes, and zero is the valid first state of everything, so making an area writes only its header.
 * Every word that two processes touch at once is a C11 atomic that is lock-free and so works between processes. */
#ifndef NPCI_AREA_H
#define NPCI_AREA_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "npucoll.h"

#define NPCI_LINE 64          /* bytes of a cache line: what one rank writes shares no line with another's */
#define NPCI_PAGE 4096
#define NPCI_MAX_RANKS 1024
#define NPCI_PAYLOAD 48       /* bytes of data that fit beside a cell's sequence number and fingerprint */
#define NPCI_SLOTS 3          /* staging chunks a rank has in flight */
#define NPCI_ENTRIES 1024     /* named calls that may be under way at once */
#define NPCI_NAME 96          /* bytes of a name kept for messages */
#define NPCI_LANES 2
#define NPCI_NUMBERED 0
#define NPCI_KEYED 1

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "atomics must work between processes");

/* npci_counter only ever grows. `waiters` counts those that sleep on its low half. */
typedef struct npci_counter {
    _Alignas(NPCI_LINE) _Atomic uint64_t value;
    _Atomic uint32_t waiters;
} npci_counter;

/* npci_bell is rung for one rank when there may be something for it to do. */
typedef struct npci_bell {
    _Alignas(NPCI_LINE) _Atomic uint32_t event;
    _Atomic uint32_t sleepers;
} npci_bell;

/* npci_cell is where one rank arrives at a meeting: see meet.c. */
typedef struct npci_cell {
    _Alignas(NPCI_LINE) _Atomic uint64_t sequence;
    uint64_t fingerprint;
    unsigned char payload[NPCI_PAYLOAD];
} npci_cell;

/* npci_group is where the first rank of a group says that all of its group have arrived: see meet.c. */
typedef struct npci_group {
    _Alignas(NPCI_LINE) _Atomic uint64_t sequence;
    uint64_t fingerprint;
    uint64_t mixed; /* the group's ranks have different fingerprints */
    unsigned char data[];
} npci_group;

/* npci_stage numbers the things that a rank can wait for at another. */
typedef enum npci_stage { NPCI_STAGED = 0, NPCI_REDUCED = 1, NPCI_DRAINED = 2, NPCI_STAGES = 3 } npci_stage;

/* npci_progress says how far one rank is in one lane. */
typedef struct npci_progress {
    npci_counter stage[NPCI_STAGES];
    /* Of these only `waiters` is used: those that sleep on one of the rank's two cells, or its group's two places. */
    npci_counter arrivals, groups;
} npci_progress;

/* npci_note describes a call well enough for a message on another rank. */
typedef struct npci_note {
    int32_t kind, dtype, op, root, tag, ndim;
    int64_t shape[NPC_MAX_DIMS];
    uint64_t key, number, detail;
    double prescale, postscale;
    int32_t shared;
    char name[NPCI_NAME];
} npci_note;

/* npci_aside is what a rank tells the others about its call when a cell's payload is too small for it. */
typedef struct npci_aside {
    uint64_t input, output, result; /* places in communication memory: see lend.c; 0: none */
    int32_t dtype, ndim;
    int64_t shape[NPC_MAX_DIMS];
    int64_t splits[];
} npci_aside;

typedef enum npci_presence { NPCI_AWAITED = 0, NPCI_HERE = 1, NPCI_LEFT = 2 } npci_presence;

typedef struct npci_member {
    _Alignas(NPCI_LINE) _Atomic uint32_t presence;
    _Atomic int32_t pid;
} npci_member;

/* npci_arrival is one rank's arrival at a named call. */
typedef struct npci_arrival {
    uint64_t fingerprint;
    uint32_t here;
    npci_note note;
} npci_arrival;

/* npci_entry is one named call that some ranks have arrived at. Indices are one more than the place in the table, so
 * that zero means none. */
typedef struct npci_entry {
    _Alignas(NPCI_LINE) uint64_t key;
    uint32_t next; /* in its bucket, or in the free list */
    uint32_t arrived;
    _Atomic uint32_t finished; /* ranks that have run it */
    npci_arrival arrivals[];
} npci_entry;

/* npci_table matches named calls: see keyed.c. All but `lock` and the log is guarded by the lock. */
typedef struct npci_table {
    _Alignas(NPCI_LINE) _Atomic uint32_t lock; /* 0, or the holder's rank + 1, and NPCI_CONTENDED */
    _Alignas(NPCI_LINE) _Atomic uint64_t log_end;
    _Alignas(NPCI_LINE) uint32_t free_head, used;
    uint32_t head[NPCI_ENTRIES], tail[NPCI_ENTRIES]; /* buckets, oldest entry first */
    _Atomic uint32_t log[NPCI_ENTRIES];
} npci_table;

/* npci_ring carries bytes from one rank to another: see mail.c. */
typedef struct npci_ring {
    _Alignas(NPCI_LINE) _Atomic uint64_t written;
    _Alignas(NPCI_LINE) _Atomic uint64_t read;
} npci_ring;

#define NPCI_MAGIC UINT64_C(0x6c6c6f637570306e)
#define NPCI_LAYOUT 3u

typedef struct npci_header {
    uint64_t magic;
    uint32_t layout, size;
    uint64_t bytes;
    uint64_t chunk, middle, stream, group; /* tuning is decided once, so that all ranks cut messages alike */
    uint64_t heap;                  /* bytes of communication memory for each rank, behind `bytes`; untouched pages
                                     * cost nothing */
    _Alignas(NPCI_LINE) _Atomic uint32_t ended; /* 0, NPCI_ENDING, or the npc_status */
    char cause[NPC_ERROR_TEXT];
} npci_header;

#define NPCI_ENDING 0xffffu

/* npci_lane_layout gives the offsets of one lane's parts. */
typedef struct npci_lane_layout {
    size_t progress, cells, groups, asides, notes, middle, staging;
} npci_lane_layout;

/* npci_layout gives the offsets and sizes of an area for `size` ranks. It depends on nothing but its arguments. */
typedef struct npci_layout {
    size_t members, log_bells, mail_bells, table, entries, entry_bytes, rings, ring_data, ring_bytes, aside_bytes, group_bytes;
    npci_lane_layout lane[NPCI_LANES];
    size_t bytes;
} npci_layout;

/* npci_layout_of computes the layout; `chunk` and `middle` are multiples of a page; `group` is the ranks of a group, 0:
 * there are none. */
npci_layout npci_layout_of(int size, size_t chunk, size_t middle, size_t group);

#endif
