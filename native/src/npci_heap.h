/* npci_heap.h: what lies in communication memory, for heap.c and memory.c. */
#ifndef NPCI_HEAP_H
#define NPCI_HEAP_H

#include "npci_comm.h"

/* npci_block is the head of an extent. Its memory begins a page later. */
typedef struct npci_block {
    _Atomic uint32_t references; /* buffers that somebody has not released yet, on all ranks */
} npci_block;

/* npci_tag lies in the line before each buffer, and says whose it is. */
typedef struct npci_tag {
    _Alignas(NPCI_LINE) uint64_t place; /* of the block; 0: it is this process's own, at `own` */
    npci_block *own;
} npci_tag;

/* npci_heap_take takes `bytes` of this rank's part, its block header included: the place, and the address here; 0 where
 * there are not so many. */
uint64_t npci_heap_take(npc_comm *comm, int64_t bytes, uint32_t references, unsigned char **memory);
/* npci_heap_reclaim frees what nobody refers to any more. */
void npci_heap_reclaim(npc_comm *comm);

#endif
