/* barrier.c: all ranks meet. */
#include "npci_comm.h"

int npci_barrier(npci_call *call) {
    return npci_meet(call);
}
