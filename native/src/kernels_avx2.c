/* kernels_avx2.c: the reductions with AVX2. FMA is left out on purpose: it would change the last bit. */
#if defined(__x86_64__)
#include "npci_comm.h" /* system headers stay outside the pragma */
#include "npci_kernel_table.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define NPCI_TABLE npci_kernels_avx2
#include "npci_kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int npci_kernels_avx2_is_for_x86;
#endif
