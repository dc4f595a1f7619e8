/* fingerprint.c: one number that is equal on two ranks when, and (but for 1 in 2^64) only when, their calls agree. */
#include "npci_comm.h"

/* The finishing steps of MurmurHash3 (Appleby): every input bit reaches every output bit. */
static inline uint64_t npci_mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
    hash ^= hash >> 33;
    hash *= UINT64_C(0xc4ceb9fe1a85ec53);
    return hash ^ hash >> 29;
}

uint64_t npci_fingerprint(const npci_call *call) {
    const npc_desc *d = &call->d;
    uint64_t hash = npci_mix(d->detail, (uint64_t)d->kind);
    bool reduces = false, rooted = false, typed = true;
    int first = 0;
    switch ((npc_kind)d->kind) {
    case NPC_BARRIER: typed = false; break;
    case NPC_ALLREDUCE:
    case NPC_REDUCE_SCATTER: reduces = true; break;
    case NPC_REDUCE: reduces = rooted = true; break;
    case NPC_BROADCAST: rooted = true; break;
    case NPC_ALLGATHER:
    case NPC_ALLTOALL: first = 1; break; /* dimension 0 may differ */
    case NPC_GATHER:
        rooted = true;
        first = 1;
        break;
    case NPC_SCATTER: /* only the root knows what it scatters */
        rooted = true;
        typed = false;
        break;
    case NPC_SEND:
    case NPC_RECV: break;
    }
    if (typed) {
        hash = npci_mix(hash, (uint64_t)d->dtype << 8 | (uint64_t)d->ndim);
        for (int i = first; i < d->ndim; i++)
            hash = npci_mix(hash, (uint64_t)call->shape[i]);
    }
    if (rooted)
        hash = npci_mix(hash, (uint64_t)d->root);
    if (d->shared != NULL)
        hash = npci_mix(hash, 1);
    if (reduces) {
        uint64_t scales[2];
        memcpy(&scales[0], &d->prescale, sizeof scales[0]);
        memcpy(&scales[1], &d->postscale, sizeof scales[1]);
        hash = npci_mix(hash, (uint64_t)d->op);
        hash = npci_mix(hash, scales[0]);
        hash = npci_mix(hash, scales[1]);
    }
    return hash;
}
