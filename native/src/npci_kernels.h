/* npci_kernels.h: the arithmetic of reductions, written once and compiled for several instruction sets.
 *
 * A file that includes it defines NPCI_TABLE, the name of the table it makes; NPCI_VECTOR, the bytes of a vector; and
 * NPCI_HALF_HARDWARE: the bits of a vector that the processor can convert from and to float16, or 0.
 *
 * A kernel computes to[i] = finish(load(from[0][i]) op load(from[1][i]) op ...), always in rank order, so every rank
 * and every path gives the same bits. It works in blocks whose accumulators stay in the first-level cache: the first
 * pass combines two inputs, the last pass combines one more and finishes. `to` may be one of the inputs: each pass
 * reads element i before it writes element i, which is what NPCI_LOOP promises the compiler. */
#include "npci_comm.h"
#include "npci_kernel_table.h"

#if defined(__clang__)
#define NPCI_LOOP _Pragma("clang loop vectorize(assume_safety)")
#pragma clang diagnostic ignored "-Wpass-failed" /* 128-bit integers have no vectors */
#elif defined(__GNUC__)
#define NPCI_LOOP _Pragma("GCC ivdep")
#endif

#define NPCI_BLOCK 512

/* ---- loading, combining, finishing */
#define NPCI_SAME(x) (x)
#define NPCI_TRUTH(x) ((uint8_t)((x) != 0))
#define NPCI_ADD(a, x) ((a) + (x))
#define NPCI_MUL(a, x) ((a) * (x))
#define NPCI_AND(a, x) ((uint8_t)((a) & (x)))
#define NPCI_OR(a, x) ((uint8_t)((a) | (x)))
#define NPCI_LEAST(a, x) ((x) < (a) ? (x) : (a))
#define NPCI_MOST(a, x) ((x) > (a) ? (x) : (a))
/* A NaN on either side wins, as in NumPy. */
#define NPCI_FLOAT_LEAST(a, x) ((a) < (x) || (a) != (a) ? (a) : (x))
#define NPCI_FLOAT_MOST(a, x) ((a) > (x) || (a) != (a) ? (a) : (x))

/* NPCI_KERNEL makes one kernel. T: element, A: accumulator, P: what a scale is rounded to. In LOAD and FINISH, `pre`,
 * `post` and `ranks` are the scales and the number of ranks. */
#define NPCI_KERNEL(NAME, T, A, P, LOAD, COMBINE, FINISH)                                                             \
    static void NAME(void *to_void, const void *const *from, int size, size_t count, double prescale,                 \
                     double postscale) {                                                                              \
        T *to = to_void;                                                                                              \
        const P pre = (P)prescale, post = (P)postscale, ranks = (P)size;                                              \
        A sums[NPCI_BLOCK];                                                                                           \
        (void)pre, (void)post, (void)ranks;                                                                           \
        for (size_t base = 0; base < count; base += NPCI_BLOCK) {                                                     \
            size_t n = count - base < NPCI_BLOCK ? count - base : NPCI_BLOCK;                                         \
            const T *first = (const T *)from[0] + base;                                                               \
            T *block = to + base;                                                                                     \
            if (size == 1) {                                                                                          \
                NPCI_LOOP for (size_t i = 0; i < n; i++) {                                                            \
                    A sum = LOAD(first[i]);                                                                           \
                    block[i] = (T)FINISH(sum);                                                                        \
                }                                                                                                     \
                continue;                                                                                             \
            }                                                                                                         \
            const T *last = (const T *)from[size - 1] + base;                                                         \
            if (size == 2) {                                                                                          \
                NPCI_LOOP for (size_t i = 0; i < n; i++) {                                                            \
                    A sum = LOAD(first[i]), value = LOAD(last[i]);                                                    \
                    sum = (A)COMBINE(sum, value);                                                                     \
                    block[i] = (T)FINISH(sum);                                                                        \
                }                                                                                                     \
                continue;                                                                                             \
            }                                                                                                         \
            const T *second = (const T *)from[1] + base;                                                              \
            NPCI_LOOP for (size_t i = 0; i < n; i++) {                                                                \
                A sum = LOAD(first[i]), value = LOAD(second[i]);                                                      \
                sums[i] = (A)COMBINE(sum, value);                                                                     \
            }                                                                                                         \
            for (int r = 2; r < size - 1; r++) {                                                                      \
                const T *next = (const T *)from[r] + base;                                                            \
                NPCI_LOOP for (size_t i = 0; i < n; i++) {                                                            \
                    A sum = sums[i], value = LOAD(next[i]);                                                           \
                    sums[i] = (A)COMBINE(sum, value);                                                                 \
                }                                                                                                     \
            }                                                                                                         \
            NPCI_LOOP for (size_t i = 0; i < n; i++) {                                                                \
                A sum = sums[i], value = LOAD(last[i]);                                                               \
                sum = (A)COMBINE(sum, value);                                                                         \
                block[i] = (T)FINISH(sum);                                                                            \
            }                                                                                                         \
        }                                                                                                             \
    }

