/* kernels_base.c: the reductions with the instructions that every processor of this architecture has. */
#if defined(__aarch64__)
#include <arm_neon.h>
#define NPCI_HALF_HARDWARE 128
#else
#define NPCI_HALF_HARDWARE 0
#endif

#define NPCI_TABLE npci_kernels_base
#define NPCI_VECTOR 16
#include "npci_kernels.h"
