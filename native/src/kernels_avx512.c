/* kernels_avx512.c: the reductions with AVX-512. FMA is left out on purpose: it would change the last bit. */
#include "npci_kernel_table.h"

#if defined(NPCI_AVX512)
/* Headers of the system stay outside the pragma. */
#include <immintrin.h>

#include "npci_comm.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi"))),                \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,prefer-vector-width=512")
#endif

#define NPCI_TABLE npci_kernels_avx512
#define NPCI_VECTOR 64
#define NPCI_HALF_HARDWARE 512
#include "npci_kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int npci_kernels_avx512_is_for_x86_and_newer_compilers;
#endif
