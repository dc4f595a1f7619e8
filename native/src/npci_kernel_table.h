/* npci_kernel_table.h: the kernels of one instruction set, by dtype and reduction; and which sets there are. */
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

/* npci_instructions are in order: who has one has those before it. */
typedef enum npci_instructions { NPCI_BASE = 0, NPCI_AVX2_F16C = 1, NPCI_AVX512_VBMI = 2 } npci_instructions;

/* ---- processor.c */
npci_instructions npci_processor(void);

extern const npci_kernel_table npci_kernels_base;
#if defined(__x86_64__)
extern const npci_kernel_table npci_kernels_avx2;
#if defined(__clang__) || __GNUC__ >= 8 /* older ones do not choose the width of vectors */
#define NPCI_AVX512 1
extern const npci_kernel_table npci_kernels_avx512;
#endif
#endif

#endif
