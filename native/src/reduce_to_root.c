/* reduce_to_root.c: the root gets the reduction of all inputs. */
#include "npci_comm.h"

int npci_reduce_to_root(npci_call *call) {
    return npci_reduce_all(call, call->d.root);
}