/* Integers: sums and products wrap, so they are computed unsigned (N, and for products U, which C does not promote to
 * a signed type); a mean is accumulated wide (W) and truncates. A sum of 1024 numbers of 8 bits is exact in a float, of
 * up to 32 bits in a double; there the quotient is never rounded across a whole number, as the next one is farther away
 * than that; and processors divide vectors of them. */
#define NPCI_WHOLE_MEAN(x) ((x) / ranks)
#define NPCI_INTEGER(NAME, T, N, U, W)                                                                                \
    NPCI_KERNEL(npci_sum_##NAME, T, N, int, (N)NPCI_SAME, NPCI_ADD, NPCI_SAME)                                        \
    NPCI_KERNEL(npci_mean_##NAME, T, W, W, (W)NPCI_SAME, NPCI_ADD, NPCI_WHOLE_MEAN)                                   \
    NPCI_KERNEL(npci_min_##NAME, T, T, int, NPCI_SAME, NPCI_LEAST, NPCI_SAME)                                         \
    NPCI_KERNEL(npci_max_##NAME, T, T, int, NPCI_SAME, NPCI_MOST, NPCI_SAME)                                          \
    NPCI_KERNEL(npci_prod_##NAME, T, U, int, (U)NPCI_SAME, NPCI_MUL, NPCI_SAME)

NPCI_INTEGER(int8, int8_t, uint8_t, uint32_t, float)
NPCI_INTEGER(uint8, uint8_t, uint8_t, uint32_t, float)
NPCI_INTEGER(int16, int16_t, uint16_t, uint32_t, double)
NPCI_INTEGER(uint16, uint16_t, uint16_t, uint32_t, double)
NPCI_INTEGER(int32, int32_t, uint32_t, uint32_t, double)
NPCI_INTEGER(uint32, uint32_t, uint32_t, uint32_t, double)
NPCI_INTEGER(int64, int64_t, uint64_t, uint64_t, __int128)
NPCI_INTEGER(uint64, uint64_t, uint64_t, uint64_t, __int128)

NPCI_KERNEL(npci_min_bool, uint8_t, uint8_t, int, NPCI_TRUTH, NPCI_AND, NPCI_SAME)
NPCI_KERNEL(npci_max_bool, uint8_t, uint8_t, int, NPCI_TRUTH, NPCI_OR, NPCI_SAME)

/* Floats. A mean is a division, so that it equals NumPy's. */
#define NPCI_MEAN(x) ((x) / ranks)
#define NPCI_POST(x) ((x) * post)
#define NPCI_MEAN_POST(x) ((x) / ranks * post)
#define NPCI_FLOATING(NAME, T, LOAD, PRE, STORE)                                                                      \
    NPCI_FLOATING_OPS(NAME, T, LOAD, STORE, STORE##_MEAN, )                                                           \
    NPCI_FLOATING_OPS(NAME, T, PRE, STORE##_POST, STORE##_MEAN_POST, scaled_)
#define NPCI_FLOATING_OPS(NAME, T, LOAD, FINISH, FINISH_MEAN, SCALED)                                                 \
    NPCI_KERNEL(npci_##SCALED##sum_##NAME, T, NPCI_WIDE_##NAME, NPCI_WIDE_##NAME, LOAD, NPCI_ADD, FINISH)             \
    NPCI_KERNEL(npci_##SCALED##mean_##NAME, T, NPCI_WIDE_##NAME, NPCI_WIDE_##NAME, LOAD, NPCI_ADD, FINISH_MEAN)       \
    NPCI_KERNEL(npci_##SCALED##min_##NAME, T, NPCI_WIDE_##NAME, NPCI_WIDE_##NAME, LOAD, NPCI_FLOAT_LEAST, FINISH)     \
    NPCI_KERNEL(npci_##SCALED##max_##NAME, T, NPCI_WIDE_##NAME, NPCI_WIDE_##NAME, LOAD, NPCI_FLOAT_MOST, FINISH)      \
    NPCI_KERNEL(npci_##SCALED##prod_##NAME, T, NPCI_WIDE_##NAME, NPCI_WIDE_##NAME, LOAD, NPCI_MUL, FINISH)

#define NPCI_WIDE_float32 float
#define NPCI_WIDE_float64 double

#define NPCI_LOAD_PRE(x) ((x) * pre)
#define NPCI_STORE(x) (x)
#define NPCI_STORE_MEAN(x) NPCI_MEAN(x)
#define NPCI_STORE_POST(x) NPCI_POST(x)
#define NPCI_STORE_MEAN_POST(x) NPCI_MEAN_POST(x)
NPCI_FLOATING(float32, float, NPCI_SAME, NPCI_LOAD_PRE, NPCI_STORE)
NPCI_FLOATING(float64, double, NPCI_SAME, NPCI_LOAD_PRE, NPCI_STORE)

#include "npci_halves.h"

/* Complex sums are sums of their parts. Products take the textbook formula. */
#define NPCI_COMPLEX_PROD(NAME, T)                                                                                    \
    static void NAME(void *to_void, const void *const *from, int size, size_t count, double prescale,                 \
                     double postscale) {                                                                              \
        T *to = to_void;                                                                                              \
        const T pre = (T)prescale, post = (T)postscale;                                                               \
        for (size_t i = 0; i < count; i++) {                                                                          \
            T real = ((const T *)from[0])[2 * i] * pre, imaginary = ((const T *)from[0])[2 * i + 1] * pre;            \
            for (int r = 1; r < size; r++) {                                                                          \
                T a = ((const T *)from[r])[2 * i] * pre, b = ((const T *)from[r])[2 * i + 1] * pre;                   \
                T next = real * a - imaginary * b;                                                                    \
                imaginary = real * b + imaginary * a;                                                                 \
                real = next;                                                                                          \
            }                                                                                                         \
            to[2 * i] = real * post;                                                                                  \
            to[2 * i + 1] = imaginary * post;                                                                         \
        }                                                                                                             \
    }
NPCI_COMPLEX_PROD(npci_prod_complex64, float)
NPCI_COMPLEX_PROD(npci_prod_complex128, double)

#define NPCI_ROW(NAME) {npci_sum_##NAME, npci_mean_##NAME, npci_min_##NAME, npci_max_##NAME, npci_prod_##NAME}
#define NPCI_SCALED_ROW(NAME)                                                                                         \
    {npci_scaled_sum_##NAME, npci_scaled_mean_##NAME, npci_scaled_min_##NAME, npci_scaled_max_##NAME,                 \
     npci_scaled_prod_##NAME}

const npci_kernel_table NPCI_TABLE = {
    .plain = {
        [NPC_BOOL] = {NULL, NULL, npci_min_bool, npci_max_bool, npci_min_bool},
        [NPC_INT8] = NPCI_ROW(int8),
        [NPC_UINT8] = NPCI_ROW(uint8),
        [NPC_INT16] = NPCI_ROW(int16),
        [NPC_UINT16] = NPCI_ROW(uint16),
        [NPC_INT32] = NPCI_ROW(int32),
        [NPC_UINT32] = NPCI_ROW(uint32),
        [NPC_INT64] = NPCI_ROW(int64),
        [NPC_UINT64] = NPCI_ROW(uint64),
        [NPC_FLOAT16] = NPCI_ROW(float16),
        [NPC_BFLOAT16] = NPCI_ROW(bfloat16),
        [NPC_FLOAT32] = NPCI_ROW(float32),
        [NPC_FLOAT64] = NPCI_ROW(float64),
        [NPC_COMPLEX64] = {npci_sum_float32, npci_mean_float32, NULL, NULL, npci_prod_complex64},
        [NPC_COMPLEX128] = {npci_sum_float64, npci_mean_float64, NULL, NULL, npci_prod_complex128},
    },
    .scaled = {
        [NPC_FLOAT16] = NPCI_SCALED_ROW(float16),
        [NPC_BFLOAT16] = NPCI_SCALED_ROW(bfloat16),
        [NPC_FLOAT32] = NPCI_SCALED_ROW(float32),
        [NPC_FLOAT64] = NPCI_SCALED_ROW(float64),
        [NPC_COMPLEX64] = {npci_scaled_sum_float32, npci_scaled_mean_float32, NULL, NULL, npci_prod_complex64},
        [NPC_COMPLEX128] = {npci_scaled_sum_float64, npci_scaled_mean_float64, NULL, NULL, npci_prod_complex128},
    },
};
