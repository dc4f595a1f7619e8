/* kernels_base.c: the reductions with the instructions that every processor of this architecture has. */
#define NPCI_TABLE npci_kernels_base
#include "npci_kernels.h"
