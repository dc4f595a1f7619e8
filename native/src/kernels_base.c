/* kernels_base.c: the reductions with the instructions that every processor of this architecture has. */
#define NPCI_TABLE npci_kernels_base
#define NPCI_HALF_HARDWARE 0
#include "npci_kernels.h"
