/* stage.c: where staging chunks lie. */
#include "npci_comm.h"

unsigned char *npci_staging(const npci_call *call, int rank, uint64_t round) {
    uint64_t index = (uint64_t)rank * NPCI_SLOTS + round % NPCI_SLOTS;
    return call->lane->staging + index * call->comm->chunk;
}
