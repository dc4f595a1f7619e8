/* stream.c: copies that bypass the caches. */
#include "npci_comm.h"

#if defined(__x86_64__)
#include <emmintrin.h>

/* Below this, waiting for the stores to drain costs more than they save. */
#define NPCI_STREAM_LEAST 512

void npci_stream_copy(void *to_void, const void *from_void, int64_t bytes) {
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
void npci_stream_fence(void) {
    _mm_sfence();
}
#else
void npci_stream_copy(void *to, const void *from, int64_t bytes) {
    memcpy(to, from, (size_t)bytes);
}

void npci_stream_fence(void) {
}
#endif
