/* kernels_avx2.c: the reductions with AVX2 and F16C. FMA is left out on purpose: it would change the last bit. */
#if defined(__x86_64__)
/* Headers of the system stay outside the pragma. */
#include <immintrin.h>

#include "npci_comm.h"
#include "npci_kernel_table.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#define NPCI_TABLE npci_kernels_avx2
#define NPCI_VECTOR 32
#define NPCI_HALF_HARDWARE 256
#include "npci_kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int npci_kernels_avx2_is_for_x86;
#endif
