/* stage.c: staging memory, and how data gets there.
 *
 * What a rank stages is read by another core, which has the lines of the ring's last turn in its cache. An ordinary
 * store must first take each line away from there, one after the other: 26 ns a line, measured between the processors
 * of a virtual machine. A store that bypasses the caches takes 2 ns, and reading costs about the same afterwards. */
#include "npci_comm.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

unsigned char *npci_staging(const npci_call *call, int rank, uint64_t round) {
    uint64_t index = (uint64_t)rank * NPCI_SLOTS + round % NPCI_SLOTS;
    return call->lane->staging + index * call->comm->chunk;
}

#if defined(__x86_64__)
/* Below this, waiting for the stores to drain costs more than they save. */
#define NPCI_STREAM_LEAST 512

void npci_stage_copy(void *to_void, const void *from_void, int64_t bytes) {
    unsigned char *to = to_void;
    const unsigned char *from = from_void;
    if (bytes < NPCI_STREAM_LEAST) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    size_t head = (size_t)(-(uintptr_t)to & (NPCI_LINE - 1)), left = (size_t)bytes - head;
    memcpy(to, from, head);
    to += head;
    from += head;
    for (; left >= NPCI_LINE; left -= NPCI_LINE, to += NPCI_LINE, from += NPCI_LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
        _mm_stream_si128((__m128i *)(void *)to, a);
        _mm_stream_si128((__m128i *)(void *)(to + 16), b);
        _mm_stream_si128((__m128i *)(void *)(to + 32), c);
        _mm_stream_si128((__m128i *)(void *)(to + 48), d);
    }
    memcpy(to, from, left);
}

/* Such stores are ordered by nothing but a fence, not even by a release. */
void npci_stage_publish(void) {
    _mm_sfence();
}
#else
void npci_stage_copy(void *to, const void *from, int64_t bytes) {
    memcpy(to, from, (size_t)bytes);
}

void npci_stage_publish(void) {
}
#endif
