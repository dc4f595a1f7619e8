/* npci_table.h: the table of named calls, for keyed.c. */
#ifndef NPCI_TABLE_H
#define NPCI_TABLE_H

#include "npci_comm.h"

#include <stdio.h>

npci_table *npci_table_of(npc_comm *comm);
/* npci_entry_of gives the entry with this index; indices begin at 1. */
npci_entry *npci_entry_of(npc_comm *comm, uint32_t index);
/* npci_table_arrive enters this rank's call, under the lock; 0: the table is full. */
uint32_t npci_table_arrive(npc_comm *comm, const npci_call *call);
/* npci_table_complete appends the entry to the log if all ranks have arrived, under the lock. */
bool npci_table_complete(npc_comm *comm, uint32_t index);
/* npci_table_finish notes that this rank has run the entry; the last rank frees it. Takes the lock. */
void npci_table_finish(npc_comm *comm, uint32_t index);

#endif
