/* gather.c: the parts of all ranks, one after the other, on the root. */
#include "npci_comm.h"

int npci_gather(npci_call *call) {
    return npci_gather_all(call, call->d.root);
}
