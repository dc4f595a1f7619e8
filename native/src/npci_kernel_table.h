/* npci_kernel_table.h: the kernels of one instruction set, by dtype and reduction. */
#ifndef NPCI_KERNEL_TABLE_H
#define NPCI_KERNEL_TABLE_H

#include <stddef.h>

#include "npucoll.h"

typedef void (*npci_kernel)(void *to, const void *const *from, int size, size_t count, double prescale,
                            double postscale);

typedef struct npci_kernel_table {
    npci_kernel plain[NPC_COMPLEX128 + 1][NPC_PROD];
    npci_kernel scaled[NPC_COMPLEX128 + 1][NPC_PROD];
} npci_kernel_table;

extern const npci_kernel_table npci_kernels_base;
#if defined(__x86_64__)
extern const npci_kernel_table npci_kernels_avx2;
#endif

#endif
