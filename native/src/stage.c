/* stage.c: staging memory, and how data gets there.
 *
 * What a rank stages is read by another core, which has the lines of the ring's last turn in its cache. An ordinary
 * store must first take each line away from there. What that costs is a matter of where the two cores are: between the
 * processors of virtual machines of one kind, 1 ns a line was measured on some and 26 ns on others. A store that
 * bypasses the caches takes 2 ns on all of them, but then the reader fetches the line from memory. So each rank
 * measures its own stores while it works, and takes the cheaper kind:
 *
 * 1. The two kinds are compared within a class of message sizes, as the source is in a cache or in memory.
 * 2. The first rounds touch new pages and are not counted. Then both kinds are tried in turn.
 * 3. From then on one round in NPCI_STAGE_TRIES takes the other kind. A figure follows smaller samples at once and
 *    larger ones slowly: a rank that lost its processor for a while has measured nothing.
 *
 * Ranks need not agree: who reads does not mind how the bytes came. */
#include "npci_comm.h"

#define NPCI_STAGE_TRIES 64u
#define NPCI_STAGE_NEW (2u * NPCI_SLOTS)
#define NPCI_STAGE_FIRST 8u
/* Fewer bytes are not worth a look at the clock. */
#define NPCI_STAGE_MEASURED 4096

unsigned char *npci_staging(const npci_call *call, int rank, uint64_t round) {
    uint64_t index = (uint64_t)rank * NPCI_SLOTS + round % NPCI_SLOTS;
    return call->lane->staging + index * call->comm->chunk;
}

static npci_stage_class *npci_stage_class_of(const npci_call *call) {
    int number = call->bytes <= (INT64_C(1) << 18) ? 0 : call->bytes <= (INT64_C(4) << 20) ? 1 : 2;
    return &call->lane->stager.classes[number];
}

void npci_stage_begin(npci_call *call, int64_t bytes) {
    npci_stager *stager = &call->lane->stager;
    npci_stage_class *class = npci_stage_class_of(call);
    bool cheaper = class->cost[1] > 0 && class->cost[1] < class->cost[0];
    stager->began = 0;
    stager->streams = cheaper;
#if !defined(__x86_64__)
    (void)bytes; /* there is one kind of stores */
#else
    if (bytes < NPCI_STAGE_MEASURED)
        return;
    uint32_t turn = class->turns++;
    if (turn < NPCI_STAGE_NEW)
        return;
    turn -= NPCI_STAGE_NEW;
    stager->streams = turn < NPCI_STAGE_FIRST ? turn % 2 != 0 : cheaper != (turn % NPCI_STAGE_TRIES == 0);
    stager->began = npci_now();
#endif
}

void npci_stage_end(npci_call *call, int64_t bytes) {
    npci_stager *stager = &call->lane->stager;
    if (stager->began == 0)
        return;
    if (stager->streams)
        npci_stream_fence();
    float *cost = &npci_stage_class_of(call)->cost[stager->streams];
    float sample = (float)(npci_now() - stager->began) / (float)bytes;
    *cost = *cost == 0 || sample < *cost ? sample : *cost + (sample - *cost) * 0.1f;
}

void npci_stage_copy(const npci_call *call, void *to, const void *from, int64_t bytes) {
    if (call->lane->stager.streams)
        npci_stream_copy(to, from, bytes);
    else
        memcpy(to, from, (size_t)bytes);
}

void npci_stage_publish(const npci_call *call) {
    if (call->lane->stager.streams)
        npci_stream_fence();
}
